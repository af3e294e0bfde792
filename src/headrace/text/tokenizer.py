"""Text to token ids and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, models

from headrace.text.checks import check_text
from headrace.text.definition import TokenizerDefinition
from headrace.text.folder_tokenizer import read_folder_tokenizer
from headrace.text.gguf_tokenizer import read_gguf_tokenizer
from headrace.text.pieces import piece_decoder


class Tokenizer:
    """A model's tokenizer, with what else the model's files say about its tokens.

    Safe to use from several threads at once.
    """

    def __init__(self, definition: TokenizerDefinition) -> None:
        self._definition = definition
        self._backend = definition.backend
        self._pieces = piece_decoder(definition.backend)
        self._added: dict[int, Any] = definition.backend.get_added_tokens_decoder()
        self._special = frozenset(id for id, token in self._added.items() if token.special)
        self._vocab_size = max(definition.backend.get_vocab().values(), default=-1) + 1
        # Filled on first use; two threads may fill one entry, with the same value.
        self._bytes: list[bytes | None] = [None] * self._vocab_size
        self._literal_backend = _without_special(definition.backend, self._added)
        self._special_ids = {self._added[id].content: id for id in sorted(self._special)}
        self._special_finder = _finder(self._special_ids)

    @classmethod
    def from_folder(cls, path: Path) -> Tokenizer:
        """Read the tokenizer of a model folder: `tokenizer.json` and the JSON files next to it.

        Raises:
            ModelError: a file is missing or unusable.
        """
        return cls(read_folder_tokenizer(path))

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any], cache: Path | None = None) -> Tokenizer:
        """Build the tokenizer that a GGUF file's metadata describes.

        Args:
            cache: folder for what takes long to work out of a large vocabulary.

        Raises:
            ModelError: the file's kind of tokenizer is unknown, or its data is incomplete.
        """
        return cls(read_gguf_tokenizer(metadata, cache))

    @property
    def vocab_size(self) -> int:
        """The highest defined id plus one; ids from here on have no text."""
        return self._vocab_size

    @property
    def bos_id(self) -> int | None:
        """Id of the token that starts a text."""
        return self._definition.bos_id

    @property
    def eos_ids(self) -> frozenset[int]:
        """Every id that ends generation."""
        return self._definition.eos_ids

    @property
    def bos_token(self) -> str:
        """The text of the start token, as chat templates print it; empty without one."""
        return self._text_of(self._definition.bos_id)

    @property
    def eos_token(self) -> str:
        """The text of the model's own end token, as chat templates print it; empty without one."""
        return self._text_of(self._definition.eos_id)

    @property
    def adds_bos(self) -> bool:
        """Whether this model wants a prompt to start with BOS."""
        return self._definition.adds_bos

    @property
    def chat_template(self) -> str | None:
        """Source of the model's chat template."""
        return self._definition.chat_template

    @property
    def special_ids(self) -> Mapping[str, int]:
        """The control tokens: text to id."""
        return self._special_ids

    def encode(self, text: str, *, add_bos: bool = True, parse_special: bool = True) -> list[int]:
        """Return the ids of a text; never adds an end token.

        Args:
            text: any Unicode text.
            add_bos: start with BOS if this model wants one. A text that itself starts with the BOS token's text then
                has two, as it says.
            parse_special: whether the text of a control token becomes that token. If not, it is ordinary text;
                user-defined tokens still match.

        Raises:
            RequestError: `text` is not a string or holds a lone surrogate.
        """
        check_text("prompt", text)
        backend = self._backend if parse_special else self._literal_backend
        # Not `encode`, which works out what nobody needs and lets no other thread run meanwhile.
        ids: list[int] = backend.encode_batch_fast([text], add_special_tokens=False)[0].ids
        bos_id = self._definition.bos_id
        if add_bos and self._definition.adds_bos and bos_id is not None:
            ids.insert(0, bos_id)
        return ids

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """Return the text of a whole sequence of ids.

        Bytes that are not UTF-8 become U+FFFD. If encoding puts a space before the text, this drops it again; the
        incremental detokenizer, whose text continues a prompt, does not.
        """
        data = b"".join(self.token_bytes(id) for id in ids if not (skip_special and self.is_special(id)))
        text = data.decode("utf-8", errors="replace")
        return text.removeprefix(" ") if self._pieces.drops_leading_space else text

    def split_special(self, text: str) -> list[str]:
        """Split a text at the control tokens in it.

        Returns:
            Ordinary text, possibly empty, at the even places; control tokens' text at the odd ones.
        """
        parts: list[str] = []
        end = 0
        for start, stop in self._special_finder.encode_batch([text])[0].offsets:
            parts += text[end:start], text[start:stop]
            end = stop
        return [*parts, text[end:]]

    def token_bytes(self, id: int) -> bytes:
        """Return the bytes that a token stands for: part of a character, text, or a control token's own text.

        An id without a token has none: `b""`.
        """
        if not 0 <= id < self._vocab_size:
            return b""
        data = self._bytes[id]
        if data is None:
            piece = self._backend.id_to_token(id)
            data = b"" if piece is None else self._pieces.bytes_of(piece, is_added=id in self._added)
            self._bytes[id] = data
        return data

    def piece(self, id: int) -> str:
        """Return the token as the vocabulary writes it, `Ġriver` say; empty for an id without one."""
        return self._text_of(id) or ""

    def is_special(self, id: int) -> bool:
        """Whether the id is a control token, which is not part of the text that a user sees."""
        return id in self._special

    def _text_of(self, id: int | None) -> str:
        return "" if id is None else self._backend.id_to_token(id)


def _without_special(backend: Any, added: Mapping[int, Any]) -> Any:
    """Return a tokenizer that sees control tokens' text as ordinary text; it shares the vocabulary and merges."""
    literal = tokenizers.Tokenizer(backend.model)
    literal.normalizer = backend.normalizer
    literal.pre_tokenizer = backend.pre_tokenizer
    # All of them, in the order of their ids: the ids that come after the vocabulary follow from the order.
    literal.add_tokens([token for _, token in sorted(added.items())])
    literal.encode_special_tokens = True
    return literal


def _finder(texts: Iterable[str]) -> Any:
    """Return a tokenizer with no vocabulary but these texts, so that its encoding says where they occur."""
    finder = tokenizers.Tokenizer(models.BPE())
    finder.add_tokens([AddedToken(text, normalized=False) for text in texts])
    return finder
