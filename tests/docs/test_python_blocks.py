"""Every piece of Python on the pages runs, the pieces of a page one after the other."""

from __future__ import annotations

import re

import pytest

from tests.docs.pages import ROOT, Block, blocks, name

_QUOTED = re.compile(r'--8<-- "(?P<path>[^":]+)(?::[\w-]+)?"')
PYTHON = blocks("python", "py", "pycon")

# Files that pages quote, and who runs them.
RUN_BY = {
    "docs/examples/coming_from.py": "docs/test_coming_from",
    "docs/examples/coming_from_proposer.py": "docs/test_coming_from",
    "docs/examples/first.py": "docs/test_examples",
    "docs/examples/kit_ways.py": "testing/test_kit_page",
    "docs/examples/parts.py": "docs/test_examples",
    "docs/examples/specdec-follow/specdec_follow.py": "docs/test_own_controllers",
    "docs/examples/specdec-follow/test_follow.py": "docs/test_own_controllers",
    "docs/examples/specdec-pairs/specdec_pairs.py": "docs/test_examples",
    "docs/examples/specdec-recent/specdec_recent.py": "docs/test_write_a_plugin",
    "docs/examples/specdec-recent/test_recent.py": "docs/test_write_a_plugin",
}


def quoted(block: Block) -> list[str]:
    """The files that a block shows instead of text of its own."""
    return [found["path"] for found in _QUOTED.finditer(block.text)]


OWN = [block for block in PYTHON if not quoted(block)]


def run_blocks(page: str, texts: list[str]) -> None:
    """Run the blocks of a page in one namespace."""
    namespace: dict[str, object] = {"__name__": "__main__"}
    for number, text in enumerate(texts, 1):
        exec(compile(text, f"{page}, block {number}", "exec"), namespace)  # what the page tells its readers to do


@pytest.mark.parametrize("page", sorted({name(block.page) for block in OWN}))
def test_the_python_of_a_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_blocks(page, [block.text for block in OWN if name(block.page) == page])


def test_a_block_that_does_not_run_is_noticed():
    with pytest.raises(NameError, match="DraftSession"):
        run_blocks("a page", ["import os", "class MySession(DraftSession): ..."])


def test_no_piece_of_python_is_overlooked():
    found = sum(
        len(re.findall(r"^\s*(?:```+|~~~+)\s*\{?\s*\.?(?:py|python|python3|pycon)\b", text, re.MULTILINE))
        for text in (path.read_text(encoding="utf-8") for path in {block.page for block in blocks_of_any_kind()})
    )
    assert found == len(PYTHON)


def blocks_of_any_kind() -> list[Block]:
    """Every block of every page."""
    return blocks("python", "py", "pycon", "sh", "bash", "console", "text", "yaml", "toml", "json")


def test_every_file_that_is_quoted_is_run_by_a_test():
    files = {path for block in PYTHON for path in quoted(block)}
    assert files == set(RUN_BY)
    for path, module in RUN_BY.items():
        # A test names the file, or the folder that it runs.
        text = (ROOT / "tests" / f"{module}.py").read_text(encoding="utf-8")
        assert {path.split("/")[2], path.split("/")[2].removesuffix(".py")} & set(re.findall(r"[\w.-]+", text)), (
            path
        )
