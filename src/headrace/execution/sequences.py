"""The host's copy of every running sequence, one line per slot, for building batches without a loop over requests."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np

from headrace.sampling.params import SamplingParams

_WORD = 2**32
_HOTTEST = 1e30  # draws are uniform long before; the temperature and its reciprocal stay ordinary float32 numbers


class SequenceTable:
    """Token ids and sampling parameters of the sequences that hold a slot.

    Attributes:
        token_ids: [slots, max_model_len] int32; a line is defined up to the tokens its sequence has.
        prompt_lens: [slots] int32.
        device_position: [slots] int32, position whose token the device knows (the one it sampled last there); -1
            when it knows none. Such a token is not sent again.
        temperature, top_p, min_p: [slots] float32; top_k: [slots] int32; seeds: [slots, 2] uint32, high word first.
    """

    def __init__(self, num_slots: int, max_model_len: int) -> None:
        self.token_ids = np.zeros((num_slots, max_model_len), np.int32)
        self.prompt_lens = np.zeros(num_slots, np.int32)
        self.device_position = np.full(num_slots, -1, np.int32)
        self.temperature = np.zeros(num_slots, np.float32)
        self.top_k = np.zeros(num_slots, np.int32)
        self.top_p = np.ones(num_slots, np.float32)
        self.min_p = np.zeros(num_slots, np.float32)
        self.seeds = np.zeros((num_slots, 2), np.uint32)

    def load(self, slot: int, token_ids: Sequence[int], prompt_len: int, params: SamplingParams, seed: int) -> None:
        """Gives a slot to a sequence: its tokens so far, of which the first `prompt_len` are the prompt."""
        self.token_ids[slot, : len(token_ids)] = token_ids
        self.prompt_lens[slot] = prompt_len
        self.device_position[slot] = -1
        self.temperature[slot] = min(params.temperature, _HOTTEST)
        self.top_k[slot] = min(max(params.top_k, 0), np.iinfo(np.int32).max)
        self.top_p[slot] = params.top_p
        self.min_p[slot] = params.min_p
        self.seeds[slot] = (seed // _WORD) % _WORD, seed % _WORD

    def lines(self, first: int, count: int) -> SequenceTable:
        """The lines of so many slots from `first` on, sharing memory with this table."""
        part = copy.copy(self)
        for name, array in vars(self).items():
            if isinstance(array, np.ndarray):
                setattr(part, name, array[first : first + count])
        return part

    def launched(self, slots: np.ndarray, positions: np.ndarray) -> None:
        """Notes that the device samples the tokens of these positions [n] in these slots [n], so they need not be
        sent."""
        self.device_position[slots] = positions

    def learned(self, slot: int, position: int, token: int) -> None:
        """Records what the device sampled for a position."""
        self.token_ids[slot, position] = token
