"""Log-probabilities in the forms of the two completion endpoints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.sampling.scores import TokenLogprobs
from headrace.text.tokenizer import Tokenizer

LEAST = -9999.0  # what JSON gets for the logarithm of 0


def token_text(tokenizer: Tokenizer, token_id: int) -> str:
    """A token by itself as text; bytes that are no whole characters become U+FFFD."""
    return tokenizer.token_bytes(token_id).decode("utf-8", "replace")


def chat_entries(tokenizer: Tokenizer, scores: Sequence[TokenLogprobs]) -> list[dict[str, Any]]:
    """The "content" list of a chat choice's "logprobs"."""
    return [
        _entry(tokenizer, score.token_id, score.logprob)
        | {"top_logprobs": [_entry(tokenizer, token, logprob) for token, logprob in score.top]}
        for score in scores
    ]


def _entry(tokenizer: Tokenizer, token_id: int, logprob: float) -> dict[str, Any]:
    own = tokenizer.token_bytes(token_id)
    return {"token": own.decode("utf-8", "replace"), "logprob": max(logprob, LEAST), "bytes": [*own]}


def prompt_entries(tokenizer: Tokenizer, scores: Sequence[TokenLogprobs | None]) -> list[dict[str, Any] | None]:
    """vLLM's "prompt_logprobs": of each token of the prompt and the most likely in its place, by id; the first has
    none."""
    return [None if score is None else _by_id(tokenizer, score) for score in scores]


def _by_id(tokenizer: Tokenizer, score: TokenLogprobs) -> dict[str, Any]:
    entries = [(score.token_id, score.logprob, score.rank)]
    entries += [(token, logprob, rank) for rank, (token, logprob) in enumerate(score.top, 1) if token != score.token_id]
    return {
        str(token): {"logprob": max(logprob, LEAST), "rank": rank, "decoded_token": token_text(tokenizer, token)}
        for token, logprob, rank in entries
    }


class CompletionLogprobs:
    """The "logprobs" object of one text completion choice, piece by piece.

    `text_offset` is where a token's text begins in the choice's text, whose characters come whole: a token that ends in
    the middle of one has the offset of that character.
    """

    def __init__(self, tokenizer: Tokenizer, num_top: int, skip_special: bool, echo: str) -> None:
        self._tokenizer, self._num_top, self._skip_special, self._echo = tokenizer, num_top, skip_special, echo
        self._bytes = b""  # of the character that is not complete
        self._offset = 0

    def take(self, tokens: Sequence[int], scores: Sequence[TokenLogprobs | None]) -> dict[str, Any]:
        """The object of the next tokens."""
        texts = [token_text(self._tokenizer, token) for token in tokens]
        logprobs = [None if score is None else max(score.logprob, LEAST) for score in scores]
        return {
            "text_offset": [self._begin(token) for token in tokens],
            "token_logprobs": logprobs,
            "tokens": texts,
            "top_logprobs": [self._top(score) for score in scores] if self._num_top else None,
        }

    def _top(self, score: TokenLogprobs | None) -> dict[str, float] | None:
        """The most likely tokens by their text, and the one that was chosen."""
        if score is None:
            return None
        top: dict[str, float] = {}
        for token, logprob in (*score.top, (score.token_id, score.logprob)):
            top.setdefault(token_text(self._tokenizer, token), max(logprob, LEAST))
        return top

    def _begin(self, token: int) -> int:
        """Where a token begins; moves on behind it."""
        begin = self._offset
        own = self._tokenizer.token_bytes(token)
        if self._skip_special and self._tokenizer.is_special(token) and not self._echo.startswith(own.decode(), begin):
            return begin  # it does not show in the text
        self._bytes += own
        whole, self._bytes = _split(self._bytes)
        self._offset += len(whole)
        return begin


def _split(data: bytes) -> tuple[str, bytes]:
    """The whole characters at the beginning, and the bytes of one that is not complete."""
    for cut in range(min(3, len(data)) + 1):
        head, tail = data[: len(data) - cut], data[len(data) - cut :]
        try:
            return head.decode(), tail
        except UnicodeDecodeError as error:
            if error.end < len(head):
                break
    return data.decode("utf-8", "replace"), b""
