"""Every kind of loss in the middle of a stream: the client reads on, with the tokens of an undisturbed run.

The processes are real, the model is the demo model, the judge is transformers' generate. Each test ends with the check
that no shard holds a session or a byte of it. `make test` takes one of each kind that only real processes show; the
others have a fast twin in test_small_mesh_faults.py and run here in `make parity`.
"""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest
from meshnet_fleet import Answer, Fleet, kept_running, model_name, status_of, stream, wait_for
from meshnet_reference import Reference
from openai import OpenAI

from meshnet_node.local.child import Child

CUT = [(0, 14), (15, 29)]
TOKENS = 40
Prose = Callable[..., list[int]]


@pytest.fixture(scope="module")
def pairs(demo_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Two shards, two replicas of each, one head."""
    fleet = Fleet(demo_folder, tmp_path_factory.mktemp("pairs"))
    fleet.add_shards("a", CUT, replicas=2)
    fleet.add_head(MESHNET_KEEPALIVE_SECONDS="0.5")
    fleet.publish()
    yield from kept_running(fleet)


@pytest.fixture
def fleet(pairs: Fleet) -> Iterator[Fleet]:
    """All four shards are up before each test, and hold nothing after it."""
    for child in pairs.children:
        if child.pid is None:
            pairs.restart(child)
    pairs.publish()
    pairs.wait_ready()
    wait_for(lambda: all(shard["state"] == "ready" for shard in pairs.mesh()["shards"]), 30, "links to all shards")
    yield pairs
    for child in pairs.children:
        if child.pid is not None:
            pairs.kill(child, signal.SIGCONT)
    pairs.wait_idle()


def head_url(fleet: Fleet) -> str:
    return next(child.url for child in fleet.children if child.role == "head")


def serving(fleet: Fleet, layers: tuple[int, int]) -> Child:
    """The replica of that range that runs a generation now."""
    found = [shard for shard in fleet.mesh()["shards"] if tuple(shard["layers"]) == layers and shard["generations"]]
    assert found, f"no replica of {layers} runs a generation"
    return next(child for child in fleet.children if child.uid == found[0]["uid"])


def check(reference: Reference, prompt: list[int], answer: Answer, tokens: int = TOKENS) -> None:
    """The stream ended well, and gave what generate gives."""
    assert answer.error is None, answer.error
    assert (answer.status, answer.finish, answer.done) == (200, "length", True)
    reference.check(prompt, answer.ids, tokens)
    assert answer.text == reference.text(answer.ids)


def at_token(number: int, act: Callable[[], None]) -> Callable[[int], None]:
    """Run the fault when the client has seen so many tokens."""

    def on_token(seen: int) -> None:
        if seen == number:
            act()

    return on_token


@pytest.mark.parametrize(
    "layers",
    [pytest.param(CUT[0], id="first shard"), pytest.param(CUT[1], id="last shard", marks=pytest.mark.parity)],
)
def test_a_killed_shard_is_replaced_by_its_replica(
    fleet: Fleet, reference: Reference, prose: Prose, layers: tuple[int, int]
) -> None:
    prompt = prose(120, start=40 + layers[0])
    moment = random.randint(3, TOKENS - 5)
    answer = stream(head_url(fleet), prompt, TOKENS, at_token(moment, lambda: fleet.kill(serving(fleet, layers))))
    check(reference, prompt, answer)
    recovered = fleet.mesh()["recoveries"][-1]
    assert (recovered["layers"], recovered["cause"], recovered["kind"]) == (list(layers), "link_lost", "moved")
    assert recovered["replayed"] in range(120 + moment - 1, 120 + moment + 3), "only what that hop held is replayed"


@pytest.mark.parity
def test_both_ranges_lost_at_once(fleet: Fleet, reference: Reference, prose: Prose) -> None:
    prompt = prose(90, start=2)

    def kill_both() -> None:
        victims = [serving(fleet, layers) for layers in CUT]
        for victim in victims:
            fleet.kill(victim)

    check(reference, prompt, stream(head_url(fleet), prompt, TOKENS, at_token(7, kill_both)))


def test_a_hung_shard_is_left_when_a_replica_is_ready(fleet: Fleet, reference: Reference, prose: Prose) -> None:
    prompt = prose(60, start=3)
    answer = stream(
        head_url(fleet), prompt, TOKENS, at_token(9, lambda: fleet.kill(serving(fleet, CUT[0]), signal.SIGSTOP))
    )
    check(reference, prompt, answer)
    assert answer.longest_pause > 1.0, "the fault was not felt at all: it did not hit the serving process"
    assert fleet.mesh()["recoveries"][-1]["kind"] == "moved"


@pytest.mark.parity
def test_a_session_evicted_on_one_shard_only_is_replayed_there(
    fleet: Fleet, reference: Reference, prose: Prose
) -> None:
    prompt = prose(70, start=4)

    def evict() -> None:
        shard = serving(fleet, CUT[1])
        headers = {"Authorization": f"Bearer {fleet.token.read_text().strip()}"}
        (running,) = fleet.mesh()["sessions"]["list"]
        session = running["session"]
        assert httpx2.delete(f"{shard.url}/v1/sessions/{session}", headers=headers).status_code == 204

    check(reference, prompt, stream(head_url(fleet), prompt, TOKENS, at_token(11, evict)))
    recovered = fleet.mesh()["recoveries"][-1]
    assert (recovered["layers"], recovered["kind"]) == ([15, 29], "replay")


def test_loss_while_the_prompt_is_computed(fleet: Fleet, reference: Reference, prose: Prose) -> None:
    prompt = prose(900, start=5)
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(stream, head_url(fleet), prompt, 12)
        wait_for(lambda: fleet.mesh()["sessions"]["running"] == 1, 10, "the request to start")
        time.sleep(0.3)
        fleet.kill(serving(fleet, CUT[1]))
        answer = future.result(120)
    check(reference, prompt, answer, 12)


@pytest.mark.parity
def test_loss_while_a_loss_is_being_healed(fleet: Fleet, reference: Reference, prose: Prose) -> None:
    """Both replicas of a range die, the second one in the replay; the range comes back while the stream is held."""
    prompt = prose(400, start=6)

    def kill_twice() -> None:
        first = serving(fleet, CUT[0])
        second = next(c for c in fleet.children if c.layers == CUT[0] and c is not first)
        fleet.kill(first)

        def later() -> None:
            time.sleep(0.25)
            fleet.kill(second)
            fleet.restart(first)
            fleet.publish()

        threading.Thread(target=later).start()

    check(reference, prompt, stream(head_url(fleet), prompt, TOKENS, at_token(5, kill_twice)))


def test_a_range_without_any_process_holds_the_stream_with_comments(
    fleet: Fleet, reference: Reference, prose: Prose
) -> None:
    prompt = prose(30, start=30)

    def lose_the_range() -> None:
        victims = [child for child in fleet.children if child.layers == CUT[1]]
        for victim in victims:
            fleet.kill(victim)

        def later() -> None:
            time.sleep(2.0)
            fleet.restart(victims[0])
            fleet.publish()

        threading.Thread(target=later).start()

    answer = stream(head_url(fleet), prompt, TOKENS, at_token(6, lose_the_range))
    check(reference, prompt, answer)
    assert answer.comments >= 3
    assert answer.longest_pause > 2.0


def test_a_range_that_stays_away_ends_the_stream_with_an_error_and_done(fleet: Fleet, prose: Prose) -> None:
    """Held for MESHNET_HOLD_SECONDS, at least twice the time that the range took to load; then told, never cut off."""
    head = fleet.add_head("impatient", MESHNET_HOLD_SECONDS="1", MESHNET_KEEPALIVE_SECONDS="0.5")
    wait_for(lambda: status_of(f"{head.url}/ready") == 200, 60, "the second head")
    victims = [child for child in fleet.children if child.layers == CUT[0]]

    def lose_the_range() -> None:
        for victim in victims:
            fleet.kill(victim)

    answer = stream(head.url, prose(30), TOKENS, at_token(4, lose_the_range))
    assert answer.status == 200
    assert answer.error is not None
    assert (answer.error["code"], answer.error["type"]) == ("overloaded", "server_error")
    assert (answer.finish, answer.done) == (None, True)
    refused = stream(head.url, prose(30), TOKENS)
    assert refused.status == 503
    fleet.background.call(head.stop(5))
    fleet.children.remove(head)


def test_a_chat_through_the_official_client_reads_on_after_a_loss(fleet: Fleet) -> None:
    client = OpenAI(base_url=f"{head_url(fleet)}/v1", api_key="none", max_retries=0)
    question = [{"role": "user", "content": "What is the capital of France?"}]
    events = client.chat.completions.create(
        model="smollm2", messages=question, stream=True, temperature=0, stream_options={"include_usage": True}
    )
    text, usage = "", None
    for number, event in enumerate(events):
        if number == 3:
            fleet.kill(serving(fleet, CUT[1]))
        if event.choices:
            text += event.choices[0].delta.content or ""
        usage = event.usage or usage
    whole = client.chat.completions.create(model="smollm2", messages=question, temperature=0)
    assert text == whole.choices[0].message.content
    assert "Paris" in text
    assert usage is not None
    assert whole.usage is not None
    counts = [(found.prompt_tokens, found.completion_tokens, found.total_tokens) for found in (usage, whole.usage)]
    assert counts[0] == counts[1], "replayed work is not counted"


@pytest.mark.parity
def test_a_draining_endpoint_is_left_while_it_still_works(fleet: Fleet, reference: Reference, prose: Prose) -> None:
    prompt = prose(50, start=7)

    def drain() -> None:
        fleet.publish(states={serving(fleet, CUT[0]).name: "draining"})

    answer = stream(head_url(fleet), prompt, 100, at_token(5, drain))
    check(reference, prompt, answer, 100)
    assert fleet.mesh()["recoveries"][-1]["cause"] == "draining"


@pytest.mark.parity
def test_absence_from_the_table_moves_nothing_that_works(fleet: Fleet, reference: Reference, prose: Prose) -> None:
    prompt = prose(50, start=8)
    before = len(fleet.mesh()["recoveries"])

    def unlist() -> None:
        kept = fleet.layouts["a"]
        gone = serving(fleet, CUT[0])
        fleet.layouts["a"] = [child for child in kept if child is not gone]
        fleet.publish()
        fleet.layouts["a"] = kept

    answer = stream(head_url(fleet), prompt, TOKENS, at_token(5, unlist))
    check(reference, prompt, answer)
    assert len(fleet.mesh()["recoveries"]) == before


@pytest.mark.parity
def test_company_is_not_disturbed_by_a_loss(fleet: Fleet, reference: Reference, prose: Prose) -> None:
    """Eight streams, a shard killed among them: each ends with its own tokens."""
    prompts = [prose(20 + 9 * i, start=20 + i) for i in range(8)]
    killed = threading.Event()

    def kill_once() -> None:
        if not killed.is_set():
            killed.set()
            fleet.kill(serving(fleet, CUT[1]))

    with ThreadPoolExecutor(8) as pool:
        futures = [pool.submit(stream, head_url(fleet), prompt, TOKENS, at_token(10, kill_once)) for prompt in prompts]
        answers = [future.result(300) for future in futures]
    for prompt, answer in zip(prompts, answers, strict=True):
        check(reference, prompt, answer)


@pytest.mark.parity
def test_a_seeded_sample_is_the_same_with_and_without_a_loss(fleet: Fleet, prose: Prose) -> None:
    prompt = prose(40, start=9)
    sampling = {"temperature": 0.9, "top_p": 0.95, "seed": 1234, "presence_penalty": 0.4, "frequency_penalty": 0.2}
    quiet = stream(head_url(fleet), prompt, TOKENS, **sampling)
    victim = at_token(12, lambda: fleet.kill(serving(fleet, CUT[1])))
    disturbed = stream(head_url(fleet), prompt, TOKENS, victim, **sampling)
    assert quiet.error is None
    assert disturbed.error is None
    assert quiet.ids == disturbed.ids
    assert len(set(quiet.ids)) > 10, "too few distinct tokens to tell anything"


def test_case_42_a_client_that_leaves_frees_every_shard(fleet: Fleet, prose: Prose) -> None:
    body = {
        "model": model_name(head_url(fleet)),
        "prompt": prose(30),
        "max_tokens": 400,
        "ignore_eos": True,
        "stream": True,
    }
    with httpx2.stream("POST", f"{head_url(fleet)}/v1/completions", json=body, timeout=30) as response:
        for _ in zip(range(10), response.iter_lines(), strict=False):
            pass
    fleet.wait_idle(5)
