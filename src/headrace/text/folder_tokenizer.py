"""Tokenizers from a model folder in the Hugging Face layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from headrace.errors import ModelError
from headrace.text.definition import TokenizerDefinition


def read_folder_tokenizer(folder: Path) -> TokenizerDefinition:
    """Build a tokenizer from `tokenizer.json` and the JSON files next to it.

    Raises:
        ModelError: `tokenizer.json` is missing, or a file cannot be read.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ModelError(f"{folder} has no tokenizer.json")
    try:
        backend = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise ModelError(f"cannot read {path}: {error}") from error
    # A file may carry the settings of its training run, which would cut prompts.
    backend.no_truncation()
    backend.no_padding()

    config = _read_json(folder / "special_tokens_map.json") | _read_json(folder / "tokenizer_config.json")
    bos, eos = _token_text(config.get("bos_token")), _token_text(config.get("eos_token"))
    _register_special(backend, bos, eos)
    bos_id = None if bos is None else backend.token_to_id(bos)
    eos_id = None if eos is None else backend.token_to_id(eos)
    ends = _ids(eos_id)
    for name in ("config.json", "generation_config.json"):
        ends |= _ids(_read_json(folder / name).get("eos_token_id"))
    return TokenizerDefinition(
        backend=backend,
        bos_id=bos_id,
        eos_id=eos_id,
        eos_ids=frozenset(ends),
        adds_bos=bos_id is not None and _adds_bos(backend, bos_id, config.get("add_bos_token")),
        chat_template=_chat_template(folder, config),
    )


def _adds_bos(backend: Any, bos_id: int, setting: bool | None) -> bool:
    """Whether a prompt starts with BOS: as the setting says, and without one as the post-processor does."""
    if setting is not None:
        return setting
    return bos_id in backend.encode("", add_special_tokens=True).ids[:1]


def _register_special(backend: Any, *tokens: str | None) -> None:
    """Make the named tokens special where `tokenizer.json` has them as ordinary vocabulary only."""
    added = {token.content for token in backend.get_added_tokens_decoder().values()}
    missing = [token for token in tokens if token and token not in added and backend.token_to_id(token) is not None]
    backend.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in missing])


def _chat_template(folder: Path, config: dict[str, Any]) -> str | None:
    """Return the template from its own file, the configuration, or the processor's file, in this order."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if template is None:
        template = _read_json(folder / "chat_template.json").get("chat_template")
    if isinstance(template, list):
        template = {entry["name"]: entry["template"] for entry in template}
    if isinstance(template, dict):
        template = template.get("default")
    return template


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"cannot read {path}: {error}") from error
    if not isinstance(content, dict):
        raise ModelError(f"{path} is not a JSON object")
    return content


def _token_text(token: Any) -> str | None:
    """Return the text of a token given as a string or as an object with its flags."""
    return token.get("content") if isinstance(token, dict) else token


def _ids(value: Any) -> set[int]:
    """Return token ids given as one number or a list of them."""
    values = value if isinstance(value, list) else [value]
    return {id for id in values if isinstance(id, int)}
