"""The host's copy of every running sequence, one line per slot, for building batches without a loop over requests."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np

from headrace.sampling.params import SamplingParams

# Sampling parameters of a sequence as a step gets them, and their types, all of 4 bytes.
SAMPLING_FIELDS: dict[str, type] = {
    "temperature": np.float32,
    "top_k": np.int32,
    "top_p": np.float32,
    "min_p": np.float32,
    "repetition": np.float32,
    "presence": np.float32,
    "frequency": np.float32,
    "seed_high": np.uint32,
    "seed_low": np.uint32,
    "choice": np.int32,
    "logprobs": np.int32,  # whether they are asked for
}

_NEUTRAL = {"top_p": 1.0, "repetition": 1.0}  # 0 for all others
_WORD = 2**32
_HOTTEST = 1e30  # draws are uniform long before; the temperature and its reciprocal stay ordinary float32 numbers


class SequenceTable:
    """Token ids and sampling parameters of the sequences that hold a slot.

    Attributes:
        token_ids: [slots, max_model_len] int32; a line is defined up to the tokens its sequence has.
        prompt_lens: [slots] int32.
        device_position: [slots] int32, position whose token the device knows (the one it sampled last there); -1
            when it knows none. Such a token is not sent again.
        sampling: [slots, fields] int32, the bits of `SAMPLING_FIELDS`.
    """

    def __init__(self, num_slots: int, max_model_len: int) -> None:
        self.token_ids = np.zeros((num_slots, max_model_len), np.int32)
        self.prompt_lens = np.zeros(num_slots, np.int32)
        self.device_position = np.full(num_slots, -1, np.int32)
        self.sampling = np.tile(NEUTRAL_SAMPLING, (num_slots, 1))

    def load(
        self,
        slot: int,
        token_ids: Sequence[int],
        prompt_len: int,
        params: SamplingParams,
        seed: int,
        choice: int = 0,
    ) -> None:
        """Gives a slot to a sequence: its tokens so far, of which the first `prompt_len` are the prompt.

        Args:
            seed: of its draws, 64 bits.
            choice: which of its request's choices it is.
        """
        self.token_ids[slot, : len(token_ids)] = token_ids
        self.prompt_lens[slot] = prompt_len
        self.device_position[slot] = -1
        self.sampling[slot] = sampling_line(
            temperature=min(params.temperature, _HOTTEST),
            top_k=min(max(params.top_k, 0), np.iinfo(np.int32).max),
            top_p=params.top_p,
            min_p=params.min_p,
            repetition=params.repetition_penalty,
            presence=params.presence_penalty,
            frequency=params.frequency_penalty,
            seed_high=(seed // _WORD) % _WORD,
            seed_low=seed % _WORD,
            choice=choice,
            logprobs=params.logprobs is not None,
        )

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

    def guessed(self, slot: int, position: int, tokens: Sequence[int]) -> None:
        """Records drafts for the positions from `position` on, until more is known of them."""
        self.token_ids[slot, position : position + len(tokens)] = tokens


def sampling_line(**values: float) -> np.ndarray:
    """The bits [fields] int32 of `SAMPLING_FIELDS`; those that are not given are neutral."""
    line = np.zeros(len(SAMPLING_FIELDS), np.int32)
    for column, (name, dtype) in enumerate(SAMPLING_FIELDS.items()):
        line[column : column + 1].view(dtype)[0] = values.get(name, _NEUTRAL.get(name, 0))
    return line


NEUTRAL_SAMPLING = sampling_line()
