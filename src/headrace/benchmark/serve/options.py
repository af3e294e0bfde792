"""What a run of `headrace bench serve` is asked to do."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from headrace.benchmark.serve.datasets import Dataset
from headrace.benchmark.serve.http import Address
from headrace.errors import ConfigError

COMPLETIONS, CHAT = "completions", "chat"
_PATHS = {CHAT: "/chat/completions", COMPLETIONS: "/completions"}  # the longer one first
GOODPUT = ("ttft", "tpot", "e2e")
DEFAULT_REQUESTS = 100


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """One run.

    Attributes:
        url: of the server, with or without `/v1` or the endpoint.
        api: `completions` or `chat`; None for what the URL says, else completions.
        model: None for the first that the server lists.
        dataset: what is asked.
        num_requests: None for 100, for a shared prefix one of each, with `duration` no limit.
        duration: seconds after which no more are sent; those under way are waited for.
        request_rate: requests per second, arriving at random; infinite for all at once.
        burstiness: shape of the gamma distribution of the times between arrivals; 1 is a Poisson process, less comes
            in bursts, more is more even.
        concurrency: most requests at once; None for no limit.
        warmup: requests before the others, of which nothing is counted.
        cancel: share of requests that hang up at random; a quarter of them before anything came.
        slow_readers: share of requests that read slowly.
        goodput: ms for any of `GOODPUT`.
        extra_body: fields of each request's body, over all others.
        timeout: seconds that one request may take.
    """

    url: str
    api: str | None = None
    model: str | None = None
    api_key: str | None = field(default=None, repr=False)
    dataset: Dataset = field(default_factory=Dataset)
    num_requests: int | None = None
    duration: float | None = None
    request_rate: float = math.inf
    burstiness: float = 1.0
    concurrency: int | None = None
    warmup: int = 1
    stream: bool = True
    usage: bool = True
    temperature: float | None = None
    ignore_eos: bool = False
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    cancel: float = 0.0
    slow_readers: float = 0.0
    percentiles: tuple[float, ...] = (50.0, 90.0, 99.0)
    goodput: Mapping[str, float] = field(default_factory=dict)
    seed: int = 0
    timeout: float = 600.0

    def __post_init__(self) -> None:
        for name in ("request_rate", "burstiness", "timeout", "duration"):
            if getattr(self, name) is not None and not getattr(self, name) > 0:
                raise ConfigError(f"{name}: {getattr(self, name)} is not above 0")
        for name in ("cancel", "slow_readers"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name}: {getattr(self, name)} is not a share from 0 to 1")
        for percent in self.percentiles:
            if not 0 <= percent <= 100:
                raise ConfigError(f"percentiles: {percent:g} is not from 0 to 100")
        for name, limit in self.goodput.items():
            if name not in GOODPUT or not limit > 0:
                raise ConfigError(f"goodput: {name}:{limit:g} is none of {', '.join(GOODPUT)} with ms above 0")
        if self.api not in (None, *_PATHS):
            raise ConfigError(f"api: {self.api!r} is neither completions nor chat")
        if self.api_key and not (self.api_key.isascii() and self.api_key.isprintable()):
            raise ConfigError("api_key: holds what a header cannot")
        if (self.cancel or self.slow_readers) and not self.stream:
            raise ConfigError("stream: cancelled requests and slow readers need streams")
        if self.num_requests is None and math.isinf(self.request_rate) and self.duration and not self.concurrency:
            raise ConfigError("duration: without num_requests it needs a request_rate or a concurrency")
        Address.parse(self.url)

    @property
    def address(self) -> Address:
        """Where the server is; the path is that of the API's root, as in `/v1`."""
        given = Address.parse(self.url)
        path = given.path
        for end in _PATHS.values():
            path = path.removesuffix(end)
        return Address(given.host, given.port, given.tls, path if path.endswith("/v1") else f"{path}/v1")

    @property
    def endpoint(self) -> str:
        """`completions` or `chat`."""
        path = Address.parse(self.url).path
        return self.api or next((api for api, end in _PATHS.items() if path.endswith(end)), COMPLETIONS)

    @property
    def path(self) -> str:
        """What requests are sent to."""
        return self.address.path + _PATHS[self.endpoint]

    @property
    def count(self) -> int | None:
        """Requests to send; None where only the duration ends the run."""
        if self.num_requests is None and self.duration is None:
            return self.dataset.size or DEFAULT_REQUESTS
        return self.num_requests

    @property
    def headers(self) -> dict[str, str]:
        """Of each request."""
        accept = {"Accept": "text/event-stream" if self.stream else "application/json"}
        return accept | ({"Authorization": f"Bearer {self.api_key}"} if self.api_key else {})

    def as_dict(self) -> dict[str, Any]:
        """For JSON, without the key."""
        fields = asdict(self)
        del fields["api_key"]
        rate = None if math.isinf(self.request_rate) else self.request_rate
        file = None if self.dataset.file is None else str(self.dataset.file)
        return {**fields, "api": self.endpoint, "request_rate": rate, "dataset": {**fields["dataset"], "file": file}}
