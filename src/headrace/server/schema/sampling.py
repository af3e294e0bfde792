"""The sampling fields that several endpoints share."""

from __future__ import annotations

import logging
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from headrace.errors import RequestError
from headrace.sampling.params import SamplingParams
from headrace.sampling.structured import StructuredOutputs
from headrace.server.errors import unsupported
from headrace.server.schema.lists import Listed, Numbers

log = logging.getLogger(__name__)

# vLLM's older names for structured outputs.
_GUIDED = {"guided_json": "json", "guided_regex": "regex", "guided_choice": "choice", "guided_grammar": "grammar"}


class RequestModel(BaseModel):
    """A request body. Types are strict; a field that nobody knows is ignored, with a line in the log."""

    model_config = ConfigDict(strict=True, extra="allow")

    def log_unknown(self) -> None:
        """Names the fields that have no effect."""
        if self.model_extra:
            log.info("ignored unknown fields: %s", ", ".join(sorted(map(ascii, self.model_extra)))[:500])


class StructuredFields(BaseModel):
    """vLLM's `structured_outputs`: exactly one of these."""

    model_config = ConfigDict(strict=True, extra="forbid", populate_by_name=True)

    json_: Any | None = Field(None, alias="json")
    json_object: bool | None = None
    regex: str | None = None
    choice: Listed[str] | None = None
    grammar: str | None = None

    def value(self) -> StructuredOutputs:
        """As the engine takes it."""
        return StructuredOutputs(
            json=self.json_,
            json_object=self.json_object or False,
            regex=self.regex,
            choice=self.choice,
            grammar=self.grammar,
        )


class JSONSchemaFormat(BaseModel):
    """`response_format.json_schema`."""

    model_config = ConfigDict(strict=True, extra="ignore")

    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | bool | None = Field(None, alias="schema")
    strict: bool | None = None


class ResponseFormat(BaseModel):
    """`response_format`."""

    model_config = ConfigDict(strict=True, extra="ignore")

    type: str
    json_schema: JSONSchemaFormat | None = None

    def value(self) -> StructuredOutputs | None:
        """As the engine takes it; None for plain text."""
        if self.type == "text":
            return None
        if self.type == "json_object":
            return StructuredOutputs(json_object=True)
        if self.type == "json_schema":
            if self.json_schema is None:
                raise RequestError("response_format.json_schema", "is missing")
            if self.json_schema.schema_ is None:
                raise RequestError("response_format.json_schema.schema", "is missing")
            return StructuredOutputs(json=self.json_schema.schema_)
        raise RequestError("response_format.type", "must be text, json_object or json_schema")


class SamplingFields(RequestModel):
    """Every field of `SamplingParams` that means the same at each endpoint, under OpenAI's or vLLM's name; null is the
    same as absent. docs/sampling.md says what each does."""

    n: int | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: Numbers | None = None
    allowed_token_ids: Listed[int] | None = None
    bad_words: Listed[str] | None = None
    stop: str | Listed[str] | None = None
    stop_token_ids: Listed[int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    seed: int | None = None
    prompt_logprobs: int | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    truncate_prompt_tokens: int | None = None
    priority: int | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredFields | None = None
    guided_json: Any | None = None
    guided_regex: str | None = None
    guided_choice: Listed[str] | None = None
    guided_grammar: str | None = None
    cache_salt: str | None = None

    def sampling_params(self, **others: Any) -> SamplingParams:
        """What the engine is asked for; `others` are fields that the endpoint works out itself.

        Raises:
            RequestError: a value is wrong.
        """
        given = {name: getattr(self, name) for name in SamplingFields.model_fields if name in _PLAIN}
        given["structured_outputs"] = self._structured()
        given.update(others)
        return SamplingParams(**{name: value for name, value in given.items() if value is not None})

    def _structured(self) -> StructuredOutputs | None:
        """The one form that the output has to have."""
        given: dict[str, StructuredOutputs | None] = {}
        if self.response_format is not None:
            given["response_format"] = self.response_format.value()
        if self.structured_outputs is not None:
            given["structured_outputs"] = self.structured_outputs.value()
        for name, field in _GUIDED.items():
            if getattr(self, name) is not None:
                given[name] = StructuredOutputs(**{field: getattr(self, name)})
        asked = {name: value for name, value in given.items() if value is not None}
        if len(asked) > 1:
            first, second, *_ = asked
            raise RequestError(second, f"cannot be given together with {first}")
        return next(iter(asked.values()), None)

    def refuse(self, **fields: str) -> None:
        """Refuses fields that are known and not implemented: name -> what to do instead."""
        for name, what in fields.items():
            if (self.model_extra or {}).get(name) not in (None, False, [], {}):
                raise unsupported(name, what)


_PLAIN = {*SamplingFields.model_fields} & {*SamplingParams.__dataclass_fields__} - {"structured_outputs"}


class StreamOptions(BaseModel):
    """`stream_options`."""

    model_config = ConfigDict(strict=True, extra="ignore")

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
