"""One turn of a chat: from messages and tools to the model's answer, told apart as it is generated.

The chat completions, responses and messages endpoints are forms over this.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from headrace.engine.engine import TokenOutput
from headrace.errors import ModelError, RequestError
from headrace.sampling.params import SamplingParams
from headrace.sampling.scores import TokenLogprobs
from headrace.sampling.structured import StructuredOutputs
from headrace.server.context import Server
from headrace.server.generation import Generation, Prompt
from headrace.server.reader import AnswerReader, CallDelta, Parts, joined
from headrace.server.tools import Tool, answer_or_calls_schema, calls_schema, checked_tools, parameters_of
from headrace.text.chat import ChatTemplate, encode_chat
from headrace.text.reasoning import CLOSING, OPENING, ReasoningSplitter, opens_reasoning
from headrace.text.tools.formats import ToolFormat, tool_format
from headrace.text.tools.history import parsed_history, written_out
from headrace.text.tools.json import array_parser, json_parser
from headrace.text.tools.named import NamedParser

_NAMED = "function:"
# What the template gets from us; a request's own variables must not have these names.
_TAKEN = frozenset({"messages", "tools", "add_generation_prompt", "continue_final_message"})


@dataclass(frozen=True, kw_only=True)
class Turn:
    """What a chat is to go on with.

    Attributes:
        messages: the conversation, in OpenAI's chat form.
        params: how the answer is sampled; with a tool choice of "required" or a name, its structure is that of calls.
        tools: in OpenAI's form, `{"type": "function", "function": {…}}`.
        tool_choice: "auto", "none", "required" or "function:NAME".
        parallel_tool_calls: more than one call may be made.
        template_kwargs: further variables for the chat template.
        separate_reasoning: reasoning is no part of the content.
        add_generation_prompt: the prompt ends with the opening of the assistant's turn.
        continue_final_message: the answer goes on with the last message.
        cache_salt: cached prefixes are shared with those of the same salt.
    """

    messages: Sequence[dict[str, Any]]
    params: SamplingParams
    tools: Sequence[dict[str, Any]] = ()
    tool_choice: str = "auto"
    parallel_tool_calls: bool = True
    template_kwargs: dict[str, Any] = field(default_factory=dict)
    separate_reasoning: bool = False
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    cache_salt: str | None = None

    @property
    def is_structured(self) -> bool:
        """Whether a grammar holds the answer to a form."""
        return self.params.structured_outputs is not None or self.tool_choice not in ("auto", "none")


@dataclass(frozen=True, slots=True)
class AnswerDelta:
    """What some tokens brought to one choice.

    Attributes:
        index: of the choice.
        content, reasoning: text that became final.
        calls: what is new of tool calls.
        token_ids: the tokens; the last may be an end token.
        logprobs: of the tokens, where they are asked for.
        finish_reason: "stop", "length", "tool_calls", "abort" or "error", once the choice has ended.
        error: what went wrong, when the reason is "error".
        stop_reason: the stop string, or the one of `stop_token_ids`, that ended the choice.
    """

    index: int
    content: str
    reasoning: str
    calls: tuple[CallDelta, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]
    finish_reason: str | None
    error: str | None
    stop_reason: str | int | None = None


@dataclass(frozen=True, slots=True)
class FinishedChoice:
    """A whole answer; the fields are those of all its `AnswerDelta`s together, and each call is in one piece."""

    index: int
    content: str
    reasoning: str
    calls: tuple[CallDelta, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]
    finish_reason: str
    error: str | None
    stop_reason: str | int | None = None


class Answer:
    """The choices' deltas as they become known: an async iterator of lists of `AnswerDelta`.

    Attributes:
        num_prompt_tokens: of the prompt that the conversation made.
        num_cached_tokens: of them, those that were in the prefix cache; known with the first delta.
    """

    def __init__(self, prepared: _Prepared, generation: Generation) -> None:
        self.num_prompt_tokens = len(prepared.ids)
        self.num_cached_tokens = 0
        self._generation = generation
        self._is_named = prepared.is_named
        self._readers = [prepared.new_reader() for _ in range(prepared.params.n)]

    def __aiter__(self) -> AsyncIterator[list[AnswerDelta]]:
        return self

    async def __anext__(self) -> list[AnswerDelta]:
        batch = await anext(self._generation)
        outputs: dict[int, list[TokenOutput]] = {}
        for _, output in batch:
            outputs.setdefault(output.index, []).append(output)
        if 0 in outputs:
            self.num_cached_tokens = outputs[0][-1].num_cached_tokens
        return [delta for index, new in outputs.items() for delta in self._deltas(index, new)]

    async def collect(self) -> list[FinishedChoice]:
        """Waits for the end and returns the choices, by index."""
        deltas: list[list[AnswerDelta]] = [[] for _ in self._readers]
        async for batch in self:
            for delta in batch:
                deltas[delta.index].append(delta)
        return [_finished(each) for each in deltas]

    @property
    def num_reasoning_tokens(self) -> int:
        """Tokens of reasoning and its tags so far, of all choices."""
        return sum(reader.num_reasoning_tokens for reader in self._readers)

    def _deltas(self, index: int, outputs: list[TokenOutput]) -> list[AnswerDelta]:
        """What outputs of a choice bring; each token with log-probabilities has a delta of its own."""
        reader = self._readers[index]
        if outputs[0].logprobs is not None:
            groups = [([output], reader.push(output.text)) for output in outputs]
        else:
            groups = _read_together(reader, outputs)
        last = outputs[-1]
        reason: str | None = last.finish_reason
        if reason is not None:
            groups[-1] = (groups[-1][0], joined(groups[-1][1], reader.finish()))
        if reason == "stop" and reader.num_calls and not self._is_named:
            reason = "tool_calls"
        deltas = [delta for some, parts in groups for delta in _told(index, some, parts)]
        if reason is not None:
            deltas[-1] = replace(deltas[-1], finish_reason=reason, error=last.error, stop_reason=last.stop_reason)
        return deltas


def _read_together(reader: AnswerReader, outputs: list[TokenOutput]) -> list[tuple[list[TokenOutput], list[Parts]]]:
    """Outputs up to the end of the reasoning and those after it, and what they bring."""
    count, thoughts = 0, [Parts()]
    while count < len(outputs) and reader.is_thinking:
        thoughts = joined(thoughts, reader.push(outputs[count].text))
        count += 1
    groups = [(outputs[:count], thoughts)] if count else []
    if rest := outputs[count:]:
        groups.append((rest, reader.push("".join(output.text for output in rest))))
    return groups


def _told(index: int, outputs: list[TokenOutput], parts: list[Parts]) -> list[AnswerDelta]:
    """Deltas of what some outputs brought; the first has all their tokens."""
    tokens = tuple([output.token_id for output in outputs if output.token_id is not None])
    logprobs = tuple([output.logprobs for output in outputs if output.logprobs is not None])
    return [
        AnswerDelta(
            index=index,
            content=part.content,
            reasoning=part.reasoning,
            calls=tuple(part.calls),
            token_ids=() if number else tokens,
            logprobs=() if number else logprobs,
            finish_reason=None,
            error=None,
        )
        for number, part in enumerate(parts)
    ]


@asynccontextmanager
async def answer(server: Server, turn: Turn) -> AsyncIterator[Answer]:
    """Writes the conversation down, submits it, and gives the answer; leaving early ends the generation.

    Raises:
        RequestError: a message, a tool or a parameter is wrong; the field is named.
        ModelError: the model has no chat template.
        QueueFullError, UnavailableError: of the bridge.
    """
    prepared = await server.bridge.prepare(_prepare, server, turn, compiles=turn.is_structured)
    prompt = Prompt(prepared.ids, prepared.params, turn.cache_salt)
    async with server.bridge.generate([prompt]) as generation:
        yield Answer(prepared, generation)


def prompt_ids(server: Server, turn: Turn) -> list[int]:
    """The prompt that a turn makes; the errors are those of `answer`. For a worker thread."""
    try:
        return _prompt_ids(server, turn)
    except RecursionError:  # the text of arguments in the history may be nested more deeply than a body
        raise RequestError("messages", "are nested too deeply") from None


def _prompt_ids(server: Server, turn: Turn) -> list[int]:
    template, tools = _template(server), checked_tools(turn.tools)
    _check_choice(turn.tool_choice, tools)
    if taken := _TAKEN & {*turn.template_kwargs}:
        raise RequestError("chat_template_kwargs", f"must not hold {', '.join(sorted(taken))}")
    shown = [] if turn.tool_choice == "none" else tools
    messages = parsed_history(turn.messages)
    if "developer" not in template.source:
        messages = [{**one, "role": "system"} if one["role"] == "developer" else one for one in messages]
    if template.prints_tools:
        return _encoded(server, template, turn, messages, shown)
    try:
        return _encoded(server, template, turn, written_out(messages, shown), None)
    except RequestError:
        if not shown:
            raise
        # Perhaps the template takes no system message.
        return _encoded(server, template, turn, written_out(messages, shown, into_user=True), None)


def _template(server: Server) -> ChatTemplate:
    if server.template is None:
        raise ModelError(f"{server.model} has no chat template; use /v1/completions with a plain prompt instead")
    return server.template


def _encoded(
    server: Server,
    template: ChatTemplate,
    turn: Turn,
    messages: list[dict[str, Any]],
    tools: list[Tool] | None,
) -> list[int]:
    return encode_chat(
        server.tokenizer,
        template,
        messages,
        add_generation_prompt=turn.add_generation_prompt,
        continue_final_message=turn.continue_final_message,
        tools=tools or None,
        **turn.template_kwargs,
    )


def _check_choice(choice: str, tools: list[Tool]) -> None:
    if choice in ("auto", "none"):
        return
    names = [tool["function"]["name"] for tool in tools]
    if not names:
        raise RequestError("tool_choice", "there are no tools to choose from")
    if choice != "required" and choice.removeprefix(_NAMED) not in names:
        raise RequestError("tool_choice", f"{choice.removeprefix(_NAMED)!r} is not among the tools: {', '.join(names)}")


@dataclass(frozen=True)
class _Prepared:
    """A turn that the engine can take.

    Attributes:
        ids: the prompt.
        params: what the engine is asked for.
        new_reader: makes the reader of one choice.
        is_named: the answer is one call of a tool that was named, which is not what ends it.
    """

    ids: list[int]
    params: SamplingParams
    new_reader: Callable[[], AnswerReader]
    is_named: bool


def _prepare(server: Server, turn: Turn) -> _Prepared:
    ids = prompt_ids(server, turn)
    template, engine = _template(server), server.bridge.engine
    # Who is told of tools in our words answers in our form.
    form = tool_format(server.options.tool_parser if template.prints_tools else "json", template.source)
    tools = [] if turn.tool_choice == "none" else checked_tools(turn.tools)
    if turn.tool_choice not in ("auto", "none"):
        params, new_reader = _forced(turn, form, tools)
    elif turn.params.structured_outputs is not None:
        params, new_reader = _structured(turn, turn.params.structured_outputs, form, tools)
    else:
        params, new_reader = _free(server, turn, ids, form, tools)
    try:
        engine.check(ids, params, cache_salt=turn.cache_salt)
    except RequestError as error:
        if params.structured_outputs != turn.params.structured_outputs and error.param.startswith("structured"):
            engine.check(ids, turn.params, cache_salt=turn.cache_salt)  # whose fault it is
            raise RequestError("tools", str(error)) from None
        raise
    return _Prepared(engine.kept_prompt(ids, params), params, new_reader, turn.tool_choice.startswith(_NAMED))


def _forced(turn: Turn, form: ToolFormat, tools: list[Tool]) -> tuple[SamplingParams, Callable[[], AnswerReader]]:
    """A grammar holds the answer to calls, whatever the model's own form of them."""
    names = frozenset(tool["function"]["name"] for tool in tools)
    if turn.tool_choice == "required":
        schema = calls_schema(tools, parallel=turn.parallel_tool_calls)
    else:
        name = turn.tool_choice.removeprefix(_NAMED)
        schema = next(parameters_of(tool) for tool in tools if tool["function"]["name"] == name)

    def new_reader() -> AnswerReader:
        parser = json_parser(names) if turn.tool_choice == "required" else NamedParser(name)
        return AnswerReader(None, parser, form.new_id, only_calls=True)

    return replace(turn.params, structured_outputs=StructuredOutputs(json=schema)), new_reader


