"""Who is let in: clients by their key, heads and shards by the shard token."""

from __future__ import annotations

import base64
from collections.abc import Iterator

import openai
import pytest
from meshnet_site import MODEL, NAMESPACE, Site


@pytest.fixture
def keys(site: Site) -> Iterator[str]:
    """The MeshModel wants a key; which one."""
    key = "sk-of-this-test"
    site.apply(
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "chat-keys"}, "stringData": {"keys": f"{key}\n"}}
    )
    site.patch([{"op": "add", "path": "/spec/head/apiKeySecret", "value": {"name": "chat-keys"}}])
    site.settle()
    yield key
    site.patch([{"op": "remove", "path": "/spec/head/apiKeySecret"}])
    site.settle()


def test_only_the_right_key_gets_an_answer(site: Site, keys: str) -> None:
    for wrong in ("none", "sk-of-another"):
        with pytest.raises(openai.AuthenticationError):
            _ask(site, wrong)
    assert _ask(site, keys)


def test_a_shard_takes_no_stranger(site: Site) -> None:
    """The debugging route wants the shard token, which a client does not have."""
    (pod,) = site.pods("front")
    status, _ = site.post(f"http://{pod['status']['podIP']}:8100/v1/forward", b"x", {"Authorization": "Bearer wrong"})
    assert status in (401, 403)


def test_a_second_shard_token_is_taken_while_streams_go_on(site: Site) -> None:
    """The first step of a rotation: a new pod reads both, heads and old pods know the old one still."""
    name = f"{MODEL}-mesh"
    right = site.read("get", "secret", name)["data"]["token"]
    both = base64.b64encode(base64.b64decode(right).strip() + b"\nanother-token-for-later\n").decode()
    site.cluster.kubectl(
        f"--namespace={NAMESPACE}", "patch", "secret", name, f'--patch={{"data":{{"token":"{both}"}}}}'
    )
    with site.streams("a second shard token is added"):
        site.delete_at_once(site.pods("back")[0])
    site.cluster.kubectl(
        f"--namespace={NAMESPACE}", "patch", "secret", name, f'--patch={{"data":{{"token":"{right}"}}}}'
    )


def _ask(site: Site, key: str) -> str:
    client = site.client(key=key)
    answer = client.chat.completions.create(
        model=MODEL, max_tokens=8, temperature=0, messages=[{"role": "user", "content": "Hello"}]
    )
    return answer.choices[0].message.content or ""
