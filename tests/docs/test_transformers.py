"""The page on transformers: its examples print what it shows."""

import os
import re
import subprocess
import sys

import pytest

from tests.docs.pages import ROOT, outputs

SHOWN = {each.language.split("/")[-1]: each.text for each in outputs() if each.page.name == "transformers.md"}


def printed(script, tmp_path):
    """Run an example, as the page says; return what it prints."""
    settings = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(tmp_path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, f"docs/examples/{script}"],
        cwd=ROOT,
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.slow
def test_generate_and_pipelines(tmp_path):
    # The script itself asserts that the tokens are those of plain `generate`.
    assert printed("inside_transformers.py", tmp_path) == SHOWN["inside_transformers.py"]


@pytest.mark.slow  # it imports torch in another process
def test_the_harness_gives_the_same_score_in_fewer_passes(tmp_path):
    pytest.importorskip("lm_eval")
    shown = printed("lm_evaluation_harness.py", tmp_path)
    assert shown == SHOWN["lm_evaluation_harness.py"]
    (plain, most), (drafted, fewer) = re.findall(r"exact match ([\d.]+), (\d+) forward passes", shown)
    assert plain == drafted != "0.000"
    assert int(fewer) < int(most)
