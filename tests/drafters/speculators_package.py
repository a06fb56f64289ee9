"""The speculators package, run in a separate environment, and the heads that are compared with it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import torch
from safetensors.torch import load_file

DATA = Path(__file__).parent / "data"
"""What the package computed, by drafter and case."""
CASES = {
    "eagle3": ("llama", "qwen3", "norm-before-fc"),
    "peagle": ("llama", "qwen3"),
    "mtp": ("qwen3", "qwen3-sliding"),
    "dflash": ("qwen3", "anchor", "sliding", "non-causal"),
}
SCRIPT = Path(__file__).parent / "speculators_reference.py"


def package_logits(head: Path, folder: Path, script: Path = SCRIPT) -> torch.Tensor:
    """Run the package with the Python that has it; return its logits, as the script says."""
    python = os.environ.get("SPECULATORS_PYTHON")
    assert python, "SPECULATORS_PYTHON must name a Python that has the package; see the phase in .ci/run"
    output = folder / "logits.safetensors"
    # The package imports its own transformers, not that of this environment.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run([python, script, "run", head, output], check=True, env={**environment, "HF_HUB_OFFLINE": "1"})
    return load_file(output)["logits"]
