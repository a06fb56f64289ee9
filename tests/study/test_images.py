"""A study of a model of pixels: without a tokenizer, from the prompts to the pictures of the report."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from specdec_core import load_model
from specdec_core.cli.main import app
from specdec_core.models import model_folder
from specdec_core.study import compare, load_study
from tests.study.page_elements import Elements

STUDY = Path(__file__).parents[2] / "examples" / "images.yaml"
SHORT = ("prompts.limit=2", "repeats=1", "generation.max_new_tokens=12")
LEVELS, CLASSES = 17, 10


@pytest.mark.parametrize("role", ["target", "drafter"])
def test_the_models_know_levels_and_classes_and_have_room_for_one_picture(role):
    loaded = load_model(f"builtin:digits-{role}", device="cpu")
    assert loaded.vocab_size == LEVELS + CLASSES
    assert loaded.max_positions == 65
    assert loaded.tokenizer is None
    assert not loaded.eos_ids


def test_all_of_it_is_small():
    folders = [model_folder(f"builtin:digits-{role}") for role in ("target", "drafter")]
    files = [path for folder in (*folders, folders[0].parent / "digits-ngram") for path in folder.iterdir()]
    assert sum(path.stat().st_size for path in files) < 2_000_000


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    """The result of the study, cut short."""
    return compare(load_study(STUDY, SHORT), tmp_path_factory.mktemp("images"), progress=False)


def test_the_study_runs_without_a_tokenizer(result):
    assert result.exit_code == 0, str(result)
    names = ["baseline", "transformer", "bigram", "prompt-copy", "random"]
    assert [row.name for row in result.rows] == 2 * names
    assert all(row.status == "ok" and row.counts.tokens == 24 for row in result.rows)
    cold, warm = result.rows[1], result.rows[6]
    assert cold.quality["exact"] == 1.0
    assert (cold.quality["references"], warm.quality["bleu"]) == (0, None)
    assert all(row.counts.block_efficiency > 1 for row in (cold, warm))


def test_outputs_are_tokens(result):
    (path,) = (path for path in result.files if path.name == "outputs.jsonl")
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert len(lines) == 2 * 5 * 2
    assert {line["text"] for line in lines} == {None}
    assert {line["prompt"] for line in lines} == {"0", "1"}
    assert all(len(line["tokens"]) == 12 and max(line["tokens"]) < LEVELS + CLASSES for line in lines)


def test_the_report_shows_the_pictures(result):
    shown = Elements(result.report.read_text(encoding="utf-8")).of("img")
    assert len(shown) == 2 * 5 * 2
    assert shown[0]["alt"] == "baseline, prompt 0: 12 of 64 pixels drawn"
    same = [one["alt"].endswith("the baseline's picture") for one in shown[2:10]]
    assert all(same), "at temperature 0"


def test_the_study_is_described_before_it_runs():
    result = CliRunner().invoke(app, ["validate", str(STUDY)])
    assert result.exit_code == 0, result.output
    assert "first prompt, token ids: 17" in result.output
