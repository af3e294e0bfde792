"""A tiny random model with SmolLM2's tokenizer, so that cases can be told in its token ids."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from headrace import LLM, SamplingParams
from random_model import write_random
from text.vocabularies import gguf_definition

RIVER, WHISPERED, HALF_EMOJI = 4626, 39529, 10813  # " river", " whispered", the bytes F0 9F
ENDOFTEXT, START, END = 0, 1, 2  # the control tokens <|endoftext|>, <|im_start|> and <|im_end|>; 0 and 2 are ends
VOCAB = 49_152
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"


def write_smol(folder: Path, gguf: Path, **changes: Any) -> Path:
    """A Hugging Face folder; `changes` are values of its configuration."""
    definition = gguf_definition(gguf)
    write_random(folder, "llama3", vocab_size=VOCAB, **changes)
    definition.backend.save(str(folder / "tokenizer.json"))
    settings = {"eos_token": "<|im_end|>", "add_bos_token": False, "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": sorted(definition.eos_ids)}))
    return folder


def smol_llm(folder: Path) -> LLM:
    """The model with steps of up to 32 tokens, of up to 4 requests at once; nothing may compile later."""
    options = {"max_num_seqs": 4, "max_num_batched_tokens": 32, "min_input_pad": 4, "max_model_len": 128, "seed": 0}
    return LLM(str(folder), dtype="float32", compile_guard="raise", num_tokens_paddings=[32], **options)


def force(token: int, **given: Any) -> SamplingParams:
    """Greedy parameters with which every token is this one, whatever the weights."""
    return SamplingParams(**{"temperature": 0, "logit_bias": {token: 100}, **given})
