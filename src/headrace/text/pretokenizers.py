"""How a byte-level BPE vocabulary cuts text into words before merging, by the name that a GGUF file gives the rule.

A wrong rule is silent: the text still encodes, to ids that the model never saw together. So an unknown name is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tokenizers import Regex, normalizers, pre_tokenizers

from headrace.errors import ModelError

# The patterns are data published with the models: each alternative is one kind of word.
_SPACES = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LOWER_WORD = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
_UPPER_WORD = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"

_LLAMA3 = _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + _SPACES
_QWEN2 = _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*" + _SPACES
_QWEN35 = _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*" + _SPACES
_TEKKEN = f"{_LOWER_WORD}|{_UPPER_WORD}" + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _SPACES
_GPT4O = (
    f"{_LOWER_WORD}{_CONTRACTION}?|{_UPPER_WORD}{_CONTRACTION}?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _SPACES
)


@dataclass(frozen=True, slots=True)
class PreRule:
    """One rule: how to split, and what the vocabularies that use it expect besides.

    Attributes:
        split: builds the pre-tokenizer.
        nfc: whether text is brought to Unicode NFC first, as the original tokenizer does.
        ignore_merges: whether a word that is a token as a whole stays whole, whatever the merges say.
        adds_bos: whether a prompt starts with BOS when the file does not say.
    """

    split: Callable[[], Any]
    nfc: bool = False
    ignore_merges: bool = False
    adds_bos: bool = False

    def normalizer(self) -> Any | None:
        """Return what to apply to text before splitting it, or None."""
        return normalizers.NFC() if self.nfc else None


def _gpt2_words() -> Any:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _single_digits_then_gpt2_words() -> Any:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2_words()])


def _matches_of(pattern: str) -> Callable[[], Any]:
    def build() -> Any:
        to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), behavior="isolated"), to_bytes])

    return build


_GPT2_RULE = PreRule(_gpt2_words)
_SMOLLM_RULE = PreRule(_single_digits_then_gpt2_words)
_LLAMA3_RULE = PreRule(_matches_of(_LLAMA3), ignore_merges=True, adds_bos=True)
_CL100K_RULE = PreRule(_matches_of(_LLAMA3))
_GPT4O_RULE = PreRule(_matches_of(_GPT4O))

PRE_RULES: dict[str, PreRule] = {
    "gpt-2": _GPT2_RULE,
    "phi-2": _GPT2_RULE,
    "smollm": _SMOLLM_RULE,
    "starcoder": _SMOLLM_RULE,
    "refact": _SMOLLM_RULE,
    "llama-bpe": _LLAMA3_RULE,
    "llama3": _LLAMA3_RULE,
    "llama-v3": _LLAMA3_RULE,
    "falcon3": _LLAMA3_RULE,
    "falcon-h1": _LLAMA3_RULE,
    "lfm2": _LLAMA3_RULE,
    "smaug-bpe": _CL100K_RULE,
    "dbrx": _CL100K_RULE,
    "qwen2": PreRule(_matches_of(_QWEN2), nfc=True),
    "qwen35": PreRule(_matches_of(_QWEN35), nfc=True),
    "deepseek-r1-qwen": PreRule(_matches_of(_QWEN2)),
    "tekken": PreRule(_matches_of(_TEKKEN), ignore_merges=True, adds_bos=True),
    "gpt-4o": _GPT4O_RULE,
    "llama4": _GPT4O_RULE,
}
"""The rules that are known exactly, by their name in `tokenizer.ggml.pre`."""


def pre_rule(name: str | None) -> PreRule:
    """Return the rule of that name.

    Raises:
        ModelError: the name is missing or unknown.
    """
    rule = PRE_RULES.get(name or "")
    if rule is None:
        known = ", ".join(sorted(PRE_RULES))
        raise ModelError(f"tokenizer.ggml.pre is {name!r}, which is not a known pre-tokenizer rule (known: {known})")
    return rule
