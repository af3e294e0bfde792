"""What requests ask: random texts, conversations of a file, texts with shared beginnings."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.errors import ConfigError

DATASETS = ("random", "sharegpt", "shared-prefix")
DEFAULT_MAX_TOKENS = 128

# Each is one token, with a space before it and without, of the vocabularies that we tried (SmolLM2's and Gemma 3's),
# so that a text's length is known without a tokenizer.
_WORDS = (
    "time year people way day man thing woman life child world school state family student group country problem "
    "hand part place case week company system program question work government number night point home water room "
    "mother area money story fact month lot right study book eye job word business issue side kind head house "
    "service friend father power hour game line end member law car city community name president team minute idea "
    "kid body information back parent face others level office door health person art war history party result "
    "change reason research girl moment air teacher force education foot boy age policy process music market sense "
    "nation plan college interest death experience effect use class control field development role rate heart drug "
    "show leader light voice wife mind price report decision son view relationship town road arm difference value "
    "building action season tax director position player record paper space ground form event official matter "
    "center site project activity star table need court oil cost industry figure street image phone data picture "
    "practice piece land product doctor wall patient worker news test movie north love support technology step baby "
    "computer type attention film tree source hair look"
)
WORDS = _WORDS.split()

# As vLLM filters such a file: what is shorter or longer says little of a server.
_SHORTEST, _LONGEST_PROMPT, _LONGEST = 4, 1024, 2048
_CHARACTERS_PER_TOKEN = 4  # of English text, for want of a tokenizer
_HUMAN = ("human", "user")


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request's text, its length in tokens as far as that is known, and how many to ask for."""

    text: str
    tokens: int
    max_tokens: int


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """Which prompts, by the options of the command line.

    Attributes:
        name: one of `DATASETS`.
        file: of `sharegpt`, a JSON list of objects with `conversations`, each a list of `from` and `value`.
        input_tokens: length of a random text, or of what follows a shared prefix.
        input_spread, output_spread: share by which lengths vary, even both ways: 0.5 gives half to one and a half.
        max_tokens: tokens to ask for; None for what the dataset has, 128 where it has none.
        prefixes, suffixes, prefix_tokens: of `shared-prefix`: so many beginnings, so many texts with each, the
            beginnings' length.
    """

    name: str = "random"
    file: Path | None = None
    input_tokens: int = 128
    input_spread: float = 0.0
    output_spread: float = 0.0
    max_tokens: int | None = None
    prefixes: int = 8
    suffixes: int = 8
    prefix_tokens: int = 256

    def __post_init__(self) -> None:
        if self.name not in DATASETS:
            raise ConfigError(f"dataset: {self.name!r} is none of {', '.join(DATASETS)}")
        if (self.file is None) == (self.name == "sharegpt"):
            raise ConfigError("dataset_file: goes with --dataset sharegpt, and that with it")
        for name in ("input_spread", "output_spread"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"{name}: {getattr(self, name)} is not in [0, 1)")

    @property
    def size(self) -> int | None:
        """Prompts after which it begins anew; None for never."""
        return self.prefixes * self.suffixes if self.name == "shared-prefix" else None

    def prompts(self, seed: int) -> Iterator[Prompt]:
        """Endlessly many, the same for the same seed.

        Raises:
            ConfigError: the file cannot be read, or holds no conversation that fits.
        """
        rng = random.Random(seed)
        if self.name == "sharegpt":
            assert self.file is not None
            return self._conversations(self.file, rng)
        return self._shared(rng) if self.name == "shared-prefix" else self._random(rng)

    def _random(self, rng: random.Random) -> Iterator[Prompt]:
        while True:
            length = _spread(rng, self.input_tokens, self.input_spread)
            yield Prompt(_text(rng, length), length, self._output(rng))

    def _shared(self, rng: random.Random) -> Iterator[Prompt]:
        beginnings = [_text(rng, self.prefix_tokens) for _ in range(self.prefixes)]
        while True:
            order = [beginning for beginning in beginnings for _ in range(self.suffixes)]
            rng.shuffle(order)
            for beginning in order:
                length = _spread(rng, self.input_tokens, self.input_spread)
                text = f"{beginning} {_text(rng, length)}"
                yield Prompt(text, self.prefix_tokens + length, self._output(rng))

    def _conversations(self, file: Path, rng: random.Random) -> Iterator[Prompt]:
        pairs = [pair for pair in read_conversations(file) if self._fits(*pair)]
        if not pairs:
            raise ConfigError(f"dataset_file: {file} has no conversation of a question and an answer that fits")
        rng.shuffle(pairs)
        return (
            Prompt(question, _estimate(question), self._output(rng, _estimate(answer)))
            for question, answer in itertools.cycle(pairs)
        )

    def _fits(self, question: str, answer: str) -> bool:
        asked, told = _estimate(question), self.max_tokens or _estimate(answer)
        return asked >= _SHORTEST <= told and asked <= _LONGEST_PROMPT and asked + told <= _LONGEST

    def _output(self, rng: random.Random, own: int = DEFAULT_MAX_TOKENS) -> int:
        return _spread(rng, self.max_tokens or own, self.output_spread)


def read_conversations(file: Path) -> list[tuple[str, str]]:
    """The first question and its answer of each conversation in a file of ShareGPT's format.

    Raises:
        ConfigError: it is no such file.
    """
    try:
        entries = json.loads(file.read_text())
    except OSError as error:
        raise ConfigError(f"dataset_file: {file}: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"dataset_file: {file} is no JSON: {error}") from None
    if not isinstance(entries, list):
        raise ConfigError(f"dataset_file: {file} is no JSON list of objects with `conversations`")
    turns = [entry.get("conversations") for entry in entries if isinstance(entry, dict)]
    pairs = (_first_pair(one) for one in turns if isinstance(one, list))
    return [pair for pair in pairs if pair is not None]


def _first_pair(turns: Sequence[Any]) -> tuple[str, str] | None:
    for one, other in itertools.pairwise(turns):
        if isinstance(one, dict) and isinstance(other, dict) and one.get("from") in _HUMAN:
            question, answer = one.get("value"), other.get("value")
            return (question, answer) if isinstance(question, str) and isinstance(answer, str) else None
    return None


def _text(rng: random.Random, length: int) -> str:
    return " ".join(rng.choices(WORDS, k=length))


def _spread(rng: random.Random, mean: int, spread: float) -> int:
    return max(rng.randint(round(mean * (1 - spread)), round(mean * (1 + spread))), 1)


def _estimate(text: str) -> int:
    return len(text) // _CHARACTERS_PER_TOKEN
