"""The bodies of /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from headrace.errors import RequestError
from headrace.sampling.params import SamplingParams
from headrace.sampling.structured import StructuredOutputs
from headrace.server.errors import unsupported
from headrace.server.messages.input import chat_messages, chosen_tool, function_tools
from headrace.server.schema.lists import Listed
from headrace.server.schema.sampling import SamplingFields
from headrace.server.turn import Turn


class Thinking(BaseModel):
    """`thinking`. A budget is accepted and not kept: the model thinks until it is done or `max_tokens` is reached."""

    model_config = ConfigDict(strict=True, extra="ignore")

    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: int | None = None


class OutputFormat(BaseModel):
    """`output_config.format`."""

    model_config = ConfigDict(strict=True, extra="ignore", populate_by_name=True)

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(BaseModel):
    """`output_config`."""

    model_config = ConfigDict(strict=True, extra="ignore")

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class CountTokensRequest(SamplingFields):
    """A conversation."""

    model: str
    messages: Listed[dict[str, Any]]
    system: str | Listed[dict[str, Any]] | None = None
    tools: Listed[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    context_management: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def check(self) -> None:
        """Refuses what is known and not implemented, and what other endpoints call otherwise."""
        self.refuse(
            container="is not supported",
            mcp_servers="is not supported; call the servers yourself and send their tools as tools",
        )
        for name, place in {"stop": "stop_sequences", "response_format": "output_config.format"}.items():
            if getattr(self, name) is not None:
                raise unsupported(name, f"is called {place} here")
        if self.n not in (None, 1):
            raise unsupported("n", "must be 1; send the request several times")

    def turn(self, params: SamplingParams) -> Turn:
        """The request as a turn of a chat.

        Raises:
            RequestError: a value is wrong.
            APIError: something is not supported.
        """
        choice, parallel = ("auto", True) if self.tool_choice is None else chosen_tool(self.tool_choice)
        messages = chat_messages(self.system, self.messages)
        if not messages:
            raise RequestError("messages", "hold nothing that the model can read")
        goes_on = messages[-1]["role"] == "assistant"
        if "tool_calls" in messages[-1]:
            raise RequestError("messages", "the last one calls tools; send their results")
        return Turn(
            messages=messages,
            params=params,
            tools=function_tools(self.tools or []),
            tool_choice=choice,
            parallel_tool_calls=parallel,
            template_kwargs=self._template_kwargs,
            separate_reasoning=True,
            add_generation_prompt=not goes_on,
            continue_final_message=goes_on,
            cache_salt=self.cache_salt,
        )

    @property
    def _template_kwargs(self) -> dict[str, Any]:
        asked: dict[str, Any] = {}
        if self.thinking is not None:
            asked["enable_thinking"] = self.thinking.type != "disabled"
        if self.output_config is not None and self.output_config.effort is not None:
            asked["reasoning_effort"] = self.output_config.effort
        return asked | (self.chat_template_kwargs or {})


class MessagesRequest(CountTokensRequest):
    """A conversation to be answered."""

    max_tokens: int
    stop_sequences: Listed[str] | None = None
    stream: bool | None = None
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None

    def params(self) -> SamplingParams:
        """What the engine is asked for.

        Raises:
            RequestError: a value is wrong.
        """
        others: dict[str, Any] = {"stop": self.stop_sequences}
        if self.output_config is not None and self.output_config.format is not None:
            if self._structured() is not None:
                raise RequestError("output_config.format", "cannot be given together with structured_outputs")
            others["structured_outputs"] = StructuredOutputs(json=self.output_config.format.schema_)
        return self.sampling_params(**others)
