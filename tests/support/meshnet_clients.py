"""Clients of an OpenAI endpoint, each in its thread, who tell how their answers went."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from openai import OpenAI, Stream
from openai.types.chat import ChatCompletionChunk

CALL_TOKENS = 6
CALL_SECONDS = 0.2
CALL_TIMEOUT = 60.0


class Reader(threading.Thread):
    """One streamed answer of a real client without retries. `text`, `error` and `stall` tell how it went."""

    def __init__(self, client: OpenAI, prompt: str, tokens: int, model: str) -> None:
        super().__init__(daemon=True)
        self.client, self.prompt, self.tokens, self.model = client, prompt, tokens, model
        self.times: list[float] = []
        self.text = ""
        self.finish: str | None = None
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            stream: Stream[ChatCompletionChunk] = self.client.chat.completions.create(
                model=self.model,
                messages=[{"role": "user", "content": self.prompt}],
                temperature=0,
                max_tokens=self.tokens,
                stream=True,
                extra_body={"ignore_eos": True},
            )
            for chunk in stream:
                self._take(chunk)
        except Exception as error:  # the test's verdict, in its own thread
            self.error = error
        finally:
            self.client.close()

    def _take(self, chunk: ChatCompletionChunk) -> None:
        if chunk.choices:
            self.times.append(time.monotonic())
            self.text += chunk.choices[0].delta.content or ""
            self.finish = chunk.choices[0].finish_reason or self.finish

    @property
    def stall(self) -> float:
        """The longest pause between two parts, in seconds."""
        return max((late - early for early, late in zip(self.times, self.times[1:], strict=False)), default=0.0)


class Caller(threading.Thread):
    """Short requests, one after the other until `stop`, of a client without retries. `errors` tells what was not as in
    an undisturbed run. keeps: all by one connection, as a pool would; else each by another one.
    """

    def __init__(self, connect: Callable[[], OpenAI], model: str, prompt: str, expected: str, keeps: bool) -> None:
        super().__init__(daemon=True)
        self.connect, self.model, self.prompt, self.expected, self.keeps = connect, model, prompt, expected, keeps
        self.stop = threading.Event()
        self.answered = 0
        self.errors: list[str] = []

    def run(self) -> None:
        client = self.connect()
        while not self.stop.wait(CALL_SECONDS):
            try:
                if not self.keeps:
                    client.close()
                    client = self.connect()
                text = self._answer(client)
            except Exception as error:  # the test's verdict, in its own thread
                self.errors.append(f"{time.strftime('%X')} after {self.answered} answers: {error!r}")
            else:
                self.answered += 1
                if text != self.expected:
                    self.errors.append(f"another text: {text!r}")
        client.close()

    def _answer(self, client: OpenAI) -> str:
        answer = client.chat.completions.create(
            model=self.model,
            messages=[{"role": "user", "content": self.prompt}],
            temperature=0,
            max_tokens=CALL_TOKENS,
            extra_body={"ignore_eos": True},
        )
        return answer.choices[0].message.content or ""
