"""Whatever is wrong, the command line says it in one line and ends with code 2."""

from __future__ import annotations

import shutil
import socket
import sys
from pathlib import Path

import pytest
from gguf import GGUFWriter

import golden
from cli.command import QUICK, Cli, cli, finish, start
from tiny import write_model
from weights.gguf_files import stored_rows, write_gguf

__all__ = ["cli"]


def truncated_gguf(folder: Path) -> Path:
    path = write_gguf(folder / "m.gguf", {"token_embd.weight": ("F32", stored_rows("F32", 32, 64))})
    path.write_bytes(path.read_bytes()[:-100])
    return path


def test_a_truncated_gguf(cli: Cli, tmp_path: Path) -> None:
    path = truncated_gguf(tmp_path)
    outcome = cli("generate", path, "--prompt", "x")
    assert str(path) in outcome.error
    assert outcome.err.count("\n") == 1
    assert outcome.out == ""


def test_a_real_process_says_nothing_else(tmp_path: Path) -> None:
    outcome = finish(start("generate", truncated_gguf(tmp_path), "--prompt", "x"))
    assert "m.gguf" in outcome.error
    assert outcome.err.count("\n") == 1
    assert outcome.out == ""


def test_a_gguf_of_an_unknown_architecture(cli: Cli, tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "m.gguf", "perceptron")
    writer.add_tensor("token_embd.weight", stored_rows("F32", 32, 64))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert "perceptron" in cli("generate", tmp_path / "m.gguf", "--prompt", "x").error


def test_a_missing_shard(cli: Cli, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m")
    (folder / "model.safetensors").unlink()
    for file in (golden.ROOT / "llama3_sharded").iterdir():
        if "00002-of" not in file.name:
            shutil.copy(file, folder / file.name)
    assert "model-00002-of-00002.safetensors" in cli("generate", folder, "--prompt", "x").error


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("nothing-known", "'nothing-known' is no file or folder and no known model"),
        ("missing.gguf", "missing.gguf: there is no such file"),
        ("/", "the folder holds neither a config.json nor a .gguf file"),
        ("", "model: must be a name or a path"),
    ],
)
def test_an_unknown_model(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, message: str) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in cli("generate", model, "--prompt", "x").error
    assert message in cli("models", "path", model).error


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--temperature", "-1"], "temperature: must be >= 0.0, not -1.0"),
        (["--temperature", "nan"], "temperature: must be a finite number"),
        (["--temperature", "warm"], "Invalid value for '--temperature'"),
        (["--top-p", "0"], "top_p: must be > 0.0 and <= 1.0, not 0.0"),
        (["--top-k", "-2"], "top_k: must be >= -1"),
        (["--min-p", "1.1"], "min_p: must be >= 0.0 and <= 1.0"),
        (["--max-tokens", "-1"], "max_tokens: must be >= 0, not -1"),
        (["--n", "0"], "n: must be >= 1 and <= 128, not 0"),
        (["--min-tokens", "9", "--max-tokens", "8"], "min_tokens: 9 is more than max_tokens (8)"),
        (["--presence-penalty", "2.1"], "presence_penalty: must be >= -2.0 and <= 2.0, not 2.1"),
        (["--frequency-penalty", "-2.1"], "frequency_penalty: must be >= -2.0 and <= 2.0, not -2.1"),
        (["--repetition-penalty", "0"], "repetition_penalty: must be >= 0.001"),
        (["--logit-bias", "5"], "Invalid value for --logit-bias: '5' is not ID=VALUE such as 1234=-100"),
        (["--logit-bias", "5=x"], "Invalid value for --logit-bias: '5=x' is not ID=VALUE"),
        (["--logit-bias", "x=5"], "logit_bias: "),
        (["--logit-bias", "5=101"], "logit_bias: "),
        (["--logit-bias", "5=nan"], "logit_bias: "),
        (["--logit-bias", "256=1"], "logit_bias: "),
        (["--allowed-token-ids", "256"], "allowed_token_ids: 256 is not a token id; ids are 0 … 255"),
        (["--bad-words", ""], "bad_words: must not hold an empty string"),
        (["--logprobs", "21"], "logprobs: must be >= 0 and <= 20, not 21"),
        (["--truncate-prompt-tokens", "0"], "truncate_prompt_tokens: must be -1 or >= 1, not 0"),
        (["--regex", ""], "structured_outputs.regex: is empty"),
        (["--regex", "x", "--json-object"], "structured_outputs: must have exactly one of"),
        (["--choice", ""], "structured_outputs.choice: must not hold an empty string"),
        (["--json-schema", "missing.json"], "missing.json: cannot be read: No such file or directory"),
        (["--json-schema", "/"], "/: cannot be read: Is a directory"),
        (["--grammar", "missing.lark"], "missing.lark: cannot be read: No such file or directory"),
        (["--speculative-tokens", "-1"], "speculative_tokens: must be an integer >= 0, not -1"),
        (["--speculative-tokens", "8", "--max-num-seqs", "8"], "speculative_tokens: 8 must be less than max_num_seqs"),
        (["--prompt-lookup-min", "4"], "prompt_lookup_min: 4 is more than prompt_lookup_max (3)"),
        (["--stop", ""], "stop: must not hold an empty string"),
        (["--stop-token-ids", "-1"], "stop_token_ids: must be >= 0"),
        (["--seed", "99999999999999999999"], "seed: must be"),
        (["--nonsense"], "No such option: --nonsense"),
        (["--temperature"], "Option '--temperature' requires an argument"),
        (["extra"], "Got unexpected extra argument"),
        (["--raw", "--system", "x"], "system: cannot be given together with --raw"),
        (["--system", "x"], "system: "),
        (["--max-model-len", "257"], "max_model_len: 257 is more than the model's 256"),
        (["--max-model-len", "1"], "max_model_len: must be at least 2"),
        (["--max-num-seqs", "0"], "max_num_seqs: must be a positive integer"),
        (["--page-size", "12"], "page_size: 12 is not one of 8, 16, 32, 64"),
        (["--attention", "pallas"], "attention: there is no Pallas kernel for cpu; give auto or jax"),
        (["--kv-cache-bytes", "1", "--kv-cache-share", "0.5"], "kv_cache_share: cannot be given together"),
        (["--kv-cache-bytes", "1"], "kv_cache_bytes: 1 bytes hold not even one page"),
        (["--weights-dtype", "int4"], "weights_dtype: 'int4' is not one of auto, float32, bfloat16, int8, gguf"),
        (["--weights-dtype", "gguf"], "weights_dtype: 'gguf' keeps the blocks of a GGUF file, and "),
        (["--num-tokens-paddings", "64,a"], "'64,a' is not a list of numbers such as 8,16,32"),
        (["--num-reqs-paddings", ""], "'' is not a list of numbers"),
        (["--num-tokens-paddings", "32"], "num_tokens_paddings: the last size must be 64, not 32"),
    ],
)
def test_a_wrong_option(cli: Cli, tiny_folder: Path, options: list[str], message: str) -> None:
    assert message in cli("generate", tiny_folder, "--prompt", "x", *QUICK, *options).error


