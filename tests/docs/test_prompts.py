"""The prompt files on the page are read, the one that is wrong with the messages that the page shows."""

import pytest

from specdec_core import PromptError
from specdec_core.study.prompt_file import read_prompt_file
from tests.docs.pages import ROOT, blocks

PAGE = ROOT / "docs" / "prompts.md"
*GOOD, WRONG = [block for block in blocks("json") if block.page == PAGE]
(SAID,) = [block for block in blocks("text") if block.page == PAGE]


@pytest.fixture
def read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run(block):
        (tmp_path / "prompts.jsonl").write_text(block.text, encoding="utf-8")
        return read_prompt_file((tmp_path / "prompts.jsonl").relative_to(tmp_path))

    return run


@pytest.mark.parametrize("block", GOOD, ids=str)
def test_a_file_on_the_page_can_be_read(read, block):
    assert len(read(block)) == len(block.text.splitlines())


def test_what_is_said_of_a_file_that_is_wrong(read):
    with pytest.raises(PromptError) as caught:
        read(WRONG)
    assert str(caught.value) == SAID.text.rstrip("\n")
