"""Text from tokens as they are generated, one at a time."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from headrace.text.tokenizer import Tokenizer


class IncrementalDetokenizer:
    """Turns one sequence's tokens into text as they arrive, in whole characters.

    The deltas and `finish()` joined are what `Tokenizer.decode` makes of all the ids, except that a leading space
    stays: generated text continues a prompt. A byte that cannot be part of UTF-8 becomes U+FFFD as soon as that is
    certain; the bytes of a character that is still incomplete wait for the next token.

    Args:
        tokenizer: of the model.
        skip_special: control tokens are not part of the text,
        shown: except for these.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool = True, shown: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._shown = shown
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        """Return the text that this token completes; empty for half a character or a skipped control token."""
        if self._skip_special and self._tokenizer.is_special(token_id) and token_id not in self._shown:
            return ""
        return self._decoder.decode(self._tokenizer.token_bytes(token_id))

    def finish(self) -> str:
        """Return what an incomplete last character leaves: U+FFFD, or nothing."""
        return self._decoder.decode(b"", final=True)
