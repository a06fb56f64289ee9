"""Users' mistakes with drafters and their training: a message that helps, exit code 2, no file left."""

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from specdec_core.study.progress import TerminalProgress
from tests.commands import run_command

SHORT = ("--steps", "4", "--held-out", "16", "--batch-tokens", "64", "--length", "16", "--samples", "32")
SMALL = ("transformer", "--layers", "1", "--width", "16", "--heads", "1", *SHORT)


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


@pytest.fixture
def specdec(here):
    """Runs a command that must fail; returns what it said, and holds that it left no file behind."""

    def run(*arguments):
        before = files(here)
        result = run_command(*arguments)
        assert result.exit_code == 2, result.output
        assert "In a study" not in result.stdout
        assert files(here) == before
        return " ".join(result.output.split())

    return run


@pytest.fixture
def compare(here, specdec):
    """Runs a study of one drafter, which must fail; returns what was said."""

    def run(drafter, target="builtin:target"):
        study = "target: {}\nprompts: [import os]\ngeneration: {{max_new_tokens: 1}}\nrepeats: 1\nruns:\n"
        (here / "study.yaml").write_text(
            f"{study.format(target)}  - drafter: {drafter}\n    gamma: 1\n", encoding="utf-8"
        )
        return specdec("compare", "study.yaml")

    return run


def files(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def stranger(here):
    """A model of as many tokens as the target's, numbered otherwise."""
    names = {f"w{number}": number for number in range(4096)}
    tokenizer = Tokenizer(models.WordLevel(names, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="w0").save_pretrained(here / "stranger")
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    LlamaForCausalLM(LlamaConfig(vocab_size=4096, **sizes)).save_pretrained(here / "stranger")
    return "stranger"


@pytest.mark.parametrize("drafter", ["name: transformer", "name: hierarchical, drafter: random, gamma: 1"])
def test_a_drafter_with_another_tokenizer(compare, stranger, drafter):
    said = compare(f"{{{drafter}, model: {stranger}}}")
    assert "the vocabulary of stranger has 4096 entries, the target's 4096" in said
    assert "choose a draft model of the target's family" in said


def test_heads_of_another_target(compare):
    said = compare("{name: heads, model: 'builtin:heads'}", target="builtin:drafter")
    assert "was trained for another target, builtin:target (fingerprint " in said
    assert "`specdec train heads --target TARGET" in said


@pytest.mark.parametrize(
    "what", [("ngram",), ("transformer", "--layers", "1", "--width", "16", "--heads", "1"), ("heads",)], ids=str
)
def test_training_on_an_empty_file(here, specdec, what):
    (here / "empty.txt").write_text(" \n", encoding="utf-8")
    said = specdec("train", *what, "--text", "empty.txt", "-o", "o")
    assert "the text empty.txt is empty; give a non-empty text." in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("ngram", "--ordr", "3"), "No such option: --ordr"),
        ((*SMALL, "--minutes", "1"), "give --steps or --minutes, not both; got 4 and 1"),
        (
            (*SMALL, "--resume"),
            "o.training has no checkpoint to resume from; check --output, or start without --resume",
        ),
        (("ngram",), "give one of --text (a text to count), --ids (a file of token ids) and --samples"),
        (("transformer",), "give training data: --samples"),
    ],
    ids=["option", "both", "resume", "no text", "nothing to train on"],
)
def test_commands_that_cannot_be(specdec, arguments, said):
    assert said in specdec("train", *arguments, "--output", "o")


@pytest.mark.slow
@pytest.mark.parametrize(
    "what", [SMALL, pytest.param(("heads", *SHORT), marks=pytest.mark.slow)], ids=lambda what: what[0]
)
def test_a_checkpoint_that_was_cut_short(here, specdec, monkeypatch, what):
    stage = TerminalProgress.stage

    def stop_before_the_result(self, what, total=None):
        if what.startswith("writing"):
            raise KeyboardInterrupt
        stage(self, what, total)

    with monkeypatch.context() as patched:
        patched.setattr(TerminalProgress, "stage", stop_before_the_result)
        stopped = run_command("train", *what, "-o", "o")
    assert stopped.exit_code == 130, stopped.output
    assert not (here / "o").exists()
    for name in ("checkpoint.safetensors", "rows.safetensors"):
        file = here / "o.training" / name
        whole = file.read_bytes()
        file.write_bytes(whole[: len(whole) // 2])
        said = specdec("train", *what, "-o", "o", "--resume")
        assert name in said
        assert "--overwrite" in said
        file.write_bytes(whole)
    assert "holds an unfinished training run; --resume continues it" in specdec("train", *what, "-o", "o")
    finished = run_command("train", *what, "-o", "o", "--resume")
    assert finished.exit_code == 0, finished.output
    assert (here / "o").exists()
    assert not (here / "o.training").exists()
