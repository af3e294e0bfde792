"""Drives an ExecutionManager by hand, one chosen step at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from headrace.execution.manager import ExecutionManager
from headrace.execution.schedule import ScheduledStep
from headrace.execution.step import StepResult
from headrace.sampling.params import SamplingParams
from tiny import SMALL

GREEDY = SamplingParams(temperature=0)

# 13 is in no other size of the model, so that an array with as many elements as a pool of pages is one.
GEOMETRY: dict[str, Any] = {**SMALL, "num_pages": 13}

# One step to compile: 8 tokens of one request.
ONE: dict[str, Any] = {**SMALL, "max_num_seqs": 1, "max_num_batched_tokens": 8}


class Driver:
    """Sequences in slots of a manager, each with pages of its own."""

    def __init__(self, manager: ExecutionManager) -> None:
        self.manager = manager
        manager.reset_state()
        self.ids: dict[int, list[int]] = {}
        self.computed: dict[int, int] = {}
        self._pages: dict[int, Sequence[int]] = {}

    def add(
        self,
        slot: int,
        prompt: Sequence[int],
        params: SamplingParams = GREEDY,
        seed: int = 0,
        pages: Sequence[int] | None = None,
    ) -> None:
        """Puts a sequence into a slot; without pages given, it has three."""
        self.ids[slot], self.computed[slot] = list(prompt), 0
        self._pages[slot] = range(3 * slot, 3 * slot + 3) if pages is None else pages
        self.manager.sequences.load(slot, prompt, len(prompt), params, seed)

    def schedule(self, chunks: Mapping[int, int]) -> ScheduledStep:
        """A step of so many tokens of each slot, its rows in the order that a step wants."""
        slots = sorted(chunks, key=lambda slot: (chunks[slot] > 1, -(self.computed[slot] + chunks[slot])))
        computed = np.array([self.computed[slot] for slot in slots], np.int32)
        counts = np.array([chunks[slot] for slot in slots], np.int32)
        known = np.array([len(self.ids[slot]) for slot in slots], np.int32)
        size = self.manager.options.page_size
        updates = [
            (slot, index, self._pages[slot][index])
            for slot, start, count in zip(slots, computed.tolist(), counts.tolist(), strict=True)
            for index in range(-(-start // size), -(-(start + count) // size))
        ]
        return ScheduledStep(np.array(slots, np.int32), computed, counts, computed + counts == known, updates)

    def commit(self, step: ScheduledStep, result: StepResult) -> dict[int, int]:
        """Takes in what a step computed; the sampled token of each slot."""
        tokens = self.manager.read_tokens(result, step).tolist()
        for slot, count, token in zip(step.slots.tolist(), step.num_tokens.tolist(), tokens, strict=True):
            self.computed[slot] += count
            if token >= 0:
                self.manager.sequences.launched(np.array([slot]), np.array([len(self.ids[slot])]))
                self.manager.sequences.learned(slot, len(self.ids[slot]), token)
                self.ids[slot].append(token)
        return dict(zip(step.slots.tolist(), tokens, strict=True))

    def run(self, chunks: Mapping[int, int]) -> dict[int, int]:
        """Executes a step of so many tokens of each slot; the sampled token of each slot."""
        step = self.schedule(chunks)
        result = self.manager.execute(step)
        tokens = self.commit(step, result)
        self.manager.release(result)
        return tokens

    def generate(self, slot: int, count: int, chunk: int = 32) -> list[int]:
        """Runs one slot alone until it has so many more tokens, and returns them."""
        known = len(self.ids[slot])
        while len(self.ids[slot]) < known + count:
            self.run({slot: min(chunk, len(self.ids[slot]) - self.computed[slot])})
        return self.ids[slot][known:]
