"""Figures of the site, and Table 1."""

import re
from collections import Counter
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from tests.docs.pages import ROOT, load

timeline = load(ROOT / "docs" / "timeline.py")


@pytest.mark.parametrize(
    ("file", "texts"),
    [
        ("figure-2.svg", {"γ = 10", "tokens per step"}),
        ("figure-3.svg", {"c = 0.05", "The optimal γ"}),
        ("figure-4.svg", {"operations", "speed"}),
        ("figure-5.svg", {"encoder of both", "milliseconds"}),
    ],
)
def test_a_figure_shows_its_labels(file, texts):
    # That it is what its script draws is tested with the generated parts of the pages.
    drawn = (ROOT / "docs" / "assets" / "figures" / file).read_text(encoding="utf-8")
    assert ElementTree.fromstring(drawn).tag.endswith("svg")
    assert texts <= set(re.findall(r"<!-- (.*?) -->", drawn))  # matplotlib repeats each text in a comment


def check_recording(row, gamma):
    count = Counter(call.who for call in row.calls)
    assert (row.gamma, count["target"], count["encoder"]) == (gamma, row.steps, 1)
    assert (row.steps == row.tokens) == (gamma == 0)
    assert count["drafter"] <= gamma * row.steps
    # One model runs at a time, and all of them within the decoding.
    assert all(one.begin + one.seconds <= other.begin + 2e-6 for one, other in pairwise(row.calls))
    assert row.calls[-1].begin + row.calls[-1].seconds <= row.seconds


def test_the_timeline_of_the_site_is_of_three_decodings_of_one_text():
    rows = timeline.read()
    for row, gamma in zip(rows, (7, 3, 0), strict=True):
        check_recording(row, gamma)
    assert len({(row.text, row.tokens) for row in rows}) == 1


def test_a_timeline_is_recorded_written_and_read(tmp_path):
    rows = timeline.record("translate English to German: The file is new.", gammas=(2, 0), rounds=1)
    for row, gamma in zip(rows, (2, 0), strict=True):
        check_recording(row, gamma)
    timeline.write(rows, tmp_path / "timeline.json")
    again = timeline.read(tmp_path / "timeline.json")
    assert [(row.text, len(row.calls)) for row in again] == [(row.text, len(row.calls)) for row in rows]
