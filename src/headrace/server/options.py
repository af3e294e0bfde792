"""What an operator may set about the server, as opposed to the engine."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.errors import ConfigError
from headrace.server.logs import LogFormat, LogLevel, check_log_options
from headrace.text.tools.formats import tool_format

MAX_PORT = 65535


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """Limits and switches of the server.

    Attributes:
        host, port: where it listens; port 0 takes a free one.
        served_model_names: what clients may call the model; the first is what answers say. Empty: the model's own name.
        max_body_bytes: longest request body.
        max_prompts: most prompts of one completion request, and inputs of one embeddings request.
        request_timeout_s: seconds after which an unfinished request ends with an error; None for no limit.
        grace_s: seconds that running requests may take after SIGTERM.
        step_timeout_s: seconds after which a step that does not end counts as the engine's death.
        tool_parser: the form in which the model writes tool calls: auto, hermes, llama3, mistral or json.
        separate_reasoning: chats return the model's reasoning apart from the answer, unless a request says otherwise.
        log_format: lines of the log are "text" or "json".
        log_level: least that is logged: "debug", "info", "warning" or "error".
        otlp_traces_endpoint: URL that spans are sent to, as in http://localhost:4318/v1/traces; needs `headrace[otel]`.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    served_model_names: tuple[str, ...] = ()
    max_body_bytes: int = 8 << 20
    max_prompts: int = 256
    request_timeout_s: float | None = None
    grace_s: float = 30.0
    step_timeout_s: float = 300.0
    tool_parser: str = "auto"
    separate_reasoning: bool = False
    log_format: LogFormat = "text"
    log_level: LogLevel = "info"
    otlp_traces_endpoint: str | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.port <= MAX_PORT:
            raise ConfigError(f"port: {self.port} is not 0 to {MAX_PORT}")
        for name in ("max_body_bytes", "max_prompts"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: must be at least 1, not {getattr(self, name)}")
        if self.request_timeout_s is not None and not self.request_timeout_s > 0:
            raise ConfigError(f"request_timeout_s: must be more than 0, not {self.request_timeout_s}")
        if not self.grace_s >= 0:
            raise ConfigError(f"grace_s: must be at least 0, not {self.grace_s}")
        if not self.step_timeout_s > 0:
            raise ConfigError(f"step_timeout_s: must be more than 0, not {self.step_timeout_s}")
        tool_format(self.tool_parser, "")
        check_log_options(self.log_format, self.log_level)
