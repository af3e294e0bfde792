"""From the command line's options to what a request asks for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.sampling.params import SamplingParams

_STRUCTURES = ("json_schema", "json_object", "regex", "choice", "grammar")


def sampling_params(given: dict[str, Any], **defaults: Any) -> SamplingParams:
    """The parameters that were given, and the command's own defaults for the others.

    Raises:
        RequestError: as `SamplingParams` does.
        HeadraceError: a file cannot be read.
    """
    from headrace.sampling.params import SamplingParams
    from headrace.sampling.structured import StructuredOutputs

    fields = {**defaults, **given}
    structure = {name: fields.pop(name) for name in _STRUCTURES if name in fields}
    if "json_schema" in structure:
        structure["json"] = _read(structure.pop("json_schema"))
    if "grammar" in structure:
        structure["grammar"] = _read(structure["grammar"])
    if structure:
        fields["structured_outputs"] = StructuredOutputs(**structure)
    if "logit_bias" in fields:
        fields["logit_bias"] = _biases(fields["logit_bias"])
    return SamplingParams(**fields)


def _biases(texts: Sequence[str]) -> dict[str, float]:
    """From ["1234=-100", …]; of the same id twice the last holds."""
    biases = {}
    for text in texts:
        token, _, value = text.partition("=")
        try:
            biases[token] = float(value)
        except ValueError:
            raise typer.BadParameter(f"{text!r} is not ID=VALUE such as 1234=-100", param_hint="--logit-bias") from None
    return biases


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise HeadraceError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise HeadraceError(f"{path}: is no UTF-8 text") from None
