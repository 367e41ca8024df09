"""A model's chat template, rendered as transformers' `apply_chat_template` renders it, without transformers.

A template comes with the model, so it runs in Jinja's immutable sandbox and under a deadline: each turn of a loop and
each macro call looks at the clock. The same variables, filters and block rules as the reference are offered
(tests/unit/test_text_template.py compares the two).

Must not know tokenizers. Raises TemplateRefused with the template's own words where it calls `raise_exception`, where
it is wrong, or where it takes too long.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from meshnet_node.errors import MeshnetError

SECONDS = 5.0
MAX_REPEAT = 1_000_000
RESERVED = frozenset({"messages", "tools", "documents", "add_generation_prompt"})

Message = dict[str, Any]


class TemplateRefused(MeshnetError):
    """The template can't render these messages; the text is meant for the client."""


class ChatTemplate:
    """A compiled template; `render` may be called from several threads at once."""

    def __init__(self, source: str, variables: Mapping[str, str], *, seconds: float = SECONDS) -> None:
        """`variables`: the named special tokens (bos_token, eos_token ...), visible to the template.

        Raises TemplateRefused where the source is not a template.
        """
        self._variables = dict(variables)
        self._seconds = seconds
        self._clock = threading.local()
        environment = _environment(self._tick)
        try:
            tree = environment.parse(source)
            self.literals = _literals(tree)
            _add_ticks(tree, environment)
            self._template = environment.from_string(tree)
        except jinja2.TemplateError as error:
            raise TemplateRefused(f"the model's chat template is not valid: {error}") from error

    def render(self, messages: Sequence[Message], options: Mapping[str, Any], *, prompt: bool = True) -> str:
        """The prompt's text. `options` become variables; `prompt` asks for the head of the assistant's turn."""
        self._clock.deadline = time.monotonic() + self._seconds
        try:
            return self._template.render(
                {**self._variables, **options},
                messages=[_aliased(message) for message in messages],
                tools=None,
                documents=None,
                add_generation_prompt=prompt,
            )
        except jinja2.TemplateError as error:
            raise TemplateRefused(
                f"the model's chat template refuses these messages: {error.message or type(error).__name__}"
            ) from error
        except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
            reason = type(error).__name__
            raise TemplateRefused(f"the model's chat template can't render these messages ({reason})") from error

    def _tick(self) -> str:
        """Called by the template at each turn of a loop."""
        if time.monotonic() > self._clock.deadline:
            raise jinja2.TemplateRuntimeError(f"it ran for more than {self._seconds:g} seconds")
        return ""


class _Sandbox(ImmutableSandboxedEnvironment):
    """The immutable sandbox, in which also repetition and powers can't eat the memory."""

    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        sizes = [len(side) if isinstance(side, str | list | tuple) else abs(side) for side in (left, right)]
        sequence = any(isinstance(side, str | list | tuple) for side in (left, right))
        if (operator == "**" and max(sizes) > 1000) or (sequence and sizes[0] * sizes[1] > MAX_REPEAT):
            raise jinja2.exceptions.SecurityError(f"operands of {operator} are too large")
        return super().call_binop(context, operator, left, right)


class _Generation(Extension):
    """`{% generation %}` marks the assistant's part for training; when prompting, its body is rendered as it is."""

    tags = {"generation"}  # noqa: RUF012 - the base class declares it so

    def parse(self, parser: Any) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


class _Namespace(Namespace):
    """Jinja's namespace without names that reach Python's internals."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # `self` may be an attribute's name
        attributes = dict(*args[1:], **kwargs)
        for name in attributes:
            _public(name)
        Namespace.__init__(args[0], attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _public(name)
        super().__setitem__(name, value)


class _Dict:
    """`dict(...)` in templates: makes dictionaries, and offers nothing else of the type."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


def _public(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError("a namespace's names may not begin with an underscore")


def _environment(tick: Callable[[], str]) -> ImmutableSandboxedEnvironment:
    environment = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
    environment.filters["tojson"] = _tojson
    environment.globals.update(
        raise_exception=_raise_exception,
        strftime_now=_strftime_now,
        namespace=_Namespace,
        dict=_Dict(),
        meshnet_tick=tick,
    )
    return environment


def _add_ticks(tree: nodes.Template, environment: jinja2.Environment) -> None:
    """Begins each body of a loop and of a macro with a look at the clock."""
    bodies: list[nodes.For | nodes.Macro] = [*tree.find_all(nodes.For), *tree.find_all(nodes.Macro)]
    for node in bodies:
        call = nodes.Call(nodes.Name("meshnet_tick", "load"), [], [], None, None)
        node.body.insert(0, nodes.Output([call]).set_lineno(node.lineno).set_environment(environment))


def _literals(tree: nodes.Template) -> str:
    """All text that the template itself writes or compares with, joined so that no match spans two pieces."""
    data = [node.data for node in tree.find_all(nodes.TemplateData)]
    data += [node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str)]
    return "\0".join(data)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes for HTML; models were trained on plain JSON.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def _aliased(message: Message) -> Message:
    """Earlier thinking under each of the names that templates read."""
    names = ("reasoning_content", "thinking", "reasoning")
    thought = next((message[name] for name in names if message.get(name) is not None), None)
    return message if thought is None else {"thinking": thought, **message, "reasoning_content": thought}
