"""The ladders of sizes, which pairs of them are compiled, and which pair takes a batch."""

from __future__ import annotations

import itertools

import pytest

from headrace.errors import ConfigError, StepError
from headrace.execution.buckets import (
    Bucket,
    bucket_pairs,
    check_paddings,
    fewest_scored_tokens,
    request_buckets,
    select_bucket,
    token_buckets,
)


@pytest.mark.parametrize(
    ("smallest", "cap", "sizes"),
    [
        (8, 64, [8, 16, 32, 64]),
        (8, 48, [8, 16, 32, 48]),  # the cap is a bucket although it is no power of two
        (8, 65, [8, 16, 32, 64, 65]),
        (8, 9, [8, 9]),
        (8, 8, [8]),
        (8, 5, [5]),  # the cap is below the smallest
        (8, 1, [1]),
        (1, 8, [1, 2, 4, 8]),
        (6, 20, [6, 8, 16, 20]),
        (12, 100, [12, 16, 32, 64, 100]),
    ],
)
def test_request_sizes(smallest: int, cap: int, sizes: list[int]) -> None:
    assert request_buckets(smallest, cap) == sizes


@pytest.mark.parametrize(
    ("requests", "cap", "sizes"),
    [
        (8, 512, [128, 256, 512]),
        (8, 500, [128, 256, 500]),
        (8, 129, [128, 129]),
        (8, 128, [128]),
        (8, 127, [127]),
        (8, 32, [32]),
        (128, 512, [256, 512]),  # a step of 128 tokens and 128 requests is the decode step
        (200, 1024, [256, 512, 1024]),
        (256, 256, [256]),
    ],
)
def test_token_sizes(requests: int, cap: int, sizes: list[int]) -> None:
    assert token_buckets(requests, cap) == sizes


@pytest.mark.parametrize(
    ("smallest", "cap", "sizes"),
    [
        (8, 256, [8, 32, 128, 256]),
        (8, 33, [8, 32, 33]),
        (8, 32, [8, 32]),
        (8, 31, [8, 31]),
        (8, 8, [8]),
        (1, 8, [1, 4, 8]),
        (6, 20, [6, 16, 20]),
    ],
)
def test_where_padding_is_skipped_there_are_fewer_sizes(smallest: int, cap: int, sizes: list[int]) -> None:
    assert request_buckets(smallest, cap, skips_padding=True) == sizes
    assert token_buckets(cap, 512, skips_padding=True) == [512]


@pytest.mark.parametrize(
    ("tokens", "requests", "pairs"),
    [
        ([64, 128], [8, 16], [(8, 8), (16, 16), (64, 16), (128, 16)]),
        ([64], [1, 2, 8], [(8, 1), (8, 2), (8, 8), (64, 8)]),  # at least eight rows in every product
        ([8, 64], [8], [(8, 8), (64, 8)]),
        ([8, 16, 32], [8, 24], [(8, 8), (24, 24), (32, 24)]),  # more requests than tokens cannot occur
        ([5], [5], [(5, 5), (8, 5)]),
    ],
)
def test_x1_the_pairs_to_compile(tokens: list[int], requests: list[int], pairs: list[Bucket]) -> None:
    assert bucket_pairs(tokens, requests) == pairs


@pytest.mark.parametrize(("min_pad", "requests", "tokens"), [*itertools.product([1, 8], [1, 5, 8, 20], [20, 64, 100])])
def test_x1_every_batch_gets_the_smallest_pair_that_holds_it(min_pad: int, requests: int, tokens: int) -> None:
    pairs = bucket_pairs(token_buckets(requests, tokens), request_buckets(min_pad, requests))
    for num_reqs in range(1, requests + 1):
        for num_tokens in range(num_reqs, tokens + 1):
            holding = [pair for pair in pairs if pair[0] >= num_tokens and pair[1] >= num_reqs]
            chosen = select_bucket(reversed(pairs), num_tokens, num_reqs)
            assert chosen == min(holding), (num_tokens, num_reqs)


@pytest.mark.parametrize(("num_tokens", "num_reqs"), [(129, 1), (128, 17), (17, 17), (129, 17)])
def test_a_batch_without_a_bucket_is_named_with_the_buckets_there_are(num_tokens: int, num_reqs: int) -> None:
    pairs = [(8, 8), (16, 16), (128, 16)]
    with pytest.raises(StepError) as refusal:
        select_bucket(pairs, num_tokens, num_reqs)
    for part in (f"{num_tokens} tokens of {num_reqs} requests", *map(str, pairs)):
        assert part in str(refusal.value)


def test_without_any_bucket_the_error_says_so() -> None:
    with pytest.raises(StepError, match=r"1 tokens of 1 requests.*none"):
        select_bucket([], 1, 1)


@pytest.mark.parametrize("sizes", [[], [0, 8], [-1, 8], [8, 8], [16, 8]])
def test_sizes_must_ascend_from_one(sizes: list[int]) -> None:
    with pytest.raises(ConfigError, match="num_tokens_paddings: must be ascending positive"):
        check_paddings("num_tokens_paddings", sizes, 8)


@pytest.mark.parametrize("sizes", [[4], [4, 16]])
def test_sizes_must_end_at_the_cap(sizes: list[int]) -> None:
    with pytest.raises(ConfigError, match="num_reqs_paddings: the last size must be 8"):
        check_paddings("num_reqs_paddings", sizes, 8)
    assert check_paddings("num_reqs_paddings", range(7, 9), 8) == [7, 8]


def test_the_smallest_step_with_prefill_scores_prompts_or_else_the_largest() -> None:
    assert fewest_scored_tokens([(8, 8), (16, 16), (32, 32), (128, 32), (512, 32)]) == 128
    assert fewest_scored_tokens([(8, 2), (8, 4), (32, 4)]) == 32
    assert fewest_scored_tokens([(8, 1)]) == 8
    assert fewest_scored_tokens([(8, 8), (16, 16)]) == 16
