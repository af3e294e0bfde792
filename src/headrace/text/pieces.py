"""From a token's spelling in the vocabulary to the bytes that it stands for."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.errors import ModelError

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _byte_alphabet() -> dict[str, int]:
    """Return which byte each character of a byte-level vocabulary stands for.

    Printable Latin-1 characters stand for themselves; the other bytes, in order, take the characters from U+0100 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_BYTE_OF_CHAR = _byte_alphabet()


@dataclass(frozen=True, slots=True)
class PieceDecoder:
    """Turns single tokens into bytes; the bytes of a text are the concatenation of its tokens' bytes.

    Attributes:
        byte_level: whether ordinary tokens are spelled in the byte alphabet.
        byte_fallback: whether a token spelled <0xNN> is that byte.
        replacements: substrings to replace in a token, in order.
        drops_leading_space: whether encoding puts one space before the text, which decoding a whole text removes.
    """

    byte_level: bool = False
    byte_fallback: bool = False
    replacements: Mapping[str, str] = field(default_factory=dict)
    drops_leading_space: bool = False

    def bytes_of(self, piece: str, *, is_added: bool) -> bytes:
        """Return the bytes of a token; an added token is spelled as plain text even in a byte-level vocabulary."""
        if self.byte_level:
            if is_added or not all(char in _BYTE_OF_CHAR for char in piece):
                return piece.encode()
            return bytes(_BYTE_OF_CHAR[char] for char in piece)
        if self.byte_fallback and (match := _BYTE_TOKEN.fullmatch(piece)):
            return bytes.fromhex(match[1])
        for old, new in self.replacements.items():
            piece = piece.replace(old, new)
        return piece.encode()


def piece_decoder(backend: Any) -> PieceDecoder:
    """Return the token-by-token equivalent of a `tokenizers.Tokenizer`'s decoder.

    Raises:
        ModelError: the decoder is missing, or of a type that does not work token by token.
    """
    if backend.decoder is None:
        raise ModelError(
            "the tokenizer has no decoder; supported are ByteLevel, Metaspace and SentencePiece-style ones"
        )
    byte_level = byte_fallback = drops_leading_space = False
    replacements: dict[str, str] = {}
    for step in _steps(json.loads(backend.decoder.__getstate__())):
        match step:
            case {"type": "ByteLevel"}:
                byte_level = True
            case {"type": "ByteFallback"}:
                byte_fallback = True
            case {"type": "Fuse"}:
                pass
            case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)}:
                replacements[old] = new
            case {"type": "Strip", "content": " ", "start": 0 | 1 as start, "stop": 0}:
                drops_leading_space = start == 1
            case {"type": "Metaspace", "replacement": str(mark)}:
                replacements[mark] = " "
                drops_leading_space = step.get("prepend_scheme", "always") != "never"
            case _:
                raise ModelError(f"the tokenizer's decoder is of an unsupported type: {json.dumps(step)}")
    return PieceDecoder(byte_level, byte_fallback, replacements, drops_leading_space)


def _steps(decoder: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if decoder["type"] == "Sequence":
        for step in decoder["decoders"]:
            yield from _steps(step)
    else:
        yield decoder
