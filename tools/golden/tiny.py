"""Part A: tiny random checkpoints with their float32 logits and greedy continuations."""

import copy
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from golden.families import TinyModel
from golden.greedy import Greedy, greedy

PROMPT_LENGTHS = (5, 23, 70)
NEW_TOKENS = 24
SPECIAL_IDS = 3  # ids below this one are pad, bos and eos
MIN_GAP = 1e-2  # no near ties along the greedy path
MIN_DISTINCT = 10  # of NEW_TOKENS: no continuation that only repeats itself
MIN_TWIN_CHANGE = 0.1
MAX_SEEDS = 300
NEW_KEYS = ("rope_parameters", "layer_types", "dtype")  # of config.json in transformers 5


@dataclass(frozen=True)
class Summary:
    """A line of the README's table."""

    name: str
    seed: int
    min_gap: float
    noise: float  # largest difference between the logits in float32 and in float64
    twin_change: float | None
    size: int  # bytes on disk


def build(config: PretrainedConfig, seed: int, embed_std: float) -> PreTrainedModel:
    """A model with weights drawn so that every layer matters and the greedy continuation does not get stuck."""
    model = AutoModelForCausalLM.from_config(copy.deepcopy(config), attn_implementation="eager", dtype=torch.float32)
    rng = np.random.default_rng(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            noise = rng.standard_normal(tuple(parameter.shape), dtype=np.float32)
            if "embed_tokens" in name:
                noise *= embed_std
            elif name.endswith(".bias"):
                noise *= 0.5
            elif parameter.ndim == 1:  # a norm
                mean = 1.0
                if config.model_type.startswith("gemma"):  # multiplies by 1 + weight; its small embeddings ask for more
                    mean = 3.0 if name == "model.norm.weight" else 0.5
                noise = 0.3 * noise + mean
            else:
                noise *= 2.0 / np.sqrt(parameter.shape[1])
            parameter.copy_(torch.from_numpy(np.asarray(noise, np.float32)))
    return model.eval()


def make_prompts(config: PretrainedConfig) -> list[list[int]]:
    rng = np.random.default_rng(7)
    return [rng.integers(SPECIAL_IDS, config.vocab_size, length).tolist() for length in PROMPT_LENGTHS]


@torch.no_grad()
def forward(model: PreTrainedModel, ids: list[int]) -> torch.Tensor:
    """Logits [len(ids), vocab] of one full forward pass.

    On a copy: a model with dynamic rope remembers the longest sequence it has seen and rotates later ones by it.
    """
    return copy.deepcopy(model)(input_ids=torch.tensor([ids])).logits[0]


def acceptable(model: PreTrainedModel, prompt: list[int], answer: Greedy) -> bool:
    ids = answer.ids
    if min(answer.gaps) < MIN_GAP or min(ids) < SPECIAL_IDS or len(set(ids)) < MIN_DISTINCT:
        return False
    if "dynamic" in str(model.config.rope_parameters):  # there the cached keys keep the base of their own step
        return True
    one_pass = forward(model, prompt + ids[:-1])[len(prompt) - 1 :]
    if one_pass.argmax(-1).tolist() != ids:
        raise AssertionError("generation with a cache and one full pass disagree")
    return True


def find_seed(tiny: TinyModel, prompts: list[list[int]]) -> tuple[int, PreTrainedModel, list[Greedy]]:
    for seed in range(MAX_SEEDS):
        model = build(tiny.config, seed, tiny.embed_std)
        answers = []
        for prompt in prompts:
            answers.append(greedy(copy.deepcopy(model), prompt, NEW_TOKENS))
            if not acceptable(model, prompt, answers[-1]):
                break
        else:
            return seed, model, answers
    raise RuntimeError(f"{tiny.name}: no seed below {MAX_SEEDS} gives continuations without near ties")


def twin_change(tiny: TinyModel, model: PreTrainedModel, prompt: list[int], logits: torch.Tensor) -> float | None:
    """Largest change of the logits when the configuration is misread as `tiny.twin`."""
    if not tiny.twin:
        return None
    config = type(tiny.config)(**tiny.config.to_dict() | copy.deepcopy(tiny.twin))
    twin = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
    twin.load_state_dict(model.state_dict())
    change = float((forward(twin, prompt) - logits).abs().max())
    if change < MIN_TWIN_CHANGE:
        raise AssertionError(f"{tiny.name}: the logits hardly depend on {sorted(tiny.twin)} ({change:.2g})")
    return change


def legacy_config(config: dict[str, Any], legacy: dict[str, Any]) -> dict[str, Any]:
    """config.json as transformers 4 wrote it: rope and dtype keys at the top level, what can be derived left out."""
    old = {key: value for key, value in config.items() if key not in NEW_KEYS and not key.startswith("_")}
    if config.get("head_dim") == config["hidden_size"] // config["num_attention_heads"]:
        del old["head_dim"]
    return old | {"torch_dtype": config["dtype"], "transformers_version": "4.46.0", **legacy}


def check_legacy(path: Path, config: PretrainedConfig) -> None:
    """transformers reads the older file as the same model."""
    old = AutoConfig.for_model(**json.loads(path.read_text(encoding="utf-8")))
    rope = {key: value for key, value in old.rope_parameters.items() if key != "type"}
    if rope != config.rope_parameters:
        raise AssertionError(f"{path.parent.name}: {rope} != {config.rope_parameters}")
    for key in ("layer_types", "sliding_window", "head_dim", "num_key_value_heads"):
        if getattr(old, key, None) != getattr(config, key, None):
            raise AssertionError(f"{path.parent.name}: {key} differs in the older config")


def save_checkpoint(model: PreTrainedModel, folder: Path, **options: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    model.save_pretrained(folder, **options)
    (folder / "generation_config.json").unlink(missing_ok=True)
    for path in folder.iterdir():
        path.chmod(0o644)


def write(tiny: TinyModel, out: Path) -> Summary:
    """Write one golden set and return what is worth knowing about it."""
    folder = out / tiny.name
    prompts = make_prompts(tiny.config)
    seed, model, answers = find_seed(tiny, prompts)
    logits = [forward(model, prompt) for prompt in prompts]
    noise = max(
        float((forward(copy.deepcopy(model).double(), prompt) - row).abs().max())
        for prompt, row in zip(prompts, logits, strict=True)
    )
    arrays: dict[str, np.ndarray] = {}
    for i, (prompt, row, answer) in enumerate(zip(prompts, logits, answers, strict=True)):
        arrays[f"prompt_{i}"] = np.array(prompt, np.int32)
        arrays[f"logits_{i}"] = row.numpy()
        arrays[f"continuation_{i}"] = np.array(answer.ids, np.int32)
        arrays[f"logprobs_{i}"] = np.array(answer.logprobs, np.float32)
        arrays[f"gaps_{i}"] = np.array(answer.gaps, np.float32)

    save_checkpoint(model, folder)
    np.savez_compressed(folder / "golden.npz", **arrays)
    if tiny.legacy is not None:
        path = folder / "config_legacy.json"
        old = legacy_config(json.loads((folder / "config.json").read_text(encoding="utf-8")), tiny.legacy)
        path.write_text(json.dumps(old, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        check_legacy(path, model.config)
    if tiny.sharded:
        save_checkpoint(model, out / f"{tiny.name}_sharded", max_shard_size="200KB")
    return Summary(
        name=tiny.name,
        seed=seed,
        min_gap=min(min(answer.gaps) for answer in answers),
        noise=noise,
        twin_change=twin_change(tiny, model, prompts[-1], logits[-1]),
        size=sum(path.stat().st_size for path in folder.iterdir()),
    )
