"""GET /metrics: the families that dashboards know, counted once per fact."""

from __future__ import annotations

import asyncio

from meshnet_heads import Heads, until
from prometheus_client import Counter
from prometheus_client.parser import text_string_to_metric_families

from meshnet_node.head.app import create_app
from meshnet_node.metrics import new_registry
from meshnet_node.settings import HeadSettings


async def test_counts_of_a_known_history(heads: Heads) -> None:
    head = await heads.start("a b c")
    prompt = (await head.chat()).json()["usage"]["prompt_tokens"]
    await head.chat(stream=True)
    await head.chat(max_tokens=2)
    await head.chat(temperature=9)
    head.backend.fail_at = 1
    await head.chat()
    await head.is_idle()
    reply = await head.get("/metrics")
    assert reply.headers["content-type"].startswith("text/plain")
    values = {
        (sample.name, sample.labels.get("finished_reason") or sample.labels.get("code")): sample.value
        for family in text_string_to_metric_families(reply.body.decode())
        for sample in family.samples
    }
    said = len(heads.text.encode("a b c", special=False)) + 1
    assert values["meshnet_prompt_tokens_total", None] == 4 * prompt
    assert values["meshnet_generation_tokens_total", None] == 2 * said + 2 + 1
    assert values["meshnet_request_success_total", "stop"] == 2
    assert values["meshnet_request_success_total", "length"] == 1
    assert values["meshnet_request_success_total", "error"] == 1
    assert values["meshnet_request_rejections_total", "400"] == 1
    assert values["meshnet_request_rejections_total", "503"] == 1
    assert values["meshnet_time_to_first_token_seconds_count", None] == 4
    assert values["meshnet_inter_token_latency_seconds_count", None] == 2 * (said - 1) + 1
    assert values["meshnet_e2e_request_latency_seconds_count", None] == 4
    assert values["meshnet_request_queue_time_seconds_count", None] == 4
    assert (values["meshnet_requests_running", None], values["meshnet_requests_waiting", None]) == (0, 0)


async def test_running_and_waiting_are_told_apart(heads: Heads) -> None:
    head = await heads.start("a b", pause_at=0)
    running = asyncio.ensure_future(head.chat())
    await until(lambda: head.backend.open == 1)
    head.backend.start_gate = asyncio.Event()
    waiting = asyncio.ensure_future(head.chat())
    await until(lambda: len(head.backend.requests) == 2)
    text = (await head.get("/metrics")).body.decode()
    assert 'meshnet_requests_running{model_name="smollm2"} 1.0' in text
    assert 'meshnet_requests_waiting{model_name="smollm2"} 1.0' in text
    head.backend.start_gate.set()
    head.backend.go.set()
    assert [reply.status for reply in await asyncio.gather(running, waiting)] == [200, 200]


async def test_the_meshs_own_metrics_stand_beside(heads: Heads) -> None:
    registry = new_registry()
    Counter("meshnet_recoveries_of_a_test", "x", registry=registry)
    head = await heads.start()
    settings = HeadSettings(model="m", routes="unused")
    app = create_app(settings, heads.text, head.backend, registry)
    assert app.state.api.metrics.registry is registry
