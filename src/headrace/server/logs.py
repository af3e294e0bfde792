"""The server's log: lines of text or of JSON on stderr, each with the id of the request that it is about."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal, get_args

from headrace.errors import ConfigError
from headrace.server.request_context import current

LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]


def configure(log_format: LogFormat, level: LogLevel) -> None:
    """Makes the process log in one form, whatever library speaks; uvicorn must be run with `log_config=None`."""
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(add_request_id)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    for name in ("headrace", "uvicorn"):
        logging.getLogger(name).setLevel(level.upper())
    # Each request is logged once, by us.
    logging.getLogger("uvicorn.access").disabled = True


def check_log_options(log_format: str, level: str) -> None:
    """Raises ConfigError for an unknown format or level."""
    for name, value, known in (("log_format", log_format, LogFormat), ("log_level", level, LogLevel)):
        if value not in get_args(known):
            raise ConfigError(f"{name}: {value!r} is not one of {', '.join(get_args(known))}")


def add_request_id(record: logging.LogRecord) -> bool:
    """The id must be taken where the record is made: the formatter may run elsewhere."""
    context = current.get()
    record.request_id = getattr(record, "request_id", None) or (context and context.request_id)
    return True


class JsonFormatter(logging.Formatter):
    """A record as one line of JSON: time, level, logger, message, request_id, exception, and its own `fields`."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        line: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if request_id := getattr(record, "request_id", None):
            line["request_id"] = request_id
        line |= _fields(record)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


class TextFormatter(logging.Formatter):
    """A record for people: time, level, message, request id and fields as name=value; a traceback on further lines."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, or lines where there is a traceback."""
        parts = [_time(record), f"{record.levelname:<7}", _one_line(record.getMessage())]
        named = {"request_id": getattr(record, "request_id", None), **_fields(record)}
        parts += [f"{name}={_plain(value)}" for name, value in named.items() if value is not None]
        text = " ".join(parts)
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _fields(record: logging.LogRecord) -> Mapping[str, Any]:
    fields: Mapping[str, Any] = getattr(record, "fields", {})
    return fields


def _one_line(text: str) -> str:
    """What came from outside must not look like another line."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text.replace("\n", " | "))


def _plain(value: Any) -> str:
    text = ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
    return text if text and text.isprintable() and not set(text) & set(" \"'=") else json.dumps(text)
