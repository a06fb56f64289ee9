"""What the page says of other libraries: its snippets run, and facts hold for the version that it names."""

from __future__ import annotations

import re
import runpy

import pytest
import torch
import transformers
from transformers import GenerationConfig
from typer.testing import CliRunner

from specdec_core.cli.main import app
from tests.docs.pages import ROOT, blocks
from tests.docs.test_commands import shell_lines

PAGE = ROOT / "docs" / "coming-from.md"
EXAMPLE = ROOT / "docs" / "examples" / "coming_from.py"


@pytest.fixture(scope="module")
def example():
    return runpy.run_path(str(EXAMPLE))


def test_the_page_quotes_every_part_of_the_example():
    parts = re.findall(r"--8<-- \[start:(\w+)\]", EXAMPLE.read_text(encoding="utf-8"))
    text = PAGE.read_text(encoding="utf-8")
    assert parts == ["assisted", "lookup"]
    assert all(f'--8<-- "docs/examples/coming_from.py:{part}"' in text for part in parts)
    assert '--8<-- "docs/examples/coming_from_proposer.py"' in text


@pytest.mark.parametrize("who", ["assisted", "lookup"])
def test_argmax_writes_what_the_librarys_assisted_generation_writes(example, who):
    target, prompts, length = (example[key] for key in ("target", "prompts", "length"))
    helper = {"assistant_model": example["drafter"].loaded.model}
    helper = helper if who == "assisted" else {"prompt_lookup_num_tokens": 10}
    rows = example[who].generate(prompts, length).rows
    for prompt, row in zip(prompts, rows, strict=True):
        ids = torch.tensor([target.tokenizer(prompt)["input_ids"]])
        settings = {"do_sample": False, "max_new_tokens": length.max_new_tokens}
        written = target.model.generate(ids, attention_mask=torch.ones_like(ids), **settings, **helper)
        assert row.tokens == tuple(written[0, ids.shape[1] :].tolist())


def test_the_proposer_that_became_a_drafter_drafts(capsys):
    metrics = runpy.run_path(str(ROOT / "docs" / "examples" / "coming_from_proposer.py"))["result"].metrics
    assert metrics.drafted > metrics.accepted >= 0
    assert metrics.tokens == 32
    assert capsys.readouterr().out.startswith("alpha 0.")


def test_the_commands_of_the_page_run():
    commands = [words for block in blocks("sh") if block.page == PAGE for words in shell_lines(block.text)]
    ours = [words for words in commands if words[0] == "specdec"]
    assert ours
    for words in ours:
        result = CliRunner().invoke(app, [*words[1:], "--max-new-tokens", "8"])
        assert (result.exit_code, bool(result.stdout.strip())) == (0, True), result.output


def test_what_is_said_of_transformers_holds_for_the_version_that_is_named():
    text = PAGE.read_text(encoding="utf-8")
    named = re.search(r"transformers (\d+\.\d+\.\d+) as installed", text)
    assert named
    if transformers.__version__ != named[1]:
        pytest.skip(f"the page was written for {named[1]}")
    defaults = GenerationConfig()._get_default_generation_params()
    assert "`num_assistant_tokens` (20)" in text
    assert defaults["num_assistant_tokens"] == 20
    assert defaults["num_assistant_tokens_schedule"] == "constant"
    assert "`assistant_confidence_threshold` (0.4)" in text
    assert defaults["assistant_confidence_threshold"] == 0.4
    assert "there top-k 50 is added" in text
    assert defaults["top_k"] == 50


def test_the_library_refuses_a_batch_in_the_words_of_the_page(example):
    target = example["target"]
    ids = torch.tensor([target.tokenizer("import os")["input_ids"]] * 2)
    with pytest.raises(ValueError, match="batch_size = 1") as caught:
        target.model.generate(ids, max_new_tokens=3, prompt_lookup_num_tokens=3)
    assert f"“{caught.value}”" in PAGE.read_text(encoding="utf-8")
