"""What one request saw."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

OK, ERROR, CANCELLED = "ok", "error", "cancelled"


@dataclass(slots=True, kw_only=True)
class RequestRecord:
    """One request: what was asked, what came when, and how it ended. Moments are seconds since the run began.

    Attributes:
        due: when the arrival process wanted it sent; `start`: when it was, before a connection was sought.
        end: the last chunk with a choice in it; of an error or a cancelled request the moment of that.
        outcome: `ok`, `error` or `cancelled` (by us, as `--cancel` asks); None while it runs.
        slow: it was read slowly on purpose, so its times say nothing of the server.
        chunks: when each chunk with output came. Those that one read brought share a moment.
        input_tokens, output_tokens: as the server's `usage` says where `counted_by` is `usage`; else the length that
            the dataset meant, and the number of chunks with output (`chunks`).
        kind, error: of an error, its kind for counting and its text.
    """

    index: int
    due: float
    max_tokens: int
    input_tokens: int
    slow: bool = False
    start: float = 0.0
    end: float = 0.0
    outcome: str | None = None
    chunks: list[float] = field(default_factory=list)
    output_tokens: int = 0
    counted_by: str = "chunks"
    cached_tokens: int | None = None
    finish_reason: str | None = None
    kind: str | None = None
    error: str | None = None

    @property
    def first(self) -> float:
        """When the first output came. An answer without any text counts with its end."""
        return self.chunks[0] if self.chunks else self.end

    @property
    def ttft(self) -> float:
        """Time to first token, in seconds: from `start` to the first chunk with output."""
        return self.first - self.start

    @property
    def e2e(self) -> float:
        """End-to-end latency, in seconds: from `start` to `end`."""
        return self.end - self.start

    @property
    def tpot(self) -> float | None:
        """Time per output token after the first, in seconds: (e2e - ttft) / (output tokens - 1)."""
        return (self.e2e - self.ttft) / (self.output_tokens - 1) if self.output_tokens > 1 else None

    @property
    def itls(self) -> list[float]:
        """Inter-token latencies, in seconds: the times between neighbouring chunks with output."""
        return [b - a for a, b in pairwise(self.chunks)]

    def fail(self, kind: str, error: str, now: float) -> None:
        """Ends it as an error."""
        self.outcome, self.kind, self.error, self.end = ERROR, kind, error, now

    def count(self, usage: Mapping[str, Any]) -> None:
        """Takes the server's own numbers of tokens, where it gives both."""
        prompt, completion = usage.get("prompt_tokens"), usage.get("completion_tokens")
        if isinstance(prompt, int) and isinstance(completion, int):
            self.input_tokens, self.output_tokens, self.counted_by = prompt, completion, "usage"
            details = usage.get("prompt_tokens_details")
            self.cached_tokens = details.get("cached_tokens") if isinstance(details, dict) else None

    def as_dict(self) -> dict[str, Any]:
        """For JSON, with what follows from it, to the microsecond."""
        derived = {"ttft": self.ttft, "e2e": self.e2e, "tpot": self.tpot} if self.outcome == OK else {}
        return {key: _rounded(value) for key, value in {**asdict(self), **derived}.items()}


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 6)
    return [round(one, 6) for one in value] if isinstance(value, list) else value
