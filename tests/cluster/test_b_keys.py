"""Who is let in: clients by their key, heads and shards by the shard token."""

from __future__ import annotations

import base64
from collections.abc import Iterator

import openai
import pytest
from cluster.release import MODEL, NAMESPACE
from meshnet_site import Site

# Prints the status of a request with that token.
POST = """
import sys, urllib.error, urllib.request
request = urllib.request.Request(sys.argv[1], b"x", {"Authorization": f"Bearer {sys.argv[2]}"})
try:
    print(urllib.request.urlopen(request, timeout=10).status)
except urllib.error.HTTPError as error:
    print(error.code)
"""


@pytest.fixture
def keys(site: Site) -> Iterator[str]:
    """The MeshModel wants a key; which one."""
    key = "sk-of-this-test"
    site.apply(
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "chat-keys"}, "stringData": {"keys": f"{key}\n"}}
    )
    site.patch([{"op": "add", "path": "/spec/head/apiKeySecret", "value": {"name": "chat-keys"}}])
    try:
        site.settle()
        yield key
    finally:
        site.patch([{"op": "remove", "path": "/spec/head/apiKeySecret"}])
        site.settle()


def test_only_the_right_key_gets_an_answer(site: Site, keys: str) -> None:
    for wrong in ("none", "sk-of-another"):
        with pytest.raises(openai.AuthenticationError):
            _ask(site, wrong)
    assert _ask(site, keys)


def test_a_shard_takes_no_stranger(site: Site) -> None:
    """The debugging route wants the shard token, which a client does not have; asked from where the network lets it."""
    (shard,), (head,) = site.pods("front"), site.pods("head")
    url = f"http://{shard['status']['podIP']}:8100/v1/forward"
    assert site.run_in(head, "python3", "-c", POST, url, "wrong").strip() in ("401", "403")


def test_a_second_shard_token_is_taken_while_streams_go_on(site: Site) -> None:
    """The first step of a rotation: a new pod reads both, heads and old pods know the old one still."""
    name = f"{MODEL}-mesh"
    right = site.read("get", "secret", name)["data"]["token"]
    both = base64.b64encode(base64.b64decode(right).strip() + b"\nanother-token-for-later\n").decode()
    patch = (f"--namespace={NAMESPACE}", "patch", "secret", name)
    site.cluster.kubectl(*patch, f'--patch={{"data":{{"token":"{both}"}}}}')
    try:
        with site.streams("a second shard token is added") as readers:
            before = site.recoveries()
            site.delete_at_once(site.in_use("back"))
            site.struck(readers, before)
    finally:
        site.cluster.kubectl(*patch, f'--patch={{"data":{{"token":"{right}"}}}}')


def _ask(site: Site, key: str) -> str:
    client = site.client(key=key)
    answer = client.chat.completions.create(
        model=MODEL, max_tokens=8, temperature=0, messages=[{"role": "user", "content": "Hello"}]
    )
    return answer.choices[0].message.content or ""
