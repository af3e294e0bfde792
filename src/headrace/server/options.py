"""What an operator may set about the server, as opposed to the engine."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from headrace.errors import ConfigError
from headrace.sampling.params import MAX_N, MAX_STOPS
from headrace.server.keys import check_key
from headrace.server.logs import LogFormat, LogLevel, check_log_options
from headrace.text.tools.formats import tool_format

MAX_PORT = 65535
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s]+")


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """Limits and switches of the server.

    Attributes:
        host, port: where it listens; port 0 takes a free one.
        served_model_names: what clients may call the model; the first is what answers say. Empty: the model's own name.
        max_body_bytes: longest request body.
        max_prompts: most prompts of one completion request, and inputs of one embeddings request.
        max_n: most choices for one prompt.
        max_stops: most stop strings.
        max_schema_chars: longest schema, grammar or list of tools of one request.
        request_timeout_s: seconds after which an unfinished request ends with an error; None for no limit.
        grace_s: seconds that running requests may take after SIGTERM.
        step_timeout_s: seconds after which a step that does not end counts as the engine's death.
        tool_parser: the form in which the model writes tool calls: auto, hermes, llama3, mistral or json.
        separate_reasoning: chats return the model's reasoning apart from the answer, unless a request says otherwise.
        api_keys: clients have to show one of these; with none anybody is served.
        admin_key: opens the routes below /admin/, which do not exist without it.
        metrics_without_key: /metrics is open even where there are keys.
        cors_origins: origins of web pages that may use the API, as in https://example.com; "*" for all.
        allowed_hosts: host names that URLs of requests may have besides this machine's own; "*" for any. None given:
            any, but where the server has no keys and listens only to this machine.
        log_format: lines of the log are "text" or "json".
        log_level: least that is logged: "debug", "info", "warning" or "error".
        otlp_traces_endpoint: URL that spans are sent to, as in http://localhost:4318/v1/traces; needs `headrace[otel]`.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    served_model_names: tuple[str, ...] = ()
    max_body_bytes: int = 8 << 20
    max_prompts: int = 256
    max_n: int = MAX_N
    max_stops: int = MAX_STOPS
    max_schema_chars: int = 1 << 16
    request_timeout_s: float | None = None
    grace_s: float = 30.0
    step_timeout_s: float = 300.0
    tool_parser: str = "auto"
    separate_reasoning: bool = False
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    admin_key: str | None = field(default=None, repr=False)
    metrics_without_key: bool = False
    cors_origins: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    log_format: LogFormat = "text"
    log_level: LogLevel = "info"
    otlp_traces_endpoint: str | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.port <= MAX_PORT:
            raise ConfigError(f"port: {self.port} is not 0 to {MAX_PORT}")
        for name in ("max_body_bytes", "max_prompts", "max_n", "max_stops", "max_schema_chars"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: must be at least 1, not {getattr(self, name)}")
        if self.request_timeout_s is not None and not self.request_timeout_s > 0:
            raise ConfigError(f"request_timeout_s: must be more than 0, not {self.request_timeout_s}")
        if not self.grace_s >= 0:
            raise ConfigError(f"grace_s: must be at least 0, not {self.grace_s}")
        if not self.step_timeout_s > 0:
            raise ConfigError(f"step_timeout_s: must be more than 0, not {self.step_timeout_s}")
        tool_format(self.tool_parser, "")
        for name, keys in (("api_key", self.api_keys), ("admin_key", (self.admin_key,))):
            for key in keys:
                if key is not None:
                    check_key(name, key)
        if self.admin_key in self.api_keys:
            raise ConfigError("admin_key: must not be an API key as well")
        for origin in self.cors_origins:
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                raise ConfigError(f"cors_origins: {origin!r} is no origin such as https://example.com or *")
        check_log_options(self.log_format, self.log_level)
