"""The body of /v1/responses."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from headrace.errors import RequestError
from headrace.sampling.params import SamplingParams
from headrace.sampling.structured import StructuredOutputs
from headrace.server.errors import unsupported
from headrace.server.responses.input import chat_messages, chosen_tools, function_tools
from headrace.server.schema.lists import Listed, Texts
from headrace.server.schema.sampling import SamplingFields
from headrace.server.turn import Turn

MAX_TOP_LOGPROBS = 20
_LOGPROBS = "message.output_text.logprobs"
# Of the others there is never anything to include.
_INCLUDABLE = (
    _LOGPROBS,
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
)
_NOT_STORED = "is not supported, as nothing is stored; send the whole conversation as input"


class TextFormat(BaseModel):
    """`text.format`."""

    model_config = ConfigDict(strict=True, extra="ignore", populate_by_name=True)

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None

    def value(self) -> StructuredOutputs | None:
        """As the engine takes it; None for plain text."""
        if self.type == "text":
            return None
        if self.type == "json_object":
            return StructuredOutputs(json_object=True)
        if self.schema_ is None:
            raise RequestError("text.format.schema", "is missing")
        return StructuredOutputs(json=self.schema_)

    @property
    def echo(self) -> dict[str, Any]:
        """As the response repeats it."""
        if self.type != "json_schema":
            return {"type": self.type}
        named = {"type": self.type, "name": self.name or "", "description": self.description}
        return named | {"schema": self.schema_, "strict": self.strict}


class TextConfig(BaseModel):
    """`text`."""

    model_config = ConfigDict(strict=True, extra="ignore")

    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ReasoningConfig(BaseModel):
    """`reasoning`. No summary is made of it: the reasoning itself is in the output."""

    model_config = ConfigDict(strict=True, extra="ignore")

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None


class ResponsesRequest(SamplingFields):
    """A conversation to be answered."""

    model: str | None = None
    input: str | Listed[dict[str, Any]]
    instructions: str | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    tools: Listed[dict[str, Any]] | None = None
    tool_choice: Literal["auto", "none", "required"] | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    include: Listed[str] | None = None
    top_logprobs: int | None = None
    reasoning: ReasoningConfig | None = None
    metadata: Texts | None = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    store: bool | None = None
    truncation: Literal["auto", "disabled"] | None = None
    service_tier: str | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def check(self) -> None:
        """Refuses what is known and not implemented, and what other endpoints call otherwise."""
        self.refuse(
            previous_response_id=_NOT_STORED,
            conversation=_NOT_STORED,
            prompt="is not supported; send the prompt's text as instructions or input",
            background="is not supported, as nothing is stored; leave the connection open",
            context_management="is not supported; shorten the input",
            moderation="is not supported",
            max_completion_tokens="is called max_output_tokens here",
            functions="is called tools here",
            messages="is called input here",
        )
        for name, place in {"max_tokens": "max_output_tokens", "response_format": "text.format"}.items():
            if getattr(self, name) is not None:
                raise unsupported(name, f"is called {place} here")
        if self.truncation == "auto":
            raise unsupported("truncation", "'auto' is not supported; shorten the input")
        if self.n not in (None, 1):
            raise unsupported("n", "must be 1; send the request several times")
        for name in self.include or ():
            if name not in _INCLUDABLE:
                raise RequestError("include", f"{name!r} is unknown; known: {', '.join(_INCLUDABLE)}")
        if self.top_logprobs is not None and not 0 <= self.top_logprobs <= MAX_TOP_LOGPROBS:
            raise RequestError("top_logprobs", f"must be 0 to {MAX_TOP_LOGPROBS}, not {self.top_logprobs}")
        if self.max_output_tokens is not None and self.max_output_tokens < 1:
            raise RequestError("max_output_tokens", f"must be at least 1, not {self.max_output_tokens}")

    def turn(self, max_model_len: int) -> Turn:
        """The request as a turn of a chat, which may go on to the end of the context if it sets no limit.

        Raises:
            RequestError: a value is wrong.
            APIError: something is not supported.
        """
        choice, tools = chosen_tools(self.tool_choice or "auto", function_tools(self.tools or []))
        return Turn(
            messages=chat_messages(self.instructions, self.input),
            params=self._params(max_model_len),
            tools=tools,
            tool_choice=choice,
            parallel_tool_calls=self.parallel_tool_calls is not False,
            template_kwargs=self._template_kwargs,
            separate_reasoning=True,
            cache_salt=self.cache_salt,
        )

    def _params(self, max_model_len: int) -> SamplingParams:
        others: dict[str, Any] = {"max_tokens": self.max_output_tokens or max_model_len}
        if self.top_logprobs or _LOGPROBS in (self.include or ()):
            others["logprobs"] = self.top_logprobs or 0
        form = None if self.text is None or self.text.format is None else self.text.format.value()
        if form is not None:
            if self._structured() is not None:
                raise RequestError("text.format", "cannot be given together with structured_outputs")
            others["structured_outputs"] = form
        return self.sampling_params(**others)

    @property
    def _template_kwargs(self) -> dict[str, Any]:
        effort = None if self.reasoning is None else self.reasoning.effort
        asked = {} if effort is None else {"reasoning_effort": effort, "enable_thinking": effort != "none"}
        return asked | (self.chat_template_kwargs or {})

    def echo(self, params: SamplingParams) -> dict[str, Any]:
        """What a Response object repeats of the request."""
        text = self.text or TextConfig()
        return {
            "background": False,
            "instructions": self.instructions,
            "max_output_tokens": self.max_output_tokens,
            "max_tool_calls": self.max_tool_calls,
            "metadata": self.metadata or {},
            "parallel_tool_calls": self.parallel_tool_calls is not False,
            "previous_response_id": None,
            "prompt_cache_key": self.prompt_cache_key,
            "reasoning": {"effort": None if self.reasoning is None else self.reasoning.effort, "summary": None},
            "safety_identifier": self.safety_identifier,
            "service_tier": "default",
            "store": False,
            "temperature": params.temperature,
            "text": {
                "format": {"type": "text"} if text.format is None else text.format.echo,
                "verbosity": text.verbosity or "medium",
            },
            "tool_choice": self.tool_choice or "auto",
            "tools": [_echo(tool) for tool in self.tools or ()],
            "top_logprobs": params.logprobs or 0,
            "top_p": params.top_p,
            "truncation": "disabled",
            "user": self.user,
        }


def _echo(tool: dict[str, Any]) -> dict[str, Any]:
    """A function as a response repeats it."""
    return {name: tool.get(name) for name in ("type", "name", "description", "parameters", "strict")}
