"""Chats to prompts: the model's own Jinja template, and tokens that a message cannot forge."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from headrace.errors import ModelError, RequestError
from headrace.text.checks import check_text
from headrace.text.messages import normalize_messages
from headrace.text.tokenizer import Tokenizer

_TOOLS = re.compile(r"\btools\b")
# Stand-ins for control tokens' text come from a private-use plane of Unicode, where no vocabulary has characters.
_STAND_INS = range(0xF0000, 0xFFFFE)


class ChatTemplate:
    """A model's chat template, rendered as transformers renders it, in a sandbox.

    Args:
        source: the Jinja source.
        bos_token: what the template prints for `bos_token`.
        eos_token: what the template prints for `eos_token`.

    Attributes:
        source: the Jinja source.

    Raises:
        ModelError: the source is not a valid template.
    """

    def __init__(self, source: str, *, bos_token: str, eos_token: str) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, "jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now)
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ModelError(f"the chat template is invalid at line {error.lineno}: {error.message}") from error
        self.source = source
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}

    @property
    def prints_tools(self) -> bool:
        """Whether the template knows of tools, and so of calls and their results."""
        return _TOOLS.search(self.source) is not None

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        /,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **extra: Any,
    ) -> str:
        """Return the prompt for a chat.

        Args:
            messages: the conversation; see `normalize_messages` for what a message may hold.
            add_generation_prompt: end with the opening of the assistant's turn.
            continue_final_message: end with the last message's content, which the model then goes on with.
            tools: the tools' JSON descriptions, for templates that print them.
            **extra: further variables that the template knows; they win over `bos_token` and `eos_token`.

        Raises:
            RequestError: a message is malformed, or the template refuses the messages or fails on them.
        """
        variables = {**self._tokens, **extra}
        messages = normalize_messages(messages)
        variables.update(messages=messages, tools=tools, add_generation_prompt=add_generation_prompt)
        try:
            prompt = self._template.render(variables)
        except Exception as error:  # a template is a program from elsewhere: any failure is this request's own
            raise RequestError("messages", f"the model's chat template failed: {error}") from error
        check_text("messages", prompt)
        return _cut_after(prompt, messages[-1]["content"]) if continue_final_message else prompt


def encode_chat(
    tokenizer: Tokenizer,
    template: ChatTemplate,
    messages: Sequence[Mapping[str, Any]],
    /,
    *,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
    tools: Sequence[Mapping[str, Any]] | None = None,
    **extra: Any,
) -> list[int]:
    """Return the prompt's ids for a chat; arguments and errors are those of `ChatTemplate.render`.

    BOS is there if the template prints it, and only then. Only the template can write control tokens: their text
    inside a message, a tool or an extra variable is encoded as ordinary text, so that no message can forge a turn.
    (transformers would turn it into control tokens.)
    """
    messages = normalize_messages(messages)
    texts = set(_strings([messages, tools, extra]))
    for text in texts:
        check_text("messages", text)
    forged = sorted({token for text in texts for token in tokenizer.split_special(text)[1::2]})
    ends = {"add_generation_prompt": add_generation_prompt, "continue_final_message": continue_final_message}
    if not forged:
        prompt = template.render(messages, tools=tools, **ends, **extra)
        return tokenizer.encode(prompt, add_bos=False)

    # One character stands for each token's text while the template runs, so that no filter can take it apart.
    used = set().union(*texts)
    free = (char for char in map(chr, _STAND_INS) if char not in used)
    stand_ins = dict(zip(forged, free, strict=False))
    if len(stand_ins) < len(forged):
        raise RequestError("messages", "the text leaves no private-use character free to stand for control tokens")

    def disguise(text: str) -> str:
        return "".join(stand_ins.get(part, part) for part in tokenizer.split_special(text))

    messages, tools, extra = (_map_strings(value, disguise) for value in (messages, tools, extra))
    prompt = template.render(messages, tools=tools, **ends, **extra)
    restore = str.maketrans({char: token for token, char in stand_ins.items()})
    ids: list[int] = []
    for index, part in enumerate(tokenizer.split_special(prompt)):
        if index % 2:
            ids.append(tokenizer.special_ids[part])
        elif part:
            ids += tokenizer.encode(part.translate(restore), add_bos=False, parse_special=False)
    return ids


def _cut_after(prompt: str, content: str) -> str:
    """Cuts a prompt off after the last message's content; space at its end stays if the template leaves it there."""
    start = prompt.rfind(content.strip())
    if start < 0 or not content.strip():
        raise RequestError("continue_final_message", "the last message has no content, or not in the prompt")
    whole = content.lstrip()
    return prompt[: start + len(whole if prompt.startswith(whole, start) else content.strip())]


def _strings(value: Any) -> list[str]:
    """Return every string in a JSON-like value, keys included."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        return [text for item in value.items() for part in item for text in _strings(part)]
    if isinstance(value, list | tuple):
        return [text for item in value for text in _strings(item)]
    return []


def _map_strings(value: Any, change: Callable[[str], str]) -> Any:
    """Return a copy of a JSON-like value with every string changed, keys included."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {_map_strings(key, change): _map_strings(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_map_strings(item, change) for item in value]
    return value


class _GenerationTag(Extension):
    """Accept `{% generation %}`, with which templates mark the assistant's words for training."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's own interface

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write plain JSON; Jinja's own filter escapes HTML, which models were not trained on."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)