@pytest.mark.parametrize(
    ("content", "message"), [(b"{", "is not JSON"), (b'{"type": 5}', "type must be a string"), (b"\xff", "is no UTF-8")]
)
def test_a_file_that_is_no_schema(cli: Cli, tiny_folder: Path, tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "schema.json"
    file.write_bytes(content)
    error = cli("generate", tiny_folder, "--prompt", "x", *QUICK, "--json-schema", file).error
    assert message in error
    assert error.startswith(("structured_outputs.json: ", f"{file}: "))


def test_a_prompt_longer_than_the_window(cli: Cli, tiny_folder: Path) -> None:
    outcome = cli("generate", tiny_folder, *QUICK, "--prompt", "x" * 256)
    assert outcome.error.startswith("prompt: has 256 tokens, but the context holds 256")
    assert outcome.out == ""


def test_an_empty_prompt(cli: Cli, tiny_folder: Path) -> None:
    assert cli("generate", tiny_folder, *QUICK, "--prompt", "").error.startswith("prompt: is empty")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "missing argument 'model'"),
        (["m"], "missing option '--prompt'"),
    ],
)
def test_a_missing_argument(cli: Cli, arguments: list[str], message: str) -> None:
    assert message in cli("generate", *arguments).error.lower()


@pytest.mark.parametrize("command", [["nonsense"], ["models", "nonsense"], ["bench", "nonsense"]])
def test_an_unknown_command(cli: Cli, command: list[str]) -> None:
    assert "No such command 'nonsense'" in cli(*command).error


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--batch-sizes", "1,x"], "'1,x' is not a list of numbers"),
        (["--batch-sizes", ""], "'' is not a list of numbers"),
        (["--batch-sizes", "1,0"], "batch_sizes: must be positive, not [1, 0]"),
        (["--batch-sizes", "-3"], "batch_sizes: must be positive, not [-3]"),
        (["--batch-sizes", "600"], "max_num_batched_tokens: 512 is less than max_num_seqs (600)"),
        (["--prompt-tokens", "0"], "Invalid value for '--prompt-tokens'"),
        (["--prompt-tokens", "250"], "max_model_len: 315 is more than the model's 256"),
    ],
)
def test_a_wrong_option_of_the_benchmark(cli: Cli, tiny_folder: Path, options: list[str], message: str) -> None:
    assert message in cli("bench", "throughput", tiny_folder, *options).error


@pytest.mark.parametrize("command", [[], ["--help"], ["generate", "--help"], ["chat", "--help"], ["bench", "--help"]])
def test_help_is_no_error(cli: Cli, command: list[str]) -> None:
    outcome = cli(*command)
    assert outcome.code == 0
    assert "Usage:" in outcome.out
    assert outcome.err == ""


def test_an_address_that_cannot_be_had(cli: Cli, tiny_folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        error = cli("serve", tiny_folder, "--port", port).error
    assert error == f"port: cannot listen on 127.0.0.1:{port}: Address already in use"
    assert cli("serve", tiny_folder, "--host", "192.0.2.1").error.startswith("host: cannot listen on 192.0.2.1:8000: ")


def test_a_missing_extra_is_told_before_the_model_is_loaded(
    cli: Cli, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    monkeypatch.setattr("headrace.cli.serve.load", None)
    url = "http://127.0.0.1:4318/v1/traces"
    assert "headrace[otel]" in cli("serve", tiny_folder, "--port", "0", "--otlp-traces-endpoint", url).error


def test_the_help_shows_the_server_s_defaults(cli: Cli) -> None:
    assert "[default: 8000]" in cli("serve", "--help").out
