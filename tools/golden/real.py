"""Part C: facts about two real models, from their GGUF files dequantised to float32."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import AutoModelForCausalLM, Gemma3TextConfig, LlamaConfig, PretrainedConfig, PreTrainedModel

from golden.greedy import Greedy, greedy

CAPITAL = "The capital of France is"
CITIES = (" Paris", " London")
PARAGRAPH = (
    "Water boils at a lower temperature on a mountain than at the sea, because the air presses less on its surface. "
    "A cook who lives at 3,000 metres therefore has to boil potatoes for longer: at about 90 °C, they take"
)
STORY = " ".join((Path(__file__).parent / "story.txt").read_text(encoding="utf-8").split())
POSITIONS = (5, 100, 511, 512, 600, 1500)  # below, at and above Gemma's window of 512
NEAR_TIE = 1e-3
SENTENCES = (Path(__file__).parent / "sentences.txt").read_text(encoding="utf-8").splitlines()  # JSON's escapes
DETAILED = 20  # every so many sentences with the value of each token


@dataclass(frozen=True)
class RealModel:
    model: PreTrainedModel
    encode: Callable[[str], list[int]]
    names_paris: bool  # whether the greedy answer to CAPITAL starts with it; in Gemma 3 270M (base) it comes third


def value(reader: gguf.GGUFReader, key: str) -> Any:
    return reader.fields[key].contents()


def unpermute(rows: np.ndarray, heads: int) -> np.ndarray:
    """Undo the row order that GGUF llama files have for interleaved rope: [heads * head_dim, hidden]."""
    out, hidden = rows.shape
    return rows.reshape(heads, out // heads // 2, 2, hidden).swapaxes(1, 2).reshape(out, hidden)


def load_weights(
    reader: gguf.GGUFReader,
    config: PretrainedConfig,
    names: dict[str, str],
    convert: Callable[[str, np.ndarray], np.ndarray],
) -> PreTrainedModel:
    """A float32 model with the file's weights; `names` maps a GGUF name inside a block to transformers' name."""
    state = {}
    for tensor in reader.tensors:
        block, _, rest = tensor.name.removeprefix("blk.").partition(".")
        if block.isdigit():
            prefix, key = f"model.layers.{block}.", rest.removesuffix(".weight")
        else:
            prefix, key = "model.", tensor.name.removesuffix(".weight")
        array = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        state[f"{prefix}{names[key]}.weight"] = torch.from_numpy(np.array(convert(key, array)))
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32)
    missing, unexpected = model.load_state_dict(state, strict=False)
    if unexpected or set(missing) - {"lm_head.weight"}:  # tied to the embeddings
        raise AssertionError(f"missing {missing}, unexpected {unexpected}")
    return model.eval()


LLAMA_NAMES = {
    "token_embd": "embed_tokens",
    "output_norm": "norm",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}

GEMMA3_NAMES = LLAMA_NAMES | {
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}


def config_values(reader: gguf.GGUFReader, arch: str) -> dict[str, Any]:
    """What both families have in common."""
    return {
        "vocab_size": len(reader.fields["tokenizer.ggml.tokens"].data),
        "hidden_size": value(reader, f"{arch}.embedding_length"),
        "intermediate_size": value(reader, f"{arch}.feed_forward_length"),
        "num_hidden_layers": value(reader, f"{arch}.block_count"),
        "num_attention_heads": value(reader, f"{arch}.attention.head_count"),
        "num_key_value_heads": value(reader, f"{arch}.attention.head_count_kv"),
        "max_position_embeddings": value(reader, f"{arch}.context_length"),
        "rms_norm_eps": value(reader, f"{arch}.attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": True,
    }


def smollm2(path: Path) -> RealModel:
    reader = gguf.GGUFReader(path)
    theta = value(reader, "llama.rope.freq_base")
    config = LlamaConfig(
        **config_values(reader, "llama"), rope_parameters={"rope_type": "default", "rope_theta": theta}
    )
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}  # each its own count

    def convert(key: str, array: np.ndarray) -> np.ndarray:
        return unpermute(array, heads[key]) if key in heads else array

    vocab = {token: i for i, token in enumerate(value(reader, "tokenizer.ggml.tokens"))}
    merges = [tuple(merge.split(" ")) for merge in value(reader, "tokenizer.ggml.merges")]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    digits = pre_tokenizers.Digits(individual_digits=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    model = load_weights(reader, config, LLAMA_NAMES, convert)
    return RealModel(model, lambda text: tokenizer.encode(text).ids, names_paris=True)


def gemma3(path: Path) -> RealModel:
    reader = gguf.GGUFReader(path)
    config = Gemma3TextConfig(  # its own defaults say what the file does not: local base 10,000, one global layer in 6
        **config_values(reader, "gemma3"),
        head_dim=value(reader, "gemma3.attention.key_length"),
        query_pre_attn_scalar=value(reader, "gemma3.attention.key_length"),
        sliding_window=value(reader, "gemma3.attention.sliding_window"),
    )
    if config.rope_parameters["full_attention"]["rope_theta"] != value(reader, "gemma3.rope.freq_base"):
        raise AssertionError("another base for the global layers")

    def convert(key: str, array: np.ndarray) -> np.ndarray:
        return array - 1 if key.endswith("norm") else array  # the file has 1 + weight

    tokens, scores = (value(reader, f"tokenizer.ggml.{key}") for key in ("tokens", "scores"))
    vocab = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges_from_scores(vocab, scores), byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    bos = value(reader, "tokenizer.ggml.bos_token_id")
    model = load_weights(reader, config, GEMMA3_NAMES, convert)
    return RealModel(model, lambda text: [bos, *tokenizer.encode(text).ids], names_paris=False)


def merges_from_scores(vocab: dict[str, int], scores: list[float]) -> list[tuple[str, str]]:
    """SentencePiece has no list of merges: two tokens that join to a third merge, the best score of it first."""
    merges = [
        (-scores[i], vocab[token[:cut]], vocab[token[cut:]])
        for token, i in vocab.items()
        for cut in range(1, len(token))
        if token[:cut] in vocab and token[cut:] in vocab
    ]
    tokens = list(vocab)
    return [(tokens[left], tokens[right]) for _, left, right in sorted(merges)]


@torch.no_grad()
def next_logprobs(model: PreTrainedModel, ids: list[int]) -> torch.Tensor:
    """[len(ids) - 1]: item i is log p(ids[i + 1] | ids[:i + 1])."""
    hidden = model.model(input_ids=torch.tensor([ids])).last_hidden_state[0, :-1]
    rows = [
        model.lm_head(part).log_softmax(-1).gather(1, target[:, None])[:, 0]
        for part, target in zip(hidden.split(128), torch.tensor(ids[1:]).split(128), strict=True)
    ]
    return torch.cat(rows)


def score(real: RealModel, text: str, detailed: bool) -> dict[str, Any]:
    """The sum of the log-probabilities of a text's tokens after the first."""
    ids = real.encode(text)
    logprobs = next_logprobs(real.model, ids)
    details = {"logprobs": rounded(logprobs)} if detailed else {}
    return {"text": text, "ids": ids, "sum": round(float(logprobs.double().sum()), 6), **details}


