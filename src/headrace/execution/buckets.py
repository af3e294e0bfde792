"""The shapes that steps are compiled for, and which of them takes a given batch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headrace.errors import ConfigError, StepError

Bucket = tuple[int, int]  # (tokens, requests)

SMALLEST_DECODE = 8  # matrix products of fewer rows are slower and differ in their bits; see layers/linear.py
SMALLEST_MIXED = 128  # a step with prefill of fewer tokens gains little by being smaller still


def request_buckets(min_input_pad: int, max_num_reqs: int, *, skips_padding: bool = False) -> list[int]:
    """`min_input_pad`, then powers of two, up to `max_num_reqs`, which is always the last bucket.

    Args:
        skips_padding: only sampling takes longer for padding; then powers of four do.
    """
    buckets, size = [], min_input_pad
    while size < max_num_reqs:
        buckets.append(size)
        size = 1 << size.bit_length() + skips_padding
    return [*buckets, max_num_reqs]


def token_buckets(max_num_reqs: int, max_num_tokens: int, *, skips_padding: bool = False) -> list[int]:
    """Sizes for steps that hold prefill: powers of two from `SMALLEST_MIXED`, up to `max_num_tokens` itself.

    Args:
        skips_padding: a step takes no longer for tokens that are padding; then one size does.
    """
    if skips_padding:
        return [max_num_tokens]
    buckets, size = [], SMALLEST_MIXED
    while size < max_num_tokens:
        if size > max_num_reqs:
            buckets.append(size)
        size *= 2
    return [*buckets, max_num_tokens]


def bucket_pairs(num_tokens_paddings: Sequence[int], num_reqs_paddings: Sequence[int]) -> list[Bucket]:
    """The pairs to compile, ascending.

    A decode-only step has one token per request, so each request size gets a pair of its own. Steps that hold prefill
    take every token size with the largest request size: all that a smaller one would save is a little of the head's
    work. Pairs of more requests than tokens cannot occur and are left out.
    """
    most = num_reqs_paddings[-1]
    decode = {(max(requests, SMALLEST_DECODE), requests) for requests in num_reqs_paddings}
    return sorted(decode | {(tokens, most) for tokens in num_tokens_paddings if tokens >= most})


def is_for_decodes(bucket: Bucket) -> bool:
    """Whether a step has no more tokens than it takes for one of each request."""
    tokens, requests = bucket
    return tokens == max(requests, SMALLEST_DECODE)


def fewest_scored_tokens(pairs: Iterable[Bucket]) -> int:
    """Tokens of the smallest step that can score prompts: those with prefill can, and the largest of all.

    Steps for decoding do without: it is a tenth of what their sampling takes to compile.
    """
    pairs = [*pairs]
    return min((pair[0] for pair in pairs if not is_for_decodes(pair)), default=max(pairs)[0])


def check_paddings(name: str, paddings: Iterable[int], largest: int) -> list[int]:
    """The sizes as an ascending list; ConfigError unless they are positive, distinct and end at `largest`."""
    sizes = list(paddings)
    if not sizes or sizes != sorted(set(sizes)) or sizes[0] < 1:
        raise ConfigError(f"{name}: must be ascending positive sizes, not {sizes}")
    if sizes[-1] != largest:
        raise ConfigError(f"{name}: the last size must be {largest}, not {sizes[-1]}, so that every batch has a bucket")
    return sizes


def select_bucket(pairs: Iterable[Bucket], num_tokens: int, num_reqs: int) -> Bucket:
    """The smallest pair that holds the batch; StepError that names the pairs when none does."""
    pairs = sorted(pairs)
    for tokens, requests in pairs:
        if tokens >= num_tokens and requests >= num_reqs:
            return tokens, requests
    raise StepError(
        f"no step is compiled for {num_tokens} tokens of {num_reqs} requests; "
        f"available (tokens, requests): {', '.join(map(str, pairs)) or 'none'}"
    )
