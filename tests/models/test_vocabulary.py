"""Vocabularies of local models are compared when a study is read."""

from __future__ import annotations

import json

import pytest
from tokenizers import Tokenizer, models

from specdec_core.interface import ConfigError
from specdec_core.models.load.vocabulary import local_vocabulary
from specdec_core.study import load_study


@pytest.fixture
def model(tmp_path):
    """Writes what is read of a model before it is loaded."""

    def write(name, tokens):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
        vocabulary = {token: number for number, token in enumerate(tokens)}
        Tokenizer(models.WordLevel(vocabulary, unk_token=tokens[0])).save(str(folder / "tokenizer.json"))
        return str(folder)

    return write


def read(target, drafter):
    return load_study({"target": target, "prompts": {"texts": ["a"]}, "runs": [{"drafter": drafter, "gamma": 2}]})


def test_a_study_names_the_tokens_that_differ(model):
    target, drafter = model("target", ["a", "b", "c"]), model("drafter", ["a", "c", "b"])
    with pytest.raises(ConfigError, match=r"2 differ. The first: id 1: target 'b', drafter 'c'.*'translated'"):
        read(target, {"name": "transformer", "model": drafter})
    read(target, {"name": "transformer", "model": model("drafter", ["a", "b", "c", "of the drafter"])})


def test_a_hierarchy_is_looked_into(model):
    target, drafter = model("target", ["a", "b"]), model("drafter", ["b", "a"])
    inner = {"name": "transformer", "model": drafter}
    with pytest.raises(ConfigError, match="id 0: target 'a', drafter 'b'"):
        read(target, {"name": "hierarchical", "model": model("middle", ["a", "b"]), "drafter": inner, "gamma": 2})


def test_a_drafter_that_is_translated_may_have_other_tokens(model):
    inner = {"name": "transformer", "model": model("drafter", ["b", "a"])}
    read(model("target", ["a", "b"]), {"name": "translated", "drafter": inner})


def test_a_file_that_changes_is_read_again(model):
    folder = model("target", ["a"])
    assert local_vocabulary(folder) == {0: "a"}
    model("target", ["a", "b"])
    assert local_vocabulary(folder) == {0: "a", 1: "b"}
    assert local_vocabulary("owner/name") is None
