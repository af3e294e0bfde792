"""Write the golden data of the parity tests (tests/data/golden) with transformers and torch; the tests need neither.

    python tools/make_golden.py                        # tiny checkpoints, embeddings.json and rope.json
    python tools/make_golden.py --only llama3 gemma3   # some of the tiny checkpoints, nothing else
    python tools/make_golden.py --embeddings           # embeddings.json, of the checkpoints that are there
    python tools/make_golden.py --smollm2 SmolLM2-135M-Instruct.Q4_1.gguf --gemma3 gemma-3-270m-q4_k_m.gguf

Needs torch (the CPU build will do), transformers 5, gguf, tokenizers, safetensors and numpy. The versions that the
committed files were made with are in tests/data/golden/README.md. The same versions write the same bytes again.
"""

import argparse
from pathlib import Path

import torch
import transformers

from golden import embeddings, families, real, report, rope, tiny

DEFAULT_OUT = Path(__file__).parent.parent / "tests" / "data" / "golden"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="only these tiny checkpoints")
    parser.add_argument("--embeddings", action="store_true", help="only write embeddings.json")
    parser.add_argument("--smollm2", type=Path, metavar="GGUF", help="only write smollm2*.json, from this file")
    parser.add_argument("--gemma3", type=Path, metavar="GGUF", help="only write gemma3_270m.json, from this file")
    return parser.parse_args()


def write_tiny(out: Path, only: list[str] | None) -> None:
    models = families.all_models()
    if only and (unknown := set(only) - {model.name for model in models}):
        raise SystemExit(f"no such tiny checkpoint: {sorted(unknown)}")
    summaries = []
    for model in models:
        if not only or model.name in only:
            summaries.append(tiny.write(model, out))
            print(summaries[-1])
    if not only:
        report.write_readme(out, summaries)


def main() -> None:
    arguments = parse_arguments()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    arguments.out.mkdir(parents=True, exist_ok=True)
    if arguments.smollm2:
        real.write_smollm2(arguments.smollm2, arguments.out)
    if arguments.gemma3:
        real.write_gemma3(arguments.gemma3, arguments.out)
    if arguments.embeddings:
        embeddings.write(arguments.out)
    if arguments.smollm2 or arguments.gemma3 or arguments.embeddings:
        return
    write_tiny(arguments.out, arguments.only)
    if not arguments.only:
        embeddings.write(arguments.out)
        rope.write(arguments.out)


if __name__ == "__main__":
    main()
