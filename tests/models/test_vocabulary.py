"""Vocabularies of local models are compared when a study is read."""

import json

import pytest
from tokenizers import Tokenizer, models

from specdec_core.interface import ConfigError
from specdec_core.interface.errors import ModelError
from specdec_core.models.load.vocabulary import Vocabulary, local_vocabulary, vocabulary_difference
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


def vocabulary(*tokens, added=()):
    return Vocabulary(dict(enumerate(tokens)), frozenset(added))


TARGET = vocabulary("a", "b", "<s>", added=[2])


@pytest.mark.parametrize(
    ("draft", "said"),
    [
        (vocabulary("a", "b", "<tool>", added=[2]), "1 differ. The first: id 2: target '<s>', drafter '<tool>'"),
        (vocabulary("a", "b", "c"), "1 differ. The first: id 2: target '<s>', drafter 'c'"),
        (vocabulary("a", "b"), "1 differ. The first: id 2: target '<s>', drafter nothing"),
        (
            vocabulary("a", "b", "<s>", "c", "d", added=[2]),
            "2 differ. The first: id 3: target nothing",
        ),
    ],
)
def test_added_and_missing_tokens_may_differ(draft, said):
    assert said in vocabulary_difference("transformer", "m", TARGET, draft)


@pytest.mark.parametrize(
    ("draft", "said"),
    [
        (vocabulary("a", "c", "<t>", added=[2]), "1 differ. The first: id 1: target 'b', drafter 'c'"),
        (vocabulary("a", "b", "<s>", *map(str, range(1001)), added=[2]), "1001 differ"),
    ],
)
def test_ordinary_tokens_and_most_others_may_not(draft, said):
    with pytest.raises(ModelError, match=said):
        vocabulary_difference("transformer", "m", TARGET, draft)


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
    assert local_vocabulary(folder).tokens == {0: "a"}
    model("target", ["a", "b"])
    assert local_vocabulary(folder).tokens == {0: "a", 1: "b"}
    assert local_vocabulary("owner/name") is None
