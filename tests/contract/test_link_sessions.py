"""Sessions over a link: duplicates, attempts, misses, closes in mid-run, adoption, leases, capacity, ownership."""

from __future__ import annotations

import asyncio
from pathlib import Path

from meshnet_shard_server import Head, ShardServer, dial, make_row, shard_server
from meshnet_testing_models import prompt

from meshnet_node.wire.dial import dial as dial_link
from meshnet_node.wire.frames import Close, Closed, Error, Forward, Open, Opened, Result, Row, RowResult


def code(result: RowResult) -> str:
    return "ok" if result.error is None else result.error.code


def steps(server: ShardServer) -> int:
    return server.look(lambda shard: shard.loaded.engine.steps)


async def opened(server: ShardServer, session: str, ids: list[int], instance: str = "head-1") -> Head:
    """A connection, and on it a session that holds `ids`."""
    head = await dial(server, instance)
    assert isinstance(await head.open(session), Opened)
    assert code(await head.row(make_row(session, ids, 0, len(ids), want="last"))) == "ok"
    return head


async def done(head: Head, session: str, attempt: int = 1) -> None:
    assert isinstance(await head.close(Close(session, attempt)), Closed)
    await head.socket.close()


async def test_the_same_row_again_is_answered_and_not_run(whole: ShardServer) -> None:
    ids = prompt(20, 1)
    head = await opened(whole, "dup", ids)
    row = make_row("dup", [*ids, 5], 20, 1, 1, want="last")
    first = await head.row(row)
    before = steps(whole)
    again = await head.row(row)
    assert again == first
    assert steps(whole) == before
    await done(head, "dup")


async def test_the_reply_that_a_dead_connection_missed_is_still_there(whole: ShardServer) -> None:
    ids = prompt(20, 2)
    head = await opened(whole, "lost", ids)
    row = make_row("lost", [*ids, 5], 20, 1, 1, want="last")
    await head.send(Forward([row]))
    await head.socket.close()
    head = await dial(whole)
    answer = await head.open("lost", attempt=1)
    assert answer == Opened("lost", 1, 21)
    before = steps(whole)
    assert code(await head.row(row)) == "ok"
    assert steps(whole) == before
    await done(head, "lost")


async def test_a_miss_says_where_to_go_on_and_content_is_compared(whole: ShardServer) -> None:
    ids = prompt(30, 3)
    head = await opened(whole, "miss", ids[:20])
    ahead = await head.row(make_row("miss", ids, 25, 1, 1))
    assert ahead.error is not None
    assert (ahead.error.code, ahead.error.have) == ("cache_miss", 20)
    other = [ids[0] + 1, *ids[1:]]
    wrong = await head.row(make_row("miss", other, 20, 1, 2))
    assert wrong.error is not None
    assert (wrong.error.code, wrong.error.have) == ("cache_miss", 0)
    back = await head.row(make_row("miss", ids, 10, 5, 3))
    assert code(back) == "ok"
    assert await head.open("miss", attempt=1) == Opened("miss", 1, 15)
    await done(head, "miss")


async def test_a_higher_attempt_makes_queued_rows_stale(whole: ShardServer) -> None:
    ids = prompt(120, 4)
    head = await dial(whole)
    await head.open("attempts")
    await head.send(Forward([make_row("attempts", ids, 0, 100), make_row("attempts", ids, 100, 4, 1)]))
    await head.send(Forward([make_row("attempts", ids, 0, 10, 0, attempt=2)]))
    results = {(r.attempt, r.step): code(r) for r in await head.results(3)}
    assert results[1, 1] == "stale"
    assert results[1, 0] in ("ok", "stale")
    assert results[2, 0] == "ok"
    assert code(await head.row(make_row("attempts", ids, 10, 1, 9, attempt=1))) == "stale"
    await done(head, "attempts", 2)


async def test_a_close_in_the_middle_of_a_long_row_answers_it_and_frees_all(whole: ShardServer) -> None:
    ids = prompt(400, 5)
    head = await dial(whole)
    await head.open("cancel", positions=500)
    await head.send(Forward([make_row("cancel", ids, 0, 400, want="last"), make_row("cancel", ids, 399, 1, 1)]))
    await asyncio.sleep(0.01)
    await head.send(Close("cancel", 1))
    answers: list[str] = []
    closed = False
    while not (closed and len(answers) == 2):
        frame = await head.receive()
        if isinstance(frame, Result):
            answers += [code(row) for row in frame.rows]
        else:
            assert isinstance(frame, Closed)
            closed = True
    assert answers == ["closed", "closed"]
    assert whole.look(lambda shard: shard.loaded.engine.store.find("cancel")) is None
    late = await head.row(make_row("cancel", ids, 0, 5, 2))
    assert code(late) == "closed"
    assert isinstance(await head.open("cancel", attempt=1), Error)
    await head.socket.close()


async def test_a_new_open_does_not_wait_for_the_end_of_a_long_row(whole: ShardServer) -> None:
    ids = prompt(400, 6)
    head = await dial(whole)
    await head.open("reset", positions=500)
    await head.send(Forward([make_row("reset", ids, 0, 400)]))
    await asyncio.sleep(0.01)
    await head.send(Open("reset", 2, 0, 500))
    frames = [await head.receive(), await head.receive()]
    answer = next(frame for frame in frames if isinstance(frame, Opened))
    result = next(frame for frame in frames if isinstance(frame, Result))
    assert answer.have < 400
    assert code(result.rows[0]) == "stale"
    rest = await head.row(make_row("reset", ids, answer.have, 400 - answer.have, 0, attempt=2, want="last"))
    assert code(rest) == "ok"
    await done(head, "reset", 2)


