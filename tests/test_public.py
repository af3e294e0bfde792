"""The public names of the package."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import headrace

PUBLIC = {
    "LLM",
    "CompletionOutput",
    "ConfigError",
    "EngineConfig",
    "HeadraceError",
    "ModelError",
    "PoolingParams",
    "RequestError",
    "RequestOutput",
    "SamplingParams",
    "StructuredOutputs",
    "TokenLogprobs",
    "TokenOutput",
}


def test_these_names_are_public_and_no_others() -> None:
    assert set(headrace.__all__) == PUBLIC
    assert len(headrace.__all__) == len(PUBLIC)


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(headrace, name).__name__ == name


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'headrace' has no attribute 'nothing'"):
        _ = headrace.nothing


def test_every_error_is_a_headrace_error() -> None:
    for error in (headrace.ConfigError, headrace.ModelError, headrace.RequestError):
        assert issubclass(error, headrace.HeadraceError)
    assert issubclass(headrace.ConfigError, ValueError)
    assert issubclass(headrace.RequestError, ValueError)


@pytest.mark.parametrize("code", ["import headrace", "import headrace.cli", "from headrace import SamplingParams"])
def test_importing_does_not_import_jax(code: str) -> None:
    check = f"{code}; import sys; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


def test_imports_only_go_down_the_list_in_the_documentation() -> None:
    root = Path(headrace.__file__).parent
    text = (Path(__file__).parents[1] / "docs" / "structure.md").read_text()
    order = re.findall(r"^  (\w+)(?:/|\.py) ", text.partition("src/headrace/\n")[2].partition("```")[0], re.MULTILINE)
    known = {path.stem for path in root.iterdir() if path.stem not in ("__init__", "__pycache__", "py")}
    assert set(order) == known
    up = []
    for file in root.rglob("*.py"):
        package = file.relative_to(root).parts[0].removesuffix(".py")
        for target in re.findall(r"^ *from headrace\.(\w+)", file.read_text(), re.MULTILINE):
            if package != "__init__" and order.index(target) < order.index(package):
                up.append((file.name, target))
    assert up == [("rope.py", "models")]
