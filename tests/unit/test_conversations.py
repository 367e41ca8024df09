"""Which parked session a prompt goes on from: per key; adopted when continued, copied when only a start is shared."""

from __future__ import annotations

import pytest

from meshnet_node.head.conversations import Conversations, Parked, shared_length

CHAT_A = tuple(range(200))


def parked(session: str, tokens: tuple[int, ...], key: str = "") -> Parked:
    return Parked(session, key, tokens, (), ())


@pytest.mark.parametrize(
    ("left", "right", "length"),
    [((), (), 0), ((1, 2), (1, 2, 3), 2), ((1, 2, 3), (1, 9, 3), 1), ((5,), (6,), 0)],
)
def test_shared_length(left: tuple[int, ...], right: tuple[int, ...], length: int) -> None:
    assert shared_length(left, right) == length


def test_the_next_turn_adopts_and_takes_the_entry_off_the_list() -> None:
    conversations = Conversations()
    conversations.put(parked("a", CHAT_A))
    adoption = conversations.take("", [*CHAT_A, 7, 8, 9])
    assert adoption is not None
    assert (adoption.parked.session, adoption.at, adoption.take) == ("a", 200, "adopt")
    assert conversations.take("", [*CHAT_A, 7, 8, 9]) is None


def test_the_same_prompt_again_still_computes_its_last_position() -> None:
    conversations = Conversations()
    conversations.put(parked("a", CHAT_A))
    adoption = conversations.take("", CHAT_A)
    assert adoption is not None
    assert adoption.at == 199


def test_an_unrelated_chat_with_the_same_beginning_copies_and_leaves_the_entry() -> None:
    conversations = Conversations()
    conversations.put(parked("a", CHAT_A))
    adoption = conversations.take("", [*CHAT_A[:60], 999, 998])
    assert adoption is not None
    assert (adoption.at, adoption.take) == (60, "fork")
    again = conversations.take("", [*CHAT_A, 5])
    assert again is not None
    assert again.take == "adopt"


@pytest.mark.parametrize(
    ("key", "prompt"),
    [("other", [*CHAT_A, 1]), ("", [*CHAT_A[:20], 999])],
    ids=["another API key", "too little in common"],
)
def test_what_may_not_or_need_not_be_reused(key: str, prompt: list[int]) -> None:
    conversations = Conversations()
    conversations.put(parked("a", CHAT_A))
    assert conversations.take(key, prompt) is None


def test_the_longest_match_wins() -> None:
    conversations = Conversations()
    conversations.put(parked("short", CHAT_A[:100]))
    conversations.put(parked("long", CHAT_A[:150]))
    adoption = conversations.take("", [*CHAT_A, 1])
    assert adoption is not None
    assert adoption.parked.session == "long"
