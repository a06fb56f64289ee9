"""How a trace spells tokens, and what it shows of a target that reads a source."""

import io
import re

import pytest
import torch
from rich.console import Console

from specdec_core.cli.generate import TraceView
from specdec_core.interface import Outcome, StepReport
from specdec_core.trace.figure import speller
from tests.commands import run_command

WORDS = ("<pad>", "</s>", "<unk>", "▁das", "▁Haus", "es", "▁", "!")


@pytest.fixture(scope="module")
def tokenizer():
    """One that is made as T5's: the space before a word belongs to its first token."""
    from tokenizers import Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import Unigram
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(Unigram([(word, -1.0) for word in WORDS], unk_id=2))
    inner.pre_tokenizer = pre_tokenizers.Metaspace()
    inner.decoder = decoders.Metaspace()
    special = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=inner, **special)


def test_words_keep_the_space_before_them(tokenizer):
    ids = tokenizer("das Hauses!")["input_ids"]
    assert "".join(map(speller(tokenizer), ids)) == " das Hauses!"
    assert speller(tokenizer)(WORDS.index("</s>")) == "</s>"
    assert speller(tokenizer)(WORDS.index("▁")) == " "


def test_a_trace_shows_the_answer_and_neither_source_nor_start(tokenizer, tmp_path):
    from tests.tiny import tiny_model

    model = tiny_model("t5", len(WORDS), seed=1)
    model.generation_config.decoder_start_token_id = model.config.decoder_start_token_id = 7
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    options = ["--model", str(tmp_path), "--temperature", "0", "--max-new-tokens", "6", "--drafter", "random"]
    result = run_command("generate", "das Haus", *options, "--trace")
    assert result.exit_code == 0, result.output
    steps = result.stdout.partition("\n\n")[0]
    kept = [text for mark, text in re.findall(r"\[([-+!*])(.*?)\]", steps) if mark != "-"]
    ids = torch.tensor([tokenizer("das Haus")["input_ids"]])
    answer = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=6, do_sample=False)[0, 1:]
    spell = speller(tokenizer)
    assert [text.strip() for text in kept] == [spell(int(token)).strip() for token in answer]


def test_a_tree_shows_its_path_and_all_tokens_that_were_rejected_where_it_ends():
    out = io.StringIO()
    view = TraceView(Console(file=out, width=80, color_system=None), speller(None))
    tree = {"drafted": (5,), "finished": (False,), "parents": ((-1, -1, 1, 1, 2),)}
    draft = {"draft_tokens": ((7, 8, 5, 6, 4),), "asked": (5,), "deviation": (0.0,)}
    times = {"draft_seconds": 0.0, "verify_seconds": 0.0, "step_seconds": 0.0}
    for step, (path, committed) in enumerate([((1,), (8, 2)), ((1, 2, 4), (8, 5, 4, 9)), ((), (3,))]):
        outcome = Outcome(**tree, accepted=(len(path),), paths=(path,), committed=(committed,))
        view.step(StepReport(step=step, outcome=outcome, **draft, **times))
    assert [line.split(maxsplit=1)[1] for line in out.getvalue().splitlines()] == [
        "1/3 of 5  [+ 8][- 5][- 6][! 2]",
        "3/3 of 5  [+ 8][+ 5][+ 4][* 9]",
        "0/3 of 5  [- 7][- 8][! 3]",
    ]
