"""Memory of logits that is used again."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from headrace.execution import spare
from headrace.execution.spare import SpareLogits

VOCAB = 128


def logits(rows: int) -> jax.Array:
    return jnp.zeros((rows, VOCAB), jnp.float32)


def test_what_was_given_back_is_taken_again_by_its_size_and_at_most_two() -> None:
    spares = SpareLogits(VOCAB)
    first, second, third, other = logits(4), logits(4), logits(4), logits(8)
    for each in (first, second, third, other):
        spares.put(each)
    assert spares.take(8) is other
    assert {id(spares.take(4)), id(spares.take(4))} == {id(first), id(second)}
    new = spares.take(4)
    assert new.shape == (4, VOCAB)
    assert new.dtype == jnp.float32
    assert id(new) not in map(id, (first, second, third))


def test_other_sizes_are_dropped_above_the_room_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    spares, small, large, present = SpareLogits(VOCAB), logits(4), logits(8), logits(2)
    monkeypatch.setattr(spare, "_ROOM", small.nbytes + large.nbytes)
    spares.put(small), spares.put(large), spares.put(present)
    assert spares.take(8) is large
    spares.put(large)
    monkeypatch.setattr(spare, "_ROOM", small.nbytes + large.nbytes - 1)
    spares.put(present)
    assert spares.take(4) is not small
    assert spares.take(2) is present


def test_sizes_that_are_not_asked_for_again_are_forgotten() -> None:
    spares, small, large = SpareLogits(VOCAB), logits(4), logits(8)
    spares.put(small), spares.put(large)
    spares.prepare([4])
    assert spares.take(4) is small
    assert spares.take(8) is not large
