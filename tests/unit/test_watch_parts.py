"""The pure parts of following a ConfigMap: lines, delays, errors in words, and what the settings accept."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet_node.errors import ApiServerError, ConfigError
from meshnet_node.head import apiserver
from meshnet_node.head.apiserver import Account, LineBuffer, find_account, refusal, told_in_stream
from meshnet_node.head.configmap import Timing, explain, retry_delay
from meshnet_node.settings import HeadSettings, load


@given(st.lists(st.text(alphabet="ab\x85\u2028\r", min_size=1).map(str.encode), max_size=6), st.data())
def test_lines_are_whole_wherever_the_pieces_end(lines: list[bytes], data: st.DataObject) -> None:
    """Only a line feed ends a line: JSON may hold what Python would also split at."""
    lines = [line for line in lines if line.strip()]
    raw = b"".join(line + b"\n" for line in lines)
    buffer, got, at = LineBuffer(), [], 0
    while at < len(raw):
        size = data.draw(st.integers(1, 5))
        got += buffer.feed(raw[at : at + size])
        at += size
    assert got == lines


def test_a_line_without_an_end_is_not_kept_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apiserver, "LONGEST_LINE", 100)
    buffer = LineBuffer()
    assert buffer.feed(b"x" * 100) == []
    with pytest.raises(ApiServerError, match="more than"):
        buffer.feed(b"x")


def test_delays_grow_to_a_bound_and_are_spread() -> None:
    timing, error = Timing(first_delay=0.1, longest_delay=5.0), ApiServerError("gone")
    most = [retry_delay(failures, error, timing, lambda low, high: high) for failures in (0, 1, 2, 6, 7, 5000)]
    least = [retry_delay(failures, error, timing, lambda low, high: low) for failures in (0, 7)]
    assert most == [0.1, 0.2, 0.4, 5.0, 5.0, 5.0]
    assert least == [0.05, 2.5]


def test_what_the_server_asks_for_is_waited_for_and_never_longer_than_a_minute_of_it() -> None:
    asked = refusal(429, b'{"message": "slow down"}', {"retry-after": "7"})
    assert retry_delay(0, asked, Timing(), lambda low, high: low) == 7.0
    assert retry_delay(0, asked, Timing(), lambda low, high: high) == 10.5
    assert refusal(503, b"", {"retry-after": "999999"}).retry_after == 60.0
    assert refusal(503, b"", {"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT"}).retry_after is None


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"kind": "Status", "message": "no such thing", "code": 404}', "status 404: no such thing"),
        (b"<html>bad gateway</html>", "status 404: <html>bad gateway</html>"),
        (b"\xff" * 999, "status 404: "),
    ],
    ids=["its own words", "a proxy's words", "noise"],
)
def test_a_refusal_says_what_the_server_said(body: bytes, words: str) -> None:
    error = refusal(404, body, {})
    assert str(error).startswith(words)
    assert len(str(error)) < 300


def test_an_error_inside_a_watch_has_its_own_code() -> None:
    assert told_in_stream(b'{"code": 410, "reason": "Expired", "message": "too old"}').status == 410
    assert told_in_stream(b'"noise"').status == 0


def test_errors_that_a_person_can_mend_say_how() -> None:
    forbidden = explain(ApiServerError("status 403: no", status=403), "ns", "demo-routes")
    assert "Role with get and watch of ConfigMap demo-routes in ns" in forbidden
    assert "token" in explain(ApiServerError("status 401: no", status=401), "ns", "demo-routes")


@pytest.mark.parametrize(
    "wanted",
    [
        "configmap://",
        "configmap://demo-routes",
        "configmap://ns/",
        "configmap://a/b/c",
        "configmap://Ns/x",
        "configmap://n.s/x",
    ],
)
def test_a_wrong_place_says_how_to_write_it(wanted: str) -> None:
    with pytest.raises(ConfigError, match=r"MESHNET_ROUTES: .*configmap://NAMESPACE/NAME"):
        load(HeadSettings, {"model": "m", "routes": wanted})


def test_a_configmap_and_a_file_are_told_apart() -> None:
    assert HeadSettings(model="m", routes="configmap://ns/demo.v1-routes").routes_object == ("ns", "demo.v1-routes")
    assert HeadSettings(model="m", routes="/run/routes.json").routes_object is None


def test_outside_a_cluster_there_is_no_account(tmp_path: Path) -> None:
    settings = HeadSettings(model="m", routes="configmap://ns/demo-routes", account_folder=tmp_path)
    with pytest.raises(ConfigError, match="no ServiceAccount folder here"):
        find_account(settings)
    (tmp_path / "token").write_text("t")
    with pytest.raises(ConfigError, match="KUBERNETES_SERVICE_HOST: not set"):
        find_account(settings)


def test_a_token_or_authority_that_is_gone_is_an_error_to_try_again_after(tmp_path: Path) -> None:
    account = Account(tmp_path, "https://127.0.0.1:1")
    with pytest.raises(ApiServerError, match="token"):
        account.token()
    with pytest.raises(ApiServerError, match=r"ca\.crt"):
        account.authority()
    (tmp_path / "ca.crt").write_text("not a certificate")
    with pytest.raises(ApiServerError, match=r"ca\.crt"):
        account.authority()
