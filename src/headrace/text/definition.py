"""What a tokenizer is made of, whichever file it was read from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class TokenizerDefinition:
    """The parts of a tokenizer.

    Attributes:
        backend: a `tokenizers.Tokenizer` with every control token registered as special.
        bos_id: id of the token that starts a text, if the model has one.
        eos_id: id of the token that the model names as its end, if any.
        eos_ids: every id that ends generation; contains `eos_id`.
        adds_bos: whether an encoded prompt starts with `bos_id`.
        chat_template: source of the model's own chat template.
    """

    backend: Any
    bos_id: int | None
    eos_id: int | None
    eos_ids: frozenset[int]
    adds_bos: bool
    chat_template: str | None
