"""transformers with one static batch of prompts of one length; greedy, without what `generate` adds to a step."""

from __future__ import annotations

import torch
from protocol import Generate, Settings, Steps, serve
from transformers import AutoModelForCausalLM


def load(settings: Settings) -> Generate:
    """The model in bfloat16. Its cache grows as it is used; `kv_tokens` are not asked for ahead."""
    torch.set_num_threads(len(settings.cpus))
    model = AutoModelForCausalLM.from_pretrained(settings.model, dtype=torch.bfloat16).eval()

    def generate(prompts: list[list[int]], outputs: list[int]) -> Steps:
        with torch.inference_mode():
            tokens, cache = torch.tensor(prompts), None
            for _ in range(outputs[0]):
                result = model(tokens, past_key_values=cache, use_cache=True, logits_to_keep=1)
                tokens, cache = result.logits[:, -1].argmax(-1, keepdim=True), result.past_key_values
                yield list(enumerate(tokens[:, 0].tolist()))

    return generate


if __name__ == "__main__":
    serve(load)
