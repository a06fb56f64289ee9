"""How a trace spells tokens, and what it shows of a target that reads a source."""

import re

import pytest
import torch
from typer.testing import CliRunner

from specdec_core.cli.main import app
from specdec_core.cli.trace import speller

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
    assert speller(tokenizer)(WORDS.index("</s>")) == ""
    assert speller(tokenizer)(WORDS.index("▁")) == " "


def test_without_a_tokenizer_there_are_numbers():
    assert speller(None)(7) == " 7"


def test_a_trace_shows_the_answer_and_neither_source_nor_start(tokenizer, tmp_path):
    from tests.tiny import tiny_model

    model = tiny_model("t5", len(WORDS), seed=1)
    model.generation_config.decoder_start_token_id = model.config.decoder_start_token_id = 7
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    options = ["--model", str(tmp_path), "--temperature", "0", "--max-new-tokens", "6", "--drafter", "random"]
    result = CliRunner().invoke(app, ["generate", "das Haus", *options, "--trace"])
    assert result.exit_code == 0, result.output
    steps = result.stdout.partition("\n\n")[0]
    kept = [text for mark, text in re.findall(r"\[([-+!*])(.*?)\]", steps) if mark != "-"]
    ids = torch.tensor([tokenizer("das Haus")["input_ids"]])
    answer = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=6, do_sample=False)[0, 1:]
    spell = speller(tokenizer)
    assert [text.strip() for text in kept] == [spell(int(token)).strip() for token in answer]
