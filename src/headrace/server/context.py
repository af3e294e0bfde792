"""What every route needs: the engine's bridge, the options, and the model's names and template."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from fastapi import Request

from headrace.config import EngineConfig
from headrace.server.bridge import Bridge
from headrace.server.engine_figures import EngineFigures
from headrace.server.errors import NOT_FOUND, APIError
from headrace.server.metrics import Metrics
from headrace.server.options import ServerOptions
from headrace.server.tracing import Tracing
from headrace.text.chat import ChatTemplate
from headrace.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Server:
    """One served model.

    Attributes:
        bridge: to the engine.
        options: of the server.
        template: the model's chat template, if it has one.
        metrics: what Prometheus reads.
        tracing: where spans go, if anywhere.
        loading: held while new weights are loaded.
        started: Unix time of the start, in seconds.
    """

    bridge: Bridge
    options: ServerOptions
    template: ChatTemplate | None
    metrics: Metrics
    tracing: Tracing | None
    loading: asyncio.Lock = field(default_factory=asyncio.Lock)
    started: int = field(default_factory=lambda: int(time.time()))

    @classmethod
    def of(cls, bridge: Bridge, options: ServerOptions) -> Server:
        """The server of an engine, which from now on tells the server's metrics of its requests."""
        tokenizer, template = bridge.engine.tokenizer, None
        if tokenizer.chat_template is not None:
            tokens = {"bos_token": tokenizer.bos_token, "eos_token": tokenizer.eos_token}
            template = ChatTemplate(tokenizer.chat_template, **tokens)
        config = bridge.engine.config
        assert config.max_model_len is not None
        model = (options.served_model_names or (config.model,))[0]
        metrics = Metrics(model, config.max_model_len)
        metrics.registry.register(EngineFigures(bridge, metrics.labels))
        bridge.observer = metrics.requests
        endpoint = options.otlp_traces_endpoint
        tracing = None if endpoint is None else Tracing.to(endpoint, model)
        return cls(bridge, options, template, metrics, tracing)

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's."""
        return self.bridge.engine.tokenizer

    @property
    def config(self) -> EngineConfig:
        """The engine's options, filled in."""
        return self.bridge.engine.config

    @property
    def max_model_len(self) -> int:
        """Longest sequence in tokens, prompt and answer."""
        assert self.config.max_model_len is not None
        return self.config.max_model_len

    @property
    def model_names(self) -> tuple[str, ...]:
        """What clients may call the model; answers say the first."""
        return self.options.served_model_names or (self.config.model,)

    @property
    def model(self) -> str:
        """What answers call the model."""
        return self.model_names[0]

    def check_model(self, name: str | None) -> None:
        """Refuses a request for another model. None, where a client leaves it out, is the one there is."""
        if name is not None and name not in self.model_names:
            served = ", ".join(self.model_names)
            raise APIError(
                404,
                f"the model {name!r} does not exist; this server has {served}",
                type=NOT_FOUND,
                param="model",
                code="model_not_found",
            )


async def server_of(request: Request) -> Server:
    """The server that a request came to. No plain function: FastAPI would call that in a thread."""
    server: Server = request.app.state.server
    return server