def rounded(numbers: list[float] | torch.Tensor) -> list[float]:
    return [round(float(number), 6) for number in numbers]


def describe_greedy(name: str, answer: Greedy) -> dict[str, Any]:
    near_ties = [step for step, gap in enumerate(answer.gaps) if gap < NEAR_TIE]
    print(f"  {name}: smallest gap {min(answer.gaps):.4f}, near ties at steps {near_ties}")
    return {
        "continuation": answer.ids,
        "logprobs": rounded(answer.logprobs),
        "gaps": rounded(answer.gaps),
        "near_ties": near_ties,
    }


def describe(real: RealModel) -> dict[str, Any]:
    story = real.encode(STORY)
    prompts = {
        "capital": (real.encode(CAPITAL), CAPITAL, 32),
        "paragraph": (real.encode(PARAGRAPH), PARAGRAPH, 32),
        "story_500": (story[:500], None, 100),  # the continuation crosses Gemma's window
        "story_700": (story[:700], None, 32),
    }
    results = []
    for name, (ids, text, count) in prompts.items():
        answer = greedy(real.model, ids, count)
        results.append({"name": name, "text": text, "ids": ids, **describe_greedy(name, answer)})

    scores = {}
    capital = real.encode(CAPITAL)
    for city in CITIES:
        ids = real.encode(CAPITAL + city)
        if ids[: len(capital)] != capital:
            raise AssertionError("the tokens of the prompt change with what follows")
        scores[city] = round(float(next_logprobs(real.model, ids)[len(capital) - 1 :].sum()), 6)
    paris = real.encode(CAPITAL + CITIES[0])[len(capital) :]
    named = results[0]["continuation"][: len(paris)] == paris
    if named != real.names_paris or scores[" Paris"] < scores[" London"]:
        raise AssertionError("the model does not know the capital of France")

    logprobs = rounded(next_logprobs(real.model, story))
    return {
        "prompts": results,
        "city_scores": {"prompt": CAPITAL, "scores": scores},
        "story": {
            "text": STORY,
            "ids": story,
            "next_logprobs": logprobs,
            "positions": {position: logprobs[position] for position in POSITIONS if position < len(logprobs)},
        },
    }


def write(real: RealModel, path: Path) -> None:
    print(path.name)
    path.write_text(json.dumps(describe(real), ensure_ascii=False) + "\n", encoding="utf-8")


def write_smollm2(source: Path, out: Path) -> None:
    real = smollm2(source)
    write(real, out / "smollm2.json")
    lines = [json.loads('"' + line.replace('"', '\\"') + '"') for line in SENTENCES]
    scores = [score(real, text, index % DETAILED == 0) for index, text in enumerate(lines)]
    path = out / "smollm2_scores.json"
    print(path.name)
    path.write_text("[\n" + ",\n".join(json.dumps(s, ensure_ascii=False) for s in scores) + "\n]\n", encoding="utf-8")


def write_gemma3(source: Path, out: Path) -> None:
    write(gemma3(source), out / "gemma3_270m.json")