async def test_decode_goes_on_beside_a_long_prompt(whole: ShardServer) -> None:
    """Between two decode rows at most one piece of the prompt runs, so both end about together."""
    long_ids, ids = prompt(480, 7), prompt(12, 8)
    bulk = await dial(whole)
    await bulk.open("long", positions=500)
    head = await opened(whole, "short", ids)
    await bulk.send(Forward([make_row("long", long_ids, 0, 480, want="last")]))
    before = steps(whole)
    decoded = 0
    waiting = asyncio.create_task(bulk.results(1))
    while not waiting.done() and decoded < 60:
        result = await head.row(make_row("short", ids, len(ids) - 1, 1, decoded + 1, want="last"))
        assert result.token is not None, result.error
        ids.append(result.token.id)
        decoded += 1
        await asyncio.sleep(0)
    await waiting
    assert decoded >= 8, "decode rows were served while the prompt's 30 pieces ran"
    assert steps(whole) - before <= 30 + decoded + 1
    await done(bulk, "long")
    await done(head, "short")


async def test_adoption_and_fork_over_the_wire(whole: ShardServer) -> None:
    ids = prompt(40, 9)
    head = await opened(whole, "turn-1", ids)
    await head.close(Close("turn-1", 1, keep=True))
    assert await head.open("copy", source="turn-1", at=40, take="fork") == Opened("copy", 1, 40)
    assert await head.open("turn-2", source="turn-1", at=25) == Opened("turn-2", 1, 25)
    assert await head.open("turn-3", source="turn-1", at=25) == Opened("turn-3", 1, 0)
    assert code(await head.row(make_row("turn-2", ids, 25, 15, want="last"))) == "ok"
    assert code(await head.row(make_row("copy", [*ids, 9], 40, 1, want="last"))) == "ok"
    for session in ("copy", "turn-2"):
        await head.close(Close(session, 1))
    await done(head, "turn-3")


async def test_a_session_belongs_to_the_head_that_opened_it(whole: ShardServer) -> None:
    ids = prompt(10, 10)
    head = await opened(whole, "mine", ids)
    other = await dial(whole, "head-2")
    refused = await other.open("mine", attempt=9)
    assert isinstance(refused, Error)
    assert refused.code == "not_owner"
    assert code(await other.row(make_row("mine", [*ids, 1], 10, 1, 1))) == "not_owner"
    answer = await other.close(Close("mine", 9))
    assert isinstance(answer, Error)
    assert answer.code == "not_owner"
    await other.socket.close()
    assert code(await head.row(make_row("mine", [*ids, 1], 10, 1, 1))) == "ok"
    await done(head, "mine")


async def test_two_connections_of_one_head_share_its_sessions(whole: ShardServer) -> None:
    ids = prompt(20, 11)
    decode = await opened(whole, "shared", ids)
    bulk = await dial(whole)
    assert code(await bulk.row(make_row("shared", [*ids, 1, 2], 20, 2, 1))) == "ok"
    assert code(await decode.row(make_row("shared", [*ids, 1, 2, 3], 22, 1, 2, want="last"))) == "ok"
    await bulk.socket.close()
    await done(decode, "shared")


async def test_pings_keep_the_lease_and_silence_ends_it(model: Path) -> None:
    with shard_server(model, lease_seconds=0.6, kv_ttl_seconds=1.5) as server:
        ids = prompt(10, 12)
        head = await opened(server, "leased", ids)
        for _ in range(6):
            assert (await head.ping()).active == 1
            await asyncio.sleep(0.2)
        await asyncio.sleep(1.2)
        other = await dial(server, "head-2")
        pong = await other.ping()
        assert (pong.active, pong.sessions) == (0, 1)
        assert code(await head.row(make_row("leased", [*ids, 1], 10, 1, 1))) == "ok"
        assert (await other.ping()).active == 1
        await asyncio.sleep(2.8)
        assert (await other.ping()).sessions == 0
        assert code(await head.row(make_row("leased", [*ids, 1, 2], 11, 1, 2))) == "cache_miss"
        server.check_idle()


async def test_the_session_after_the_last_place_is_refused_and_none_is_disturbed(whole: ShardServer) -> None:
    head = await dial(whole)
    ids = prompt(8, 13)
    for n in range(6):
        assert isinstance(await head.open(f"place-{n}"), Opened)
    refused = await head.open("one-too-many")
    assert isinstance(refused, Error)
    assert refused.code == "over_capacity"
    assert isinstance(await head.open("recovering", recovery=True), Opened)
    for n in range(6):
        assert code(await head.row(make_row(f"place-{n}", ids, 0, 8, want="last"))) == "ok"
    for session in [*(f"place-{n}" for n in range(6)), "recovering"]:
        await head.close(Close(session, 1))
    assert (await head.ping()).active == 0
    await head.socket.close()


async def test_one_evicted_session_does_not_fail_its_group(whole: ShardServer) -> None:
    ids = prompt(10, 14)
    head = await opened(whole, "stays", ids)
    await head.open("goes")
    await head.row(make_row("goes", ids, 0, 10))
    await head.close(Close("goes", 1))
    rows: list[Row] = [make_row(name, [*ids, 1], 10, 1, 1, want="last") for name in ("goes", "stays")]
    await head.send(Forward(rows))
    found = {result.session: code(result) for result in await head.results(2)}
    assert found == {"goes": "closed", "stays": "ok"}
    await done(head, "stays")


async def test_a_close_that_is_asked_twice_is_answered_twice(whole: ShardServer) -> None:
    link = await dial_link(f"127.0.0.1:{whole.port}", "head-1", (b"",))
    await link.open(Open("twice", 1, 0, 20))
    async with asyncio.timeout(10):
        await asyncio.gather(link.close_session(Close("twice", 1)), link.close_session(Close("twice", 1)))
    await link.aclose()
