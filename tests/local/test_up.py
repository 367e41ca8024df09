"""`meshnet up` as a user runs it: the real command, real processes, a tiny model."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pytest
from meshnet_fleet import Answer, stream
from meshnet_tiny import LAYERS, VOCABULARY
from meshnet_up import Up, alive, running, wait_gone

PROMPT = [72 + number % 30 for number in range(60)]
TOKENS = 120


@pytest.fixture(scope="module")
def up(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """Two shards, served once for the tests that put everything right again."""
    with running(tmp_path_factory.mktemp("up"), "--model", str(tiny), "--dtype", "float32") as command:
        yield command


@pytest.fixture(scope="module")
def undisturbed(up: Up) -> Answer:
    """What the mesh says when nothing happens."""
    return stream(up.url, PROMPT, TOKENS)


def disturb(up: Up, act: Callable[[], None]) -> Answer:
    """The same stream, with something done after the tenth token."""
    return stream(up.url, PROMPT, TOKENS, lambda seen: act() if seen == 10 else None)


def same(answer: Answer, expected: Answer) -> None:
    assert answer.error is None, answer.error
    assert (answer.finish, answer.done) == ("length", True)
    assert answer.ids == expected.ids
    assert len(set(answer.ids)) > 20, "too few distinct tokens to tell anything"


@pytest.mark.timeout(300)
def test_it_says_how_to_talk_to_it(up: Up) -> None:
    assert "starting tiny (6 layers): a head and 2 shards" in up.output
    before = up.output.split(" is served at ")[0]
    assert "shard-0 is ready" in before
    assert "shard-1 is ready" in before
    assert f"curl -N {up.url}/v1/chat/completions" in up.output
    assert f'base_url="{up.url}/v1"' in up.output
    assert "layers 0 to 2, layers 3 to 5" in up.output


@pytest.mark.timeout(300)
def test_the_state_file_names_every_process(up: Up) -> None:
    (head,) = up.of_role("head")
    assert (head["url"], head["layers"]) == (up.url, None)
    shards = up.of_role("shard")
    assert [shard["layers"] for shard in shards] == [[0, 2], [3, LAYERS - 1]]
    for process in (head, *shards):
        assert alive(process["pid"])
        assert httpx2.get(f"{process['url']}/healthz").status_code == 200
        assert Path(process["log"]).is_file()
    token = Path(up.state()["token_file"])
    assert token.stat().st_mode & 0o777 == 0o600


@pytest.mark.timeout(400)
def test_an_answer_goes_on_when_its_only_shard_is_killed(up: Up, undisturbed: Answer) -> None:
    before = up.shard(1)
    answer = disturb(up, lambda: os.kill(before["pid"], signal.SIGKILL))
    same(answer, undisturbed)
    after = up.wait_replaced(1, before["pid"])
    assert after["url"] == before["url"], "a shard comes back at its address"
    assert after["uid"] != before["uid"]
    assert after["restarts"] == before["restarts"] + 1


@pytest.mark.timeout(400)
def test_a_shard_that_hangs_is_killed_and_replaced(up: Up, undisturbed: Answer) -> None:
    before = up.shard(0)
    answer = disturb(up, lambda: os.kill(before["pid"], signal.SIGSTOP))
    same(answer, undisturbed)
    up.wait_replaced(0, before["pid"])
    assert f"shard-0 (pid {before['pid']}) has been silent for 6 s: killed" in up.output
    wait_gone([before["pid"]])


@pytest.mark.timeout(300)
def test_ctrl_c_leaves_no_process_behind_even_while_it_answers(tiny: Path, tmp_path: Path) -> None:
    with running(tmp_path, "--model", str(tiny), "--shards", "1", "--dtype", "float32") as up:
        pids = up.pids()
        assert len(pids) == 2
        body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 1500, "ignore_eos": True, "stream": True}
        with httpx2.stream("POST", f"{up.url}/v1/completions", json=body, timeout=30) as response:
            next(response.iter_lines())
            assert up.interrupt() == 0
        wait_gone(pids)
        assert up.output.rstrip().endswith("stopping")
        assert up.pids() == []
        assert not Path(up.state()["token_file"]).exists()


@pytest.mark.timeout(300)
def test_a_killed_parent_takes_its_processes_with_it(tiny: Path, tmp_path: Path) -> None:
    with running(tmp_path, "--model", str(tiny), "--shards", "1", "--dtype", "float32") as up:
        pids = up.pids()
        up.process.kill()
        up.process.wait(10)
        wait_gone(pids)


@pytest.mark.timeout(300)
def test_a_model_that_a_shard_refuses_ends_it_with_the_shards_words(tiny: Path, tmp_path: Path) -> None:
    """The cut is right by the config, but the weights are not there."""
    broken = tmp_path / "broken"
    broken.mkdir()
    for file in tiny.iterdir():
        content = file.read_bytes()
        (broken / file.name).write_bytes(content[:2000] if file.suffix == ".safetensors" else content)
    up = Up(tmp_path, "--model", str(broken), "--shards", "1")
    assert up.process.wait(150) == 2
    assert "shard-0 does not keep running (exit codes 2). Its log ends:" in up.output
    assert "model.safetensors" in up.output.split("Its log ends:")[1]
    assert "Traceback" not in up.output
    assert up.pids() == []


@pytest.mark.timeout(300)
def test_a_shard_that_keeps_ending_before_it_is_ready_ends_it(tiny: Path, tmp_path: Path) -> None:
    up = Up(tmp_path, "--model", str(tiny), "--shards", "1")
    killed: set[int] = set()
    deadline = time.monotonic() + 120
    while up.process.poll() is None and time.monotonic() < deadline:
        pid = up.shard(0)["pid"] if up.state_file.exists() else None
        if pid is not None and pid not in killed:
            os.kill(pid, signal.SIGKILL)
            killed.add(pid)
        time.sleep(0.02)
    assert up.process.wait(20) == 2
    assert len(killed) == 3
    assert "shard-0 does not keep running (exit codes -9, -9, -9)" in up.output


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--shards", "99"], "--shards 99: the model has 6 layers, so 1 to 6 shards are possible"),
        (["--layers", "0-2"], "--layers: layer 3 is in no range; the model's last layer is 5"),
        (["--layers", "0-2,4-5"], "--layers: layer 3 is in no range"),
        (["--layers", "0-9"], "--layers: 0-9 is outside the model's layers 0 to 5"),
        (["--layers", "front"], "--layers: 'front' is not START-END, for example 0-14,15-29"),
        (["--replicas", "0"], "--replicas 0: at least 1 process per range is needed"),
        (["--port", "70000"], "--port 70000: ports are numbers from 1 to 65535"),
        (["--model", "/there/is/no/such/model"], "/there/is/no/such/model does not exist"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_command_line_is_one_sentence(tiny: Path, arguments: list[str], sentence: str) -> None:
    command = [sys.executable, "-m", "meshnet_node", "up", "--model", str(tiny), *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == f"meshnet: {sentence}\n"


def test_a_port_that_is_taken_is_one_sentence(up: Up, tiny: Path) -> None:
    command = [sys.executable, "-m", "meshnet_node", "up", "--model", str(tiny), "--port", str(up.port)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 2
    assert ended.stderr == f"meshnet: --port {up.port} can't be used: Address already in use; choose another\n"


def test_the_prompts_of_these_tests_are_tokens_of_the_model() -> None:
    assert max(PROMPT) < VOCABULARY
