"""Contexts that are taken for computed: pages of their own, all found, and steps that count what is in them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from headrace.benchmark.context import decode, fill_pages, steps_to_begin, take_for_computed
from headrace.engine.prefix import CacheScope
from headrace.errors import HeadraceError
from tiny import SMALL, check_pages, tiny_engine

PROMPTS = [[5] * 33, [6] * 33, [7] * 35]


def test_requests_decode_with_the_context_that_they_are_given(tiny_folder: Path) -> None:
    engine = tiny_engine(tiny_folder, **SMALL)
    fill_pages(engine, 9)
    pages = [np.asarray(layer) for layer in engine.manager._state.pages]
    assert all(layer[:9].any(axis=tuple(range(1, layer.ndim))).all() and not layer[9:].any() for layer in pages)
    assert take_for_computed(engine, PROMPTS) == 3 * 32
    check_pages(engine)
    found = [engine.prefix.match(CacheScope(), prompt) for prompt in PROMPTS]
    assert len({node.page for nodes in found for node in nodes}) == 6  # none is shared
    decoded = decode(engine, PROMPTS, 4, 20)
    # One token of two prompts and three of the last are left to compute; then three tokens a step.
    assert decoded.cached == [96 + 5 + 3 * i for i in range(4)]
    assert len(decoded.seconds) == 4
    assert min(decoded.seconds) > 0
    assert not engine.has_unfinished
    check_pages(engine)


def test_too_few_steps_are_an_error_and_the_engine_stays_usable(tiny_folder: Path) -> None:
    engine = tiny_engine(tiny_folder, **SMALL)
    with pytest.raises(HeadraceError, match="3 requests decoded together in 3 steps, not 5"):
        decode(engine, PROMPTS, 4, 4)
    assert not engine.has_unfinished
    check_pages(engine)


def test_steps_until_all_decode() -> None:
    assert steps_to_begin(1, 129, 16, 512) == 1 + 1 + 2  # 8 shared pages, and a token
    assert steps_to_begin(128, 1025, 16, 512) == 32 + 1 + 2  # 8,192 pages, 256 of which a step is told
    assert steps_to_begin(32, 144, 16, 512) == 1 + 1 + 2  # 16 tokens of each are left
    assert steps_to_begin(33, 144, 16, 512) == 2 + 2 + 2
