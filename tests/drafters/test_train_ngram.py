"""`specdec train ngram` as a plugin: what it takes, what it writes, what it says, what it refuses."""

import numpy as np
import pytest
from pydantic import ValidationError
from ruamel.yaml import YAML

from specdec_core import load_model
from specdec_core.interface import ConfigError, SpecdecError
from specdec_drafters.ngram import trainer
from specdec_drafters.ngram.arpa import read_arpa
from specdec_drafters.ngram.drafter import NgramDrafter
from specdec_drafters.ngram.kneser_ney import fit
from specdec_drafters.ngram.trainer import NgramTrainer
from specdec_drafters.settings import NgramConfig, NgramTrainerConfig
from tests.drafters.ngram_models import DATA, arpa_entries, assert_same_entries
from tests.tiny import tiny_model

V = 4096  # of the built-in target


class Watcher:
    """Keeps what it is told; fails where progress runs backwards or beyond its total."""

    def __init__(self):
        self.stages = []

    def stage(self, what, total=None):
        self.stages.append([what, total, 0])

    def advance(self, done, note=""):
        assert done > self.stages[-1][2]
        self.stages[-1][2] = done

    def measured(self, point):
        raise AssertionError("nothing is learnt here")


def train(**settings):
    watcher = Watcher()
    report = NgramTrainer(NgramTrainerConfig(**settings)).train(watcher)
    return report, watcher


def test_a_file_of_ids_becomes_what_lmplz_makes_of_it(tmp_path):
    report, watcher = train(ids=DATA / "tiny.txt", order=5, output=tmp_path / "new" / "tiny.arpa")
    assert report.written == (tmp_path / "new" / "tiny.arpa",)
    assert_same_entries(arpa_entries(report.written[0]), arpa_entries(DATA / "tiny.5.arpa"), atol=1e-6)
    facts = report.facts
    assert (facts["sentences"], facts["tokens"], facts["1-grams"], facts["5-grams"]) == (5, 34, 7, 27)
    assert facts["bytes"] == report.written[0].stat().st_size
    assert facts["discounts of order 3"] == "0.6000 1.2800 3.0000"
    assert facts["discounts of order 4"] == "0.5000 1.0000 1.5000 (fallback)"
    assert [[total, done] for _, total, done in watcher.stages[-2:]] == [[5, 5], [96, 96]]


def test_the_usage_makes_a_drafter(tmp_path):
    path = tmp_path / "a model, really.arpa"
    report, _ = train(ids=DATA / "small.txt", output=path)
    settings = YAML(typ="safe").load(report.usage)
    assert settings.pop("name") == "ngram"
    drafter = NgramDrafter(NgramConfig(**settings), load_model("builtin:target").info())
    assert drafter.tables.order == 3


@pytest.mark.parametrize("split", ["document", "line"])
def test_a_text_is_counted_with_the_targets_tokenizer(split, tmp_path):
    text = "import os\n\n\nfor name in os.listdir():\n    print(name)\n" * 3
    (tmp_path / "text.py").write_text(text)
    report, watcher = train(text=str(tmp_path / "text.py"), split=split, order=2, output=tmp_path / "m.arpa")
    tokenizer = load_model("builtin:target").tokenizer
    pieces = text.splitlines(keepends=True) if split == "line" else [text]
    documents = [np.array(tokenizer(piece)["input_ids"], np.int32) for piece in pieces]
    assert report.facts["sentences"] == len(pieces)
    assert watcher.stages[0] == ["tokenizing", len(pieces), len(pieces)]
    expected = fit(documents, V, 2)
    for found, level in zip(read_arpa(report.written[0], V).levels, expected.levels, strict=True):
        np.testing.assert_array_equal(found.words, level.words)
        np.testing.assert_array_equal(found.log_probability, level.log_probability)


def test_the_targets_own_samples(tmp_path, monkeypatch):
    asked = []

    def own_samples(target, count, seed, progress, prompts):
        asked.append((target.vocab_size, count, seed, prompts))
        return [[1, 2, 3, 4], [2, 3]]

    monkeypatch.setattr(trainer, "own_samples", own_samples)
    report, _ = train(samples=6, seed=3, order=2, output=tmp_path / "m.arpa")
    assert asked == [(V, 6, 3, [])]
    assert (report.facts["sentences"], report.facts["tokens"]) == (2, 6)
    with pytest.raises(SpecdecError, match="device 'nowhere' is not known"):
        train(samples=6, device="nowhere", output=tmp_path / "n.arpa")


def test_sources_go_with_an_encoder(tmp_path):
    tiny_model("t5").save_pretrained(tmp_path / "t5")
    settings = {"samples": 5, "output": tmp_path / "m.arpa"}
    with pytest.raises(ConfigError, match="has an encoder: give --sources, a JSONL file"):
        train(target=str(tmp_path / "t5"), **settings)
    with pytest.raises(ConfigError, match="has no encoder to read --sources"):
        train(sources=tmp_path / "sources.jsonl", **settings)
    assert not (tmp_path / "m.arpa").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b"1 2\n3 x4 5\n",
            r"ids:2: expected token ids in decimal; found 'x4'. Separate .* or give the file as --text",
        ),
        (b"1 2 3\n1 4096 2\n", "token id 4096 is in the text; the target's vocabulary has the ids 0 to 4095"),
    ],
)
def test_ids_that_cannot_be_counted(content, message, tmp_path):
    (tmp_path / "ids").write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        train(ids=tmp_path / "ids", output=tmp_path / "out" / "m.arpa")
    assert not (tmp_path / "out").exists()


def test_a_target_without_a_tokenizer_counts_ids_only(tmp_path):
    tiny_model("llama").save_pretrained(tmp_path / "model")
    settings = {"target": str(tmp_path / "model"), "output": tmp_path / "m.arpa", "order": 1}
    with pytest.raises(
        ConfigError, match=r"--text .* cannot be counted: the target .* has no tokenizer\. Give --ids"
    ):
        train(text="builtin:stdlib", **settings)
    (tmp_path / "ids").write_text("1 2 3\n")
    report, _ = train(ids=tmp_path / "ids", **settings)
    assert report.facts["1-grams"] == 6


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "give one of 'text' .*; got none"),
        ({"ids": "a", "sources": "b"}, "'sources' applies to 'samples', not to 'ids'"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ValidationError, match=message):
        NgramTrainerConfig(output="m.arpa", **settings)
