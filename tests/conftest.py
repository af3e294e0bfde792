"""Fixtures shared by all tests: the two real models, fetched once into the user's cache."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jax
import pytest

from execution.meshes import MODELS, new_manager
from headrace import LLM
from headrace.engine.build import use_compilation_cache
from headrace.weights.sources import pull
from random_model import write_random
from smol import smol_llm, write_smol
from tiny import write_model

jax.config.update("jax_num_cpu_devices", 8)  # for the tests of meshes; the others use the first
use_compilation_cache()  # so that the second run of the tests compiles next to nothing


@pytest.fixture(scope="module", autouse=True)
def _forget_compiled_functions() -> Iterator[None]:
    """What a module compiled is not kept for the others: code takes memory maps, and Linux gives a process 65,530."""
    yield
    jax.clear_caches()
    gc.collect()


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct, Q4_1."""
    return pull("smollm2")


@pytest.fixture(scope="session")
def gemma3_path() -> Path:
    """Gemma 3 270M base, Q4_K_M."""
    return pull("gemma3-270m")


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model whose tokenizer fits every golden checkpoint."""
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def smol(tmp_path_factory: pytest.TempPathFactory, smollm2_path: Path) -> LLM:
    """A tiny random model with SmolLM2's tokenizer; it is idle between tests."""
    return smol_llm(write_smol(tmp_path_factory.mktemp("smol") / "model", smollm2_path))


@pytest.fixture(scope="session")
def meshed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(model, data_parallel, tensor_parallel) -> a manager of one of `MODELS`, shared by all tests."""
    root = tmp_path_factory.mktemp("random")
    folder = cache(lambda name: write_random(root / name, name, **MODELS[name]))
    return cache(lambda name, *mesh: new_manager(folder(name), *mesh))
