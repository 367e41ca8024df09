"""The demo model, cut in any way, says what transformers' generate says, token for token in float32."""

from __future__ import annotations

from typing import Any

import meshnet_testing_models as models
import pytest
import torch
from meshnet_testing_chain import Chain, even_cut
from meshnet_testing_demo import demo_folder
from transformers import AutoTokenizer

QUESTION = "Explain in a few sentences why the sky is blue, and why sunsets are red."
NEW = 48
CUTS = (
    even_cut(30, 2),
    [(0, 22), (23, 24), (25, 29)],
    *(pytest.param(cut, marks=pytest.mark.parity) for cut in (even_cut(30, 1), even_cut(30, 5), [(0, 0), (1, 29)])),
)


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def reference() -> Any:
    return models.uncut(demo_folder())


@pytest.fixture(scope="module")
def question() -> list[int]:
    tokenizer = AutoTokenizer.from_pretrained(demo_folder())
    messages = [{"role": "user", "content": QUESTION}]
    return list(tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"])


@pytest.fixture(scope="module")
def answer(reference: Any, question: list[int]) -> list[int]:
    return models.greedy(reference, question, NEW)


@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_any_cut_gives_the_tokens_of_generate(
    cut: list[tuple[int, int]], question: list[int], answer: list[int]
) -> None:
    chain = Chain.load(demo_folder(), cut)
    session = chain.open(question, len(question) + NEW)
    assert chain.generate(session, NEW, chunk=16) == answer


@pytest.mark.parity
@pytest.mark.parametrize("shards", [1, 2, 3, 5])
@pytest.mark.parametrize("length", [1, 2, 129, 700, 1500])
def test_prompts_of_any_length_and_long_answers(length: int, shards: int, reference: Any) -> None:
    generator = torch.Generator().manual_seed(length)
    ids = torch.randint(3, 49152, (length,), generator=generator).tolist()
    want = models.greedy(reference, ids, 300)
    chain = Chain.load(demo_folder(), even_cut(30, shards))
    assert chain.generate(chain.open(ids, length + 300), 300) == want


def test_a_lost_hop_is_brought_up_by_one_chunk_and_the_answer_goes_on(question: list[int], answer: list[int]) -> None:
    chain = Chain.load(demo_folder(), even_cut(30, 2))
    session = chain.open(question, len(question) + NEW)
    chain.generate(session, 20)
    for hop in (1, 0):
        chain.lose(session, hop)
    while len(session.tokens) < len(question) + NEW:
        (logits,) = chain.decode([session])
        session.tokens.append(int(logits.argmax()))
    assert session.tokens[len(question) :] == answer