def _structured(
    turn: Turn, outputs: StructuredOutputs, form: ToolFormat, tools: list[Tool]
) -> tuple[SamplingParams, Callable[[], AnswerReader]]:
    """The answer has a form, and no reasoning. Where the form is JSON, an array of calls may take its place."""
    schema = answer_or_calls_schema(outputs, tools, parallel=turn.parallel_tool_calls) if tools else None
    if schema is None:
        return turn.params, lambda: AnswerReader(None, None, form.new_id)
    names = frozenset(tool["function"]["name"] for tool in tools)

    def new_reader() -> AnswerReader:
        return AnswerReader(None, array_parser(names), form.new_id)

    return replace(turn.params, structured_outputs=StructuredOutputs(json=schema)), new_reader


def _free(
    server: Server, turn: Turn, ids: list[int], form: ToolFormat, tools: list[Tool]
) -> tuple[SamplingParams, Callable[[], AnswerReader]]:
    """The model decides whether it calls, and writes calls in its own form."""
    names = frozenset(tool["function"]["name"] for tool in tools)
    splits = turn.separate_reasoning or bool(tools)
    # Markers that are control tokens in this model would not be in the text.
    markers = (*(form.markers if tools else ()), *((OPENING, CLOSING) if splits else ()))
    special = server.tokenizer.special_ids
    shown = (*turn.params.shown_token_ids, *(special[marker] for marker in markers if marker in special))
    is_open = splits and opens_reasoning(server.tokenizer, ids)

    def new_reader() -> AnswerReader:
        hidden = turn.separate_reasoning
        return AnswerReader(
            ReasoningSplitter(is_open=is_open, keep_tags=not hidden) if splits else None,
            form.new_parser(names) if tools else None,
            form.new_id,
            shows_reasoning=not hidden,
            max_calls=None if turn.parallel_tool_calls else 1,
        )

    return replace(turn.params, shown_token_ids=shown), new_reader


def _finished(deltas: list[AnswerDelta]) -> FinishedChoice:
    last = deltas[-1]
    assert last.finish_reason is not None
    calls: list[CallDelta] = []
    for call in (call for delta in deltas for call in delta.calls):
        if call.id is not None:
            calls.append(call)
        else:
            first = calls[call.index]
            calls[call.index] = replace(first, arguments=first.arguments + call.arguments)
    return FinishedChoice(
        index=last.index,
        content="".join(delta.content for delta in deltas),
        reasoning="".join(delta.reasoning for delta in deltas),
        calls=tuple(calls),
        token_ids=tuple(token for delta in deltas for token in delta.token_ids),
        logprobs=tuple(score for delta in deltas for score in delta.logprobs),
        finish_reason=last.finish_reason,
        error=last.error,
        stop_reason=last.stop_reason,
    )
