"""The speculators package itself, in an environment of its own, against the eagle3 drafter with P-EAGLE heads."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.drafters.speculators_package import CASES, DATA, package_logits

pytestmark = pytest.mark.speculators
SCRIPT = Path(__file__).parent / "speculators_peagle.py"


@pytest.mark.parametrize("case", CASES["peagle"])
def test_the_committed_logits_are_those_of_the_package(case, tmp_path):
    reference = load_file(DATA / "peagle" / case / "reference.safetensors")["logits"]
    made = package_logits(DATA / "peagle" / case, tmp_path, SCRIPT)
    torch.testing.assert_close(made, reference, atol=1e-5, rtol=1e-5, equal_nan=True)
