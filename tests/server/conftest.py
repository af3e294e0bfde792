"""Servers that several modules share."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace import LLM
from headrace.text.tokenizer import Tokenizer
from server.running import Running, running
from smol import write_smol
from text.vocabularies import gguf_definition


@pytest.fixture(scope="session")
def smol_tokenizer(smollm2_path: Path) -> Tokenizer:
    """SmolLM2's."""
    return Tokenizer(gguf_definition(smollm2_path))


@pytest.fixture(scope="session")
def tiny_llm(tmp_path_factory: pytest.TempPathFactory, smollm2_path: Path) -> LLM:
    """A tiny random model with SmolLM2's tokenizer and chat template; nothing may compile while it serves."""
    folder = write_smol(tmp_path_factory.mktemp("served") / "model", smollm2_path, max_position_embeddings=512)
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text()) | {"chat_template": gguf_definition(smollm2_path).chat_template}
    path.write_text(json.dumps(settings))
    options = {"max_num_seqs": 8, "max_num_batched_tokens": 64, "min_input_pad": 8, "max_model_len": 512, "seed": 0}
    return LLM(str(folder), dtype="float32", compile_guard="raise", num_tokens_paddings=[64], **options)


@pytest.fixture(scope="session")
def server(tiny_llm: LLM) -> Iterator[Running]:
    """That model, served; it is idle between tests."""
    with running(tiny_llm.engine, admin_key="sk-admin") as one:
        yield one
