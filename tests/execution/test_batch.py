"""A step packed for the device, against a loop over its requests and tokens."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from headrace.execution.batch import BatchLayout, HostBatch
from headrace.execution.schedule import Constraint, ScheduledStep
from headrace.execution.sequences import SAMPLING_FIELDS, SequenceTable
from headrace.sampling.params import SamplingParams
from sampling.rows import fields_of

SLOTS, MAX_LEN, PAGE = 24, 100, 16
ONE = int(np.float32(1).view(np.int32))
NEUTRAL = [0, 0, ONE, 0, ONE, 0, 0, 0, 0, 0, 0]  # top-p and repetition penalty are 1


def random_table(rng: np.random.Generator) -> SequenceTable:
    table = SequenceTable(SLOTS, MAX_LEN)
    for slot in range(SLOTS):
        prompt = int(rng.integers(1, MAX_LEN))
        params = SamplingParams(
            temperature=float(rng.choice([0.0, 0.7, 2.0])),
            top_k=int(rng.choice([-1, 0, 40])),
            top_p=float(rng.uniform(0.1, 1)),
            min_p=float(rng.uniform(0, 1)),
            presence_penalty=float(rng.choice([0, 0.5])),
            frequency_penalty=float(rng.choice([0, -0.3])),
            repetition_penalty=float(rng.choice([1, 1.3])),
            logprobs=[None, 0, 3][rng.integers(3)],
        )
        seed, choice = int(rng.integers(-(2**63), 2**63)), int(rng.integers(3))
        table.load(slot, rng.integers(0, 50_000, MAX_LEN).tolist(), prompt, params, seed, choice)
    return table


def random_step(rng: np.random.Generator, table: SequenceTable, tokens: int, requests: int) -> ScheduledStep:
    """Some decodes, the newest token of which only the device knows, and then chunks: of prompts, or drafts."""
    rows = int(rng.integers(0, min(requests, tokens) + 1))
    slots, decodes = rng.permutation(SLOTS)[:rows], int(rng.integers(0, rows + 1))
    counts = np.ones(rows, np.int64)
    computed = rng.integers(0, MAX_LEN - 1, rows)
    for row in range(decodes, rows):
        spare = tokens - counts.sum()
        counts[row] = rng.integers(1, min(spare + 1, MAX_LEN - computed[row]) + 1)
    for slot, position in zip(slots[:decodes].tolist(), computed[:decodes].tolist(), strict=True):
        if rng.random() < 0.8:
            table.launched(np.array([slot]), np.array([position]))
    updates = [
        (int(slots[row]), page, int(rng.integers(0, 1000)))
        for row in range(rows)
        for page in range(-(-int(computed[row]) // PAGE), -(-int(computed[row] + counts[row]) // PAGE))
    ]
    samples = (rng.random(rows) < 0.7).astype(np.int32)
    for row in range(rows):
        spare = requests - int(np.maximum(samples, 1).sum())
        if samples[row] and rng.random() < 0.3:
            samples[row] = rng.integers(1, min(spare + 1, counts[row]) + 1)
    scores = rng.random(rows) < 0.5 if rng.random() < 0.5 else None
    word, bias = np.zeros((1, 1), np.uint32), (np.zeros(1, np.int32), np.zeros(1, np.float32))
    kinds = [Constraint(word, None), Constraint(None, bias), Constraint(word, bias)]
    constraints = {slot: kinds[rng.integers(3)] for slot in slots.tolist() if rng.random() < 0.2}
    to_int32 = (x.astype(np.int32) for x in (slots, computed, counts))
    return ScheduledStep(*to_int32, samples, updates, scores, constraints)


def naive(step: ScheduledStep, table: SequenceTable, layout: BatchLayout) -> dict[str, Any]:
    """What each field holds, token by token and request by request; padding first, then what is there."""
    tokens, requests = layout.bucket
    fields: dict[str, list[Any]] = {
        "input_ids": [0] * tokens,
        "positions": [0] * tokens,
        "token_rows": [requests] * tokens,
        "query_start_loc": [0] * (requests + 1),
        "seq_lens": [0] * requests,
        "prompt_lens": [0] * requests,
        "slots": [SLOTS] * requests,
        "next_ids": [-2] * requests,
        "logits_rows": [0] * requests,
        "logits_indices": [0] * requests,
        "samples": [0] * requests,
        "flags": [0] * requests,
        "sampling": [NEUTRAL] * requests,
        "page_updates": [[SLOTS] * 3] * layout.num_updates,
        "num_requests": [len(step.slots)],
        "num_logits": [int(step.num_logits.sum())],
        "num_decodes": [0],
    }
    at = line = 0
    for row, slot in enumerate(step.slots.tolist()):
        before, count = int(step.num_computed[row]), int(step.num_tokens[row])
        for position in range(before, before + count):
            on_device = position == table.device_position[slot]
            fields["input_ids"][at] = -1 if on_device else int(table.token_ids[slot, position])
            fields["positions"][at], fields["token_rows"][at] = position, row
            at += 1
        fields["num_decodes"][0] += count == 1
        fields["seq_lens"][row] = before + count
        fields["prompt_lens"][row] = int(table.prompt_lens[slot])
        fields["slots"][row] = slot
        if step.scores_prompt is not None and step.scores_prompt[row]:
            in_prompt = before + count < table.prompt_lens[slot]
            fields["next_ids"][row] = int(table.token_ids[slot, before + count]) if in_prompt else -1
        constraint = step.constraints.get(slot)
        for index in range(at - max(1, int(step.samples[row])), at):
            fields["logits_rows"][line], fields["logits_indices"][line] = row, index
            fields["samples"][line] = int(step.samples[row] > 0)
            fields["sampling"][line] = table.sampling[slot].tolist()
            if constraint is not None:
                fields["flags"][line] = (constraint.allowed is not None) + 2 * (constraint.bias is not None)
            line += 1
        fields["query_start_loc"][row + 1] = at
    fields["query_start_loc"][len(step.slots) + 1 :] = [at] * (requests - len(step.slots))
    for i, update in enumerate(step.page_updates):
        fields["page_updates"][i] = list(update)
    return fields


@pytest.mark.parametrize("bucket", [(8, 8), (8, 1), (64, 8), (100, 20), (24, 24)])
def test_x5_fill_is_the_loop_and_leaves_nothing_of_earlier_steps(bucket: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    layout, table = BatchLayout(bucket, PAGE), random_table(rng)
    batch = HostBatch(layout, SLOTS)
    unpack = jax.jit(layout.unpack)
    for _ in range(25):  # one buffer for large and small steps in turn
        step = random_step(rng, table, *bucket)
        batch.packed[:] = np.where(rng.random(layout.size) < 0.5, batch.packed, 0x7FC00000)
        batch.fill(step, table)
        expected = naive(step, table, layout)
        on_device = unpack(batch.packed)
        assert set(on_device) == set(expected)
        for name, shape, dtype in layout.fields():
            right = np.asarray(expected[name], dtype).reshape(shape)
            np.testing.assert_array_equal(batch[name], right, err_msg=name)
            np.testing.assert_array_equal(on_device[name], right, err_msg=name)
            assert on_device[name].dtype == batch[name].dtype == dtype


def test_an_empty_step_is_all_padding() -> None:
    layout, table = BatchLayout((64, 8), PAGE), random_table(np.random.default_rng(1))
    batch, empty = HostBatch(layout, SLOTS), np.empty(0, np.int32)
    step = ScheduledStep(empty, empty, empty, empty)
    batch.packed[:] = -1
    batch.fill(step, table)
    for name, right in naive(step, table, layout).items():
        np.testing.assert_array_equal(batch[name], np.reshape(right, batch[name].shape), err_msg=name)


def test_a_full_step_fills_the_bucket() -> None:
    layout, table = BatchLayout((64, 8), PAGE), random_table(np.random.default_rng(2))
    batch, eight = HostBatch(layout, SLOTS), np.arange(8, dtype=np.int32)
    step = ScheduledStep(eight, eight * 0, eight * 0 + 8, eight >= 0)
    batch.fill(step, table)
    assert batch["query_start_loc"].tolist() == [0, 8, 16, 24, 32, 40, 48, 56, 64]
    assert batch["token_rows"].tolist() == np.repeat(np.arange(8), 8).tolist()
    np.testing.assert_array_equal(batch["input_ids"].reshape(8, 8), table.token_ids[:8, :8])


@pytest.mark.parametrize("page_size", [1, 8, 16, 64])
@pytest.mark.parametrize("bucket", [(8, 8), (8, 1), (64, 8), (100, 20)])
def test_a_step_never_needs_more_page_updates_than_there_is_room_for(bucket: tuple[int, int], page_size: int) -> None:
    tokens, requests = bucket
    rng = np.random.default_rng(3)
    room = BatchLayout(bucket, page_size).num_updates
    worst = 0
    for _ in range(300):
        rows = int(rng.integers(1, requests + 1))
        cuts = np.sort(rng.choice(np.arange(1, tokens), rows - 1, replace=False))
        counts = np.diff([0, *cuts, tokens])
        before = rng.integers(0, 3, rows) * page_size  # a page boundary is where a chunk needs most pages
        before = np.where(rng.random(rows) < 0.3, before + rng.integers(0, page_size, rows), before)
        needed = -(-(before + counts) // page_size) - -(-before // page_size)
        worst = max(worst, int(needed.sum()))
    assert worst <= room


def test_tokens_that_the_device_samples_are_not_sent() -> None:
    table = SequenceTable(2, 8)
    table.load(1, [5, 6, 7], 3, SamplingParams(), 0)
    table.launched(np.array([1]), np.array([3]))
    layout = BatchLayout((8, 1), PAGE)
    batch = HostBatch(layout, 2)
    one = np.ones(1, np.int32)
    batch.fill(ScheduledStep(one, one * 0, one * 4, one > 0), table)  # after a preemption: from the start again
    assert batch["input_ids"][:4].tolist() == [5, 6, 7, -1]
    table.learned(1, 3, 9)
    batch.fill(ScheduledStep(one, one * 0, one * 4, one > 0), table)
    assert batch["input_ids"][:4].tolist() == [5, 6, 7, -1]
    table.load(1, [5, 6, 7, 9], 3, SamplingParams(), 0)  # in a slot whose device knows nothing of it
    batch.fill(ScheduledStep(one, one * 0, one * 4, one > 0), table)
    assert batch["input_ids"][:4].tolist() == [5, 6, 7, 9]


def test_parameters_become_bits_in_the_order_of_the_fields() -> None:
    table = SequenceTable(2, 8)
    params = SamplingParams(
        temperature=0.7,
        top_k=5,
        top_p=0.9,
        min_p=0.1,
        repetition_penalty=1.3,
        presence_penalty=0.5,
        frequency_penalty=-0.25,
        logprobs=0,
    )
    table.load(1, [5], 1, params, seed=-2, choice=3)
    given = [0.7, 5, 0.9, 0.1, 1.3, 0.5, -0.25, 2**32 - 1, 2**32 - 2, 3, 1]
    values = zip(SAMPLING_FIELDS, given, strict=True)
    assert {name: value[1] for name, value in fields_of(table.sampling).items()} == {
        name: SAMPLING_FIELDS[name](value) for name, value in values
    }
    assert table.sampling[0].tolist() == NEUTRAL
    table.load(1, [5], 1, SamplingParams(temperature=0), seed=0)
    assert table.sampling[1].tolist() == NEUTRAL
