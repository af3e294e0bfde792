"""Errors that a caller can act on. Each message names the field or file at fault and what to do about it."""

from __future__ import annotations


class HeadraceError(Exception):
    """Base of every error that Headrace raises on purpose."""


class ConfigError(HeadraceError, ValueError):
    """An engine option is wrong, or the options do not fit each other or the machine."""


class ModelError(HeadraceError):
    """A model cannot be found, fetched, read or understood."""


class RequestError(HeadraceError, ValueError):
    """One request is wrong; nothing of it reached the engine.

    Attributes:
        param: name of the request field at fault.
    """

    def __init__(self, param: str, message: str) -> None:
        super().__init__(f"{param}: {message}")
        self.param = param


class QueueFullError(HeadraceError):
    """As many requests wait as may; try again later."""


class StepError(HeadraceError, RuntimeError):
    """The execution layer was asked for something that it never compiled."""
