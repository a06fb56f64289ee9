"""What the site draws while it is built: figures, Table 1 and traces in colour."""

from __future__ import annotations

import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from specdec_core.theory import paper
from tests.docs.pages import PAGES, ROOT, load, name

hooks = load(ROOT / "docs" / "hooks.py")
timeline = hooks.timeline
_IMAGE = re.compile(r"!\[(?P<words>[^\]]*)\]\((?P<to>[^)\s]+)\)")
IMAGES = [
    (page, found["words"], found["to"])
    for page in PAGES
    for found in _IMAGE.finditer(page.read_text(encoding="utf-8"))
]


def test_every_image_of_a_page_is_there_or_drawn_and_is_told_in_words():
    drawn = {f"{hooks.FOLDER}/{file}" for file in hooks.drawings()}
    assert {to for _, _, to in IMAGES if to.startswith(hooks.FOLDER)} == drawn, "what is drawn is shown"
    for page, words, to in IMAGES:
        assert to in drawn or (page.parent / to).is_file(), f"{name(page)} shows {to}"
        assert len(words) > 20, f"{name(page)}: {to} says nothing to who cannot see it"


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("figure-2.svg", ["γ = 10", "tokens a step"]),
        ("figure-3.svg", ["c = 0.05", "The optimal γ"]),
        ("figure-4.svg", ["operations", "speed"]),
        ("figure-5.svg", ["encoder of the drafter", "milliseconds"]),
    ],
)
def test_a_drawing_is_one(file, said, tmp_path):
    pytest.importorskip("matplotlib")
    hooks.drawings()[file](tmp_path / file)
    text = (tmp_path / file).read_text(encoding="utf-8")
    assert ElementTree.fromstring(text).tag.endswith("svg")
    # matplotlib writes every piece of text it draws into a comment.
    assert set(said) <= set(re.findall(r"<!-- (.*?) -->", text))


def test_table_1_has_the_papers_numbers_and_those_of_the_formulas():
    head, rule, *rows = hooks.table(1).splitlines()
    assert head.startswith(r"| $\alpha$ | $\gamma$ | operations | Theorem 3.11 | speed |")
    assert rule == "|" + "--:|" * 6
    assert "| 0.8 | 5 | 1.63 | 1.6263 | 3.69 | 3.6893 |" in rows
    assert len([row for row in rows if row.startswith("|")]) == len(paper.TABLE_1) + 1
    page = hooks.on_page_markdown("before\n\n<!-- table: 1 -->\n\nafter", None, None, None)
    assert hooks.table(1) in page
    assert page.startswith("before")
    assert page.endswith("after")
    assert any("<!-- table: 1 -->" in page.read_text(encoding="utf-8") for page in PAGES)


TRACE = """<pre><code>   1  2/4  [+ a[0]][+]][-&lt;b&gt;][! c]
   2  0/4  [-[][!]]

[+accepted] drafted, and kept
[*bonus] drawn by the target after a draft that was kept whole
</code></pre>"""


def test_tokens_of_a_trace_stand_in_the_colour_of_their_fate():
    page = hooks.coloured(TRACE)
    spans = re.findall(r'<span class="trace-(\w+)">(.*?)</span>', page)
    assert spans == [
        ("accepted", " a[0]"),
        ("accepted", "]"),
        ("rejected", "&lt;b&gt;"),
        ("recovered", " c"),
        ("rejected", "["),
        ("recovered", "]"),
        ("accepted", "accepted"),
        ("bonus", "bonus"),
    ]
    assert "</span> drafted, and kept" in page
    # The style sheet knows each of them, by day and by night.
    style = (ROOT / "docs" / "assets" / "extra.css").read_text(encoding="utf-8")
    assert all(style.count(f".trace-{fate} ") == 2 for fate in ("accepted", "rejected", "recovered", "bonus"))


def test_what_is_no_trace_stays_as_it_is():
    code = "<pre><code>numbers = [-1]; [+x]\n</code></pre>"
    assert hooks.coloured(code) == code


def check_row(row, gamma):
    count = {who: sum(call.who == who for call in row.calls) for who in timeline._LOOKS}
    assert row.gamma == gamma
    assert count["target"] == row.steps
    assert count["target's encoder"] == 1
    assert count["drafter's encoder"] == (gamma > 0)
    assert (row.steps == row.tokens) == (gamma == 0)
    assert count["drafter"] <= gamma * row.steps
    assert (count["drafter"] > row.steps) == (gamma > 1)
    # One model runs at a time, and all of them within the decoding.
    assert all(one.begin + one.seconds <= other.begin + 2e-6 for one, other in pairwise(row.calls))
    assert row.calls[0].begin >= 0
    assert row.calls[-1].begin + row.calls[-1].seconds <= row.seconds


def test_the_timeline_of_the_site_is_of_three_decodings_of_one_text():
    rows = timeline.read()
    for row, gamma in zip(rows, (7, 3, 0), strict=True):
        check_row(row, gamma)
    assert len({(row.text, row.tokens) for row in rows}) == 1
    # The page shows the trace of the first row.
    page = (ROOT / "docs" / "how-a-step-works.md").read_text(encoding="utf-8")
    assert f'specdec generate "{timeline.PROMPT}" --model {timeline.TARGET}' in page
    assert f"{rows[0].tokens} tokens with {rows[0].steps} target calls" in page


def test_a_timeline_is_recorded_written_and_read(tmp_path):
    rows = timeline.record("translate English to German: The file is new.", gammas=(2, 0), rounds=1)
    for row, gamma in zip(rows, (2, 0), strict=True):
        check_row(row, gamma)
    timeline.write(rows, tmp_path / "timeline.json")
    again = timeline.read(tmp_path / "timeline.json")
    assert [(row.text, len(row.calls)) for row in again] == [(row.text, len(row.calls)) for row in rows]
    assert again[0].seconds == pytest.approx(rows[0].seconds, abs=1e-6)
