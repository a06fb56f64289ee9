"""A target with an encoder from end to end: its sources on the command line, Ctrl-C, --resume, and drafting."""

import signal

import pytest
from safetensors.torch import load_file

from specdec_core.decoding.decoder import Decoder
from specdec_core.interface.settings import GenerationSettings
from specdec_core.study.progress import TerminalProgress
from specdec_drafters.heads.drafter import HeadsDrafter
from specdec_drafters.settings import HeadsConfig, TransformerConfig
from specdec_drafters.transformer import TransformerDrafter
from tests.commands import run_command
from tests.toys import Gamma

SIZES = {"transformer": ("--layers", 1, "--width", 32, "--heads", 2), "heads": ("--heads", 2)}
WEIGHTS = {"transformer": "model.safetensors", "heads": ""}
# The pairs of the file, and what the target writes for its sources.
MATERIAL = {"pairs": (), "own": ("--samples", 100)}


@pytest.fixture
def specdec_train(models, sources, tmp_path, monkeypatch):
    """Run `specdec train` for a tiny T5, with Ctrl-C after so many steps if wanted."""
    monkeypatch.setattr("specdec_core.cli.options.shared_options.quieten_libraries", lambda: None)

    def run(name, output, *more, stop_after=None):
        steps = [0]

        def advance(self, done, note=""):
            steps[0] += note.startswith("step")
            if steps[0] == stop_after:
                signal.raise_signal(signal.SIGINT)

        monkeypatch.setattr(TerminalProgress, "advance", advance)
        given = ["--target", models("t5"), "--output", tmp_path / output, "--sources", sources, "--length", 12]
        given += ["--held-out", 200, "--batch-tokens", 128, "--steps", 6, "--dtype", "float32", "--quiet"]
        return run_command("train", name, *(*given, *SIZES[name], *more))

    return run


@pytest.mark.parametrize(
    ("name", "material"),
    [
        ("heads", "pairs"),
        pytest.param("heads", "own", marks=pytest.mark.slow),
        pytest.param("transformer", "pairs", marks=pytest.mark.slow),
        pytest.param("transformer", "own", marks=pytest.mark.slow),
    ],
)
def test_a_drafter_for_t5_is_trained_stopped_resumed_and_drafts(specdec_train, targets, tmp_path, name, material):
    more = MATERIAL[material]
    whole = specdec_train(name, "whole", *more)
    assert whole.exit_code == 0, whole.output
    assert "written: " in whole.output
    stopped = specdec_train(name, "cut", *more, stop_after=2)
    assert stopped.exit_code == 130
    assert "--resume" in stopped.output
    assert not (tmp_path / "cut").exists()
    resumed = specdec_train(name, "cut", *more, "--resume")
    assert resumed.exit_code == 0, resumed.output
    assert not list(tmp_path.glob("*.training"))

    weights = [load_file(tmp_path / output / WEIGHTS[name]) for output in ("whole", "cut")]
    assert weights[0].keys() == weights[1].keys()
    assert all(weights[0][key].equal(weights[1][key]) for key in weights[0])

    target, path = targets("t5"), str(tmp_path / "cut")
    made = {
        "transformer": lambda: TransformerDrafter(TransformerConfig(model=path), target.info()),
        "heads": lambda: HeadsDrafter(HeadsConfig(model=path), target.info()),
    }
    prompts = [[5, 6, 7], [8, 9, 10, 11], [3]]
    settings = GenerationSettings(max_new_tokens=16, seed=2, ignore_eos=True)
    result = Decoder(target, made[name](), gamma=Gamma(2), strict=True).generate(prompts, settings)
    assert result.metrics.accepted > 0
    assert all(len(row.tokens) == 16 for row in result.sequences)
