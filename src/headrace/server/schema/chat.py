"""The body of /v1/chat/completions."""

from __future__ import annotations

from typing import Any

from headrace.errors import RequestError
from headrace.sampling.checks import shown
from headrace.sampling.params import SamplingParams
from headrace.server.context import Server
from headrace.server.errors import unsupported
from headrace.server.schema.lists import Listed
from headrace.server.schema.sampling import SamplingFields, StreamOptions
from headrace.server.turn import Turn

MAX_TOP_LOGPROBS = 20
_ROLES = ("system", "developer", "user", "assistant", "tool")
_CHOICES = ("auto", "none", "required")


class ChatRequest(SamplingFields):
    """A conversation to be answered."""

    model: str | None = None
    messages: Listed[dict[str, Any]]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    tools: Listed[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    separate_reasoning: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    modalities: Listed[str] | None = None
    metadata: dict[str, Any] | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    store: bool | None = None
    user: str | None = None
    verbosity: str | None = None

    def check(self) -> None:
        """Refuses what is known and not implemented, and fields that do not fit each other."""
        self.refuse(
            audio="is not supported: the model answers with text",
            chat_template="is not supported: the model's own is used",
            documents="is not supported; put them into a message",
            echo="is not supported; /v1/completions has it",
            functions="is not supported; use tools",
            function_call="is not supported; use tool_choice",
            prediction="is not supported",
            use_beam_search="is not supported",
            web_search_options="is not supported",
        )
        if self.modalities is not None and self.modalities != ["text"]:
            raise unsupported("modalities", f"must be ['text'], not {shown(self.modalities)}")
        if self.stream_options is not None and not self.stream:
            raise RequestError("stream_options", "is only allowed with stream: true")
        if self.continue_final_message and self.add_generation_prompt:
            raise RequestError("continue_final_message", "cannot be given together with add_generation_prompt")
        for index, message in enumerate(self.messages):
            _check_message(message, f"message {index}")

    def turn(self, server: Server) -> Turn:
        """The request as a turn of a chat.

        Raises:
            RequestError: a value is wrong.
            APIError: something is not supported.
        """
        choice, tools = self._chosen_tools()
        separate = self.separate_reasoning
        return Turn(
            messages=self.messages,
            params=self._params(server),
            tools=tools,
            tool_choice=choice,
            parallel_tool_calls=self.parallel_tool_calls is not False,
            template_kwargs=self._template_kwargs,
            separate_reasoning=server.options.separate_reasoning if separate is None else separate,
            add_generation_prompt=self.add_generation_prompt is not False and not self.continue_final_message,
            continue_final_message=bool(self.continue_final_message),
            cache_salt=self.cache_salt,
        )

    def _params(self, server: Server) -> SamplingParams:
        limits = (self.max_completion_tokens, self.max_tokens, server.max_model_len)
        return self.sampling_params(
            max_tokens=next(limit for limit in limits if limit is not None), logprobs=self._num_logprobs(server)
        )

    def _num_logprobs(self, server: Server) -> int | None:
        most = min(MAX_TOP_LOGPROBS, server.config.max_logprobs)
        if self.top_logprobs is not None and not 0 <= self.top_logprobs <= most:
            raise RequestError("top_logprobs", f"must be 0 to {most}, not {self.top_logprobs}")
        if self.logprobs:
            return self.top_logprobs or 0
        if self.top_logprobs:
            raise RequestError("top_logprobs", "is only allowed with logprobs: true")
        return None

    def _chosen_tools(self) -> tuple[str, list[dict[str, Any]]]:
        """The choice as `Turn` has it, and the tools that it leaves."""
        choice, tools = self.tool_choice, self.tools or []
        if choice is None:
            return "auto", tools
        if isinstance(choice, str):
            if choice not in _CHOICES:
                raise RequestError("tool_choice", f"must be {', '.join(_CHOICES)} or an object, not {shown(choice)}")
            return choice, tools
        if choice.get("type") == "allowed_tools":
            return _allowed_tools(choice.get("allowed_tools"), tools)
        if choice.get("type") != "function":
            kind = shown(choice.get("type"))
            raise unsupported("tool_choice", f"the type {kind} is not supported; 'function' and 'allowed_tools' are")
        return f"function:{_function_name(choice, 'tool_choice')}", tools

    @property
    def _template_kwargs(self) -> dict[str, Any]:
        effort = self.reasoning_effort
        asked = {} if effort is None else {"reasoning_effort": effort, "enable_thinking": effort != "none"}
        return asked | (self.chat_template_kwargs or {})


def _function_name(item: Any, place: str) -> str:
    function = item.get("function") if isinstance(item, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise RequestError(place, "must say {'type': 'function', 'function': {'name': …}}")
    return name


def _allowed_tools(allowed: Any, tools: list[dict[str, Any]]) -> tuple[str, list[dict[str, Any]]]:
    """Of the tools those that may be called, and "auto" or "required"."""
    if not isinstance(allowed, dict) or not isinstance(allowed.get("tools"), list):
        raise RequestError("tool_choice", "allowed_tools must be an object with a mode and tools")
    mode = allowed.get("mode")
    if mode not in ("auto", "required"):
        raise RequestError("tool_choice", f"the mode of allowed_tools must be auto or required, not {shown(mode)}")
    known = {_function_name(tool, "tools"): tool for tool in tools}
    chosen = [_function_name(item, "tool_choice") for item in allowed["tools"]]
    for name in chosen:
        if name not in known:
            raise RequestError("tool_choice", f"{shown(name)} is not among the tools: {', '.join(known)[:500]}")
    return mode, [tool for name, tool in known.items() if name in chosen]


def _check_message(message: dict[str, Any], where: str) -> None:
    role = message.get("role")
    if role == "function" or message.get("function_call") is not None:
        raise unsupported("messages", f"{where} is a function's or calls one, which is not supported; use tools")
    if isinstance(role, str) and role not in _ROLES:
        raise RequestError("messages", f"the role of {where} must be one of {', '.join(_ROLES)}, not {shown(role)}")
    if message.get("audio") is not None:
        raise unsupported("messages", f"{where} holds audio, which is not supported")
