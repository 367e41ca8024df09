"""Chat answers in one piece, through the real client."""

from __future__ import annotations

from meshnet_heads import Heads

MESSAGES = [{"role": "user", "content": "What is the capital of France?"}]


async def test_the_answer_has_text_reason_and_usage(heads: Heads) -> None:
    head = await heads.start("Paris is the capital.")
    reply = await head.client.chat.completions.create(model="smollm2", messages=MESSAGES)
    assert reply.choices[0].message.content == "Paris is the capital."
    assert reply.choices[0].finish_reason == "stop"
