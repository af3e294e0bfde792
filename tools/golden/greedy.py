"""Greedy generation that keeps what a test needs to judge a difference."""

from dataclasses import dataclass

import torch
from transformers import GenerationConfig, PreTrainedModel


@dataclass(frozen=True)
class Greedy:
    """Ids that follow a prompt; per step the log-softmax of the id and its lead in logits over the second best."""

    ids: list[int]
    logprobs: list[float]
    gaps: list[float]


@torch.no_grad()
def greedy(model: PreTrainedModel, prompt: list[int], count: int) -> Greedy:
    """Continue `prompt` by `count` tokens with `generate` and its KV cache; end tokens do not stop it."""
    model.generation_config = GenerationConfig()  # without the end tokens of the model's own
    output = model.generate(
        torch.tensor([prompt]),
        generation_config=GenerationConfig(
            max_new_tokens=count,
            do_sample=False,
            use_cache=True,
            return_dict_in_generate=True,
            output_logits=True,
        ),
    )
    ids = output.sequences[0, len(prompt) :]
    logits = torch.cat(output.logits).float()  # [count, vocab]
    best = logits.topk(2, dim=-1)
    if not torch.equal(best.indices[:, 0], ids):
        raise AssertionError("generate did not take the best token")
    logprobs = logits.log_softmax(-1).gather(1, ids[:, None])[:, 0]
    return Greedy(ids.tolist(), logprobs.tolist(), (best.values[:, 0] - best.values[:, 1]).tolist())
