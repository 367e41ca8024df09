"""Our rendering of chat templates beside transformers' `apply_chat_template`, the reference for every model."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from meshnet_node.text.template import ChatTemplate, TemplateRefused

SYSTEM = {"role": "system", "content": "Be brief & <kind>."}
USER = {"role": "user", "content": "  Hi \"there\" 'you' é 你好 \n"}
ASSISTANT = {"role": "assistant", "content": "Hello."}
CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "add", "arguments": {"b": 1, "a": "<é>"}}}],
}
TOOL = {"role": "tool", "content": "3", "tool_call_id": "c1", "name": "add"}
CONVERSATIONS = {
    "one turn": [USER],
    "with system": [SYSTEM, USER],
    "three turns": [SYSTEM, USER, ASSISTANT, USER],
    "with a call": [USER, CALL, TOOL, USER],
    "thinking": [USER, {**ASSISTANT, "reasoning_content": "hm"}, USER],
}

LLAMA = """{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|head|>system<|tail|>\\n\\n" + system_message + "<|eot|>" }}
{%- for message in messages %}
    {%- if 'tool_calls' in message %}
        {%- for call in message.tool_calls %}
            {{- '<|head|>assistant<|tail|>\\n\\n{"name": "' + call.function.name + '", ' }}
            {{- '"parameters": ' }}{{- call.function.arguments | tojson }}{{- "}<|eot|>" }}
        {%- endfor %}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|head|>ipython<|tail|>\\n\\n" }}{{- message.content | tojson }}{{- "<|eot|>" }}
    {%- else %}
        {{- '<|head|>' + message['role'] + '<|tail|>\\n\\n' + message['content'] | trim + '<|eot|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|head|>assistant<|tail|>\\n\\n' }}{%- endif %}
"""
CHATML = """{% for message in messages %}
  {% if loop.first and message.role != 'system' %}
{{ '<|im_start|>system\\nYou help.<|im_end|>\\n' }}
  {% endif %}
{{ '<|im_start|>' ~ message.role ~ '\\n' }}
{%- if message.reasoning_content is defined and not loop.last %}
{{- '<think>' + message.reasoning_content + '</think>' }}{% endif %}
{% if message.role == 'assistant' %}{% generation %}{{ message.content }}{% endgeneration %}{% else %}
{{- message.content }}{% endif %}
{{ '<|im_end|>\\n' }}
{% endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and not enable_thinking %}
{{- '<think>\\n\\n</think>\\n' }}{% endif %}{% endif %}"""
GEMMA = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{%- for message in messages %}
{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}
{%- set role = 'model' if message['role'] == 'assistant' else message['role'] %}
{{- '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{'<start_of_turn>model\\n'}}{% endif %}"""
MISTRAL = """{%- set ns = namespace(system='', index=0) %}
{%- for message in messages %}
    {%- if message.role == 'system' %}{% set ns.system = message.content %}{% continue %}{% endif %}
    {%- if message.role == 'user' %}
        {{- (bos_token if ns.index == 0 else '') + '[INST] ' }}
        {%- if ns.system and loop.last %}{{- ns.system + '\\n\\n' }}{% endif %}
        {{- message.content + '[/INST]' }}
    {%- elif message.role == 'assistant' and message.tool_calls is not defined %}
        {{- ' ' + message.content + eos_token }}
    {%- elif message.tool_calls is defined %}
        {%- for call in message.tool_calls %}{{- '[TOOL_CALLS]' + call|tojson(indent=2) }}{% break %}{% endfor %}
    {%- else %}{{- dict(message)|tojson(sort_keys=true) }}
    {%- endif %}
    {%- set ns.index = ns.index + 1 %}
{%- endfor %}"""
STYLES = {"llama": LLAMA, "chatml": CHATML, "gemma": GEMMA, "mistral": MISTRAL}


@pytest.fixture(scope="module")
def reference_tokenizer(demo_folder: Path) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(str(demo_folder))


def theirs(reference: PreTrainedTokenizerBase, source: str | None, messages: list[Any], **options: Any) -> str | None:
    """The reference's rendering; None where it refuses."""
    try:
        return str(
            reference.apply_chat_template(
                messages, chat_template=source, tokenize=False, add_generation_prompt=True, **options
            )
        )
    except Exception:  # the reference raises Jinja's errors as they are
        return None


def ours(reference: PreTrainedTokenizerBase, source: str, messages: list[Any], **options: Any) -> str | None:
    try:
        return ChatTemplate(source, dict(reference.special_tokens_map)).render(messages, options)
    except TemplateRefused:
        return None


@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("style", STYLES)
def test_hand_written_styles_render_alike(
    reference_tokenizer: PreTrainedTokenizerBase, style: str, conversation: str
) -> None:
    source, messages = STYLES[style], CONVERSATIONS[conversation]
    expected = theirs(reference_tokenizer, source, messages)
    assert ours(reference_tokenizer, source, messages) == expected
    assert expected is not None or style == "gemma"


@pytest.mark.parametrize("conversation", CONVERSATIONS)
def test_the_demo_models_own_template_renders_alike(
    reference_tokenizer: PreTrainedTokenizerBase, demo_folder: Path, conversation: str
) -> None:
    source = (demo_folder / "chat_template.jinja").read_text()
    messages = CONVERSATIONS[conversation]
    expected = theirs(reference_tokenizer, None, messages)
    assert expected is not None
    assert ours(reference_tokenizer, source, messages) == expected


def test_options_reach_the_template(reference_tokenizer: PreTrainedTokenizerBase) -> None:
    options = {"enable_thinking": False}
    assert ours(reference_tokenizer, CHATML, [USER], **options) == theirs(
        reference_tokenizer, CHATML, [USER], **options
    )


def test_the_templates_own_words_are_told(reference_tokenizer: PreTrainedTokenizerBase) -> None:
    template = ChatTemplate(GEMMA, {"bos_token": "<bos>"})
    with pytest.raises(TemplateRefused, match="System role not supported"):
        template.render([SYSTEM, USER], {})


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro again(n) %}{{ again(n) }}{{ again(n) }}{% endmacro %}{{ again(1) }}",
        "{{ 'x' * 100000000000 }}",
        "{{ 9 ** 9999999 }}",
        "{{ range(10000000) | list }}",
    ],
    ids=["nested loops", "endless recursion", "repetition", "power", "long range"],
)
def test_a_template_can_not_hold_up_the_head(source: str) -> None:
    begin = time.monotonic()
    with pytest.raises(TemplateRefused):
        ChatTemplate(source, {}, seconds=0.2).render([USER], {})
    assert time.monotonic() - begin < 3


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ namespace(__init__=1) }}",
        "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
        "{{ dict.mro() }}",
        "{{ raise_exception.__globals__ }}",
        "{{ messages[0].content.format_map({}).x }}",
    ],
)
def test_the_sandbox_lets_nothing_out(source: str) -> None:
    try:
        text = ChatTemplate(source, {}).render([USER], {})
    except TemplateRefused:
        return
    assert text == ""


def test_a_source_that_is_no_template_is_refused_when_it_is_loaded() -> None:
    with pytest.raises(TemplateRefused, match="not valid"):
        ChatTemplate("{% for %}", {})
