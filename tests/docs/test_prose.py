"""Pages, docstrings and messages keep to the rules of docs/prose.py."""

from __future__ import annotations

import pytest

from tests.docs.pages import ROOT, load

prose = load(ROOT / "docs" / "prose.py")

WRONG = {
    "It was normalised.": prose.SPELLING,
    "A dequantised copy.": prose.SPELLING,
    "The colours differ.": prose.SPELLING,
    "The modelling file.": prose.SPELLING,
    "Trees are refused.": prose.REFUSE,
    "A folder is no model.": prose.NO,
    "The law of the target.": prose.LAW,
    "Runs wait. What is timed is run\none at a time.": prose.WHAT,
    "```sh\na\n```\n\nshows each step.": prose.START,
    "```sh\na\n```\n\n<!-- end of include -->\n\nshows each step.": prose.START,
    "# `random`\n\nsamples tokens.": prose.START,
}
RIGHT = """# Title

specdec normalizes. It is no longer rejected, by Zipf's law and `normalised`. What is a token?

```text
It was refused: what.
```

Choose what fits. See [it](colour.md).

$$a = b$$

where a is b.
"""


@pytest.mark.parametrize(("text", "advice"), WRONG.items(), ids=WRONG.values())
def test_a_rule_finds_what_it_is_for(text, advice):
    (found,) = prose.in_page("page.md", text)
    assert found.advice == advice


def test_correct_text_passes():
    assert [str(one) for one in prose.in_page("page.md", RIGHT)] == []


def test_finds_have_the_line_where_they_are():
    text = "```sh\na\n\nb\n```\n\n<!-- a\nb -->\nThe colour."
    assert [str(one) for one in prose.in_page("a.md", text)] == ["a.md:9: 'colour': American spelling"]
    source = 'def f():\n    """One.\n\n    Is refused.\n    """\n    return "colour"\n'
    assert [(one.line, one.text) for one in prose.in_source("a.py", source)] == [(4, "refused")]


def test_pages_keep_to_the_rules():
    assert [str(one) for one in prose.pages()] == []


def test_sources_keep_to_the_rules():
    assert [str(one) for one in prose.sources()] == []


def test_messages_keep_to_the_rules():
    text = (ROOT / "tests/golden/messages.txt").read_text(encoding="utf-8")
    found = [one for one in prose.in_page("messages.txt", text) if one.advice not in (prose.START, prose.WHAT)]
    assert [str(one) for one in found] == []
