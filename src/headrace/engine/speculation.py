"""Speculative decoding on the host: which requests of a step get drafts, and how many of these turn out right."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from headrace.engine.lookup import PromptLookup
from headrace.engine.request import Request
from headrace.execution.buckets import Bucket


@dataclass(frozen=True)
class Speculation:
    """Gives drafts to the requests of a step, as many as it would compute padding for: they cost next to nothing.

    A draft that is wrong leaves what padding leaves. One more token than a bucket holds would make the whole step that
    of the next bucket, which costs every request of the batch more than a few drafts bring; see docs/performance.md.

    Attributes:
        most: drafts of one request in one step.
        max_ngram, min_ngram: of `PromptLookup`.
        bucket_for: (tokens, logits rows) -> the bucket of a step.
    """

    most: int
    max_ngram: int
    min_ngram: int
    bucket_for: Callable[[int, int], Bucket]

    def drafts(self, chosen: Mapping[Request, int]) -> dict[Request, list[int]]:
        """The drafts of a step's requests, in turns where there is not room for all; requests without one are left out.

        Args:
            chosen: tokens that each computes without drafts.
        """
        num_tokens = sum(chosen.values())
        tokens, rows = self.bucket_for(num_tokens, len(chosen))
        room = min(tokens - num_tokens, rows - len(chosen))
        found = {r: self._draft(r, room) for r in chosen if room}
        counts = in_turns([len(draft) for draft in found.values()], room)
        return {r: draft[:count] for (r, draft), count in zip(found.items(), counts, strict=True) if count}

    def _draft(self, request: Request, room: int) -> list[int]:
        """Guesses what follows the newest token, where that alone is to be computed. The last token that there is room
        for needs no draft: nothing follows it."""
        is_decode = request.num_pending == 1 and request.num_in_flight == 0 and request.num_output > 0
        if not is_decode or (request.rules is not None and request.rules.waits_for_tokens):
            return []
        if request.lookup is None:
            request.lookup = PromptLookup(max_ngram=self.max_ngram, min_ngram=self.min_ngram)
        return request.lookup.draft(request.token_ids, min(self.most, room, request.max_total - request.num_tokens - 1))


def in_turns(wanted: Sequence[int], room: int) -> list[int]:
    """How many each gets of what it wants if all take one in turns until nothing is left."""
    counts = [0] * len(wanted)
    while room and (hungry := [i for i, most in enumerate(wanted) if counts[i] < most]):
        for i in hungry[:room]:
            counts[i] += 1
        room -= min(room, len(hungry))
    return counts


def num_right(drafts: Sequence[int], sampled: Sequence[int]) -> int:
    """How many drafts are what was sampled in their place; those after the first wrong one do not count.

    Args:
        sampled: one more than there are drafts: what follows the token before the first draft, and each of these.
    """
    count = 0
    while count < len(drafts) and drafts[count] == sampled[count]:
        count += 1
    return count
