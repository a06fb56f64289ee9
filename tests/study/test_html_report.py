"""The report of a study as a page: what it says, that it needs nothing else, and that nothing breaks it."""

import io
import re

import pytest
from rich.console import Console

from specdec_core.study.config.prompt_file import PromptText
from specdec_core.study.report import charts
from specdec_core.study.report.html_report import report_page
from specdec_core.study.report.tables import quality_table, results_table
from specdec_core.study.report.verdict import verdict
from tests.study.page_elements import Elements
from tests.study.summaries import BASE, QUALITY, UNMEASURED, baseline, output, run

PROMPTS = (
    PromptText("first", "Say it & be done.", None, ("Sag es.",), "a manual"),
    PromptText("second", None, ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"})),
)


def page(summaries, outputs=None, prompts=None):
    return report_page("study.yaml", summaries, outputs or {}, prompts or {})


@pytest.fixture
def whole():
    """A page with all that it may have."""
    outputs = {
        ("cold", "baseline"): [output("Sag es jetzt.")],
        ("cold", "best"): [output("Sag es jetzt.")],
        ("cold", "other"): [output("Sag es nie.", 6)],
        ("warm", "baseline"): [output("Say.")],
        ("warm", "best"): [output("Tell <script>alert(1)</script>", 6)],
    }
    departing = {**QUALITY, "exact": 0.5, "first_difference": (0, 2)}
    tested = {"chrf": {"value": 1.5, "low": -1.0, "high": 4.0, "p": 0.25}}
    failure = {"plugin": "Echo", "step": 3, "message": "RuntimeError: it broke", "where": "echo.py:7", "times": 2}
    broken = {**UNMEASURED, "quality": departing, "failures": (failure, failure)}
    summaries = [
        run_
        for task, temperature in (("cold", 0), ("warm", 1))
        for run_ in (
            baseline(temperature, task=task),
            run("best", temperature, task=task, quality={**QUALITY, "differences": tested if temperature else {}}),
            run("other", temperature, task=task, **broken),
            run("gone", temperature, task=task, **UNMEASURED, error="no such model: <here>"),
        )
    ]
    return summaries, page(summaries, outputs, {"cold": PROMPTS, "warm": PROMPTS})


def test_the_page_is_well_formed_and_can_be_read_without_seeing_it(whole):
    elements = Elements(whole[1])
    ids = [attributes["id"] for _, attributes, _ in elements.all if "id" in attributes]
    assert len(set(ids)) == len(ids)
    labeled = [
        attributes["aria-labelledby"] for _, attributes, _ in elements.all if "aria-labelledby" in attributes
    ]
    assert set(labeled) <= set(ids)
    assert len(elements.of("caption")) == len(elements.of("table")) == 6
    assert {attributes.get("scope") for attributes in elements.of("th")} == {"row", "col"}
    pictures = [(one, around) for tag, one, around in elements.all if tag == "svg" and "svg" not in around]
    hidden = [one for one, _ in pictures if one.get("role") != "img"]
    assert len(pictures) > len(hidden) > 0
    assert all(one["aria-label"] for one, _ in pictures if one.get("role") == "img")
    for tag, one, around in elements.all:
        if tag == "svg" and "svg" not in around and one.get("role") != "img":
            assert one.get("aria-hidden") == "true" or around[-1] == "div"
    assert {attributes["lang"] for attributes in elements.of("html")} == {"en"}


def test_nothing_is_requested_and_nothing_runs(whole):
    elements = Elements(whole[1])
    assert elements.of("script", "iframe", "img", "object") == []
    assert not any(key == "src" or key.startswith("on") for _, one, _ in elements.all for key in one)
    links = {one[key] for _, one, _ in elements.all for key in ("href", "xlink:href") if key in one}
    assert links == {"#task-1", "#task-2", "data:,"}
    assert not re.search(r"url\(|@import|https?:", whole[1])
    (policy,) = [one["content"] for one in elements.of("meta") if one.get("http-equiv")]
    assert policy.startswith("default-src 'none'")


def test_the_same_results_give_the_same_page(whole):
    summaries, text = whole
    again = page(list(summaries), {}, {"cold": PROMPTS, "warm": PROMPTS})
    assert again == page(summaries, {}, {"warm": PROMPTS, "cold": PROMPTS})
    assert again != text, "the outputs are in it"


def test_tables_are_those_of_the_terminal(whole):
    summaries, text = whole
    texts = Elements(text).texts
    for table in (results_table(summaries[:4]), quality_table(summaries[4:])):
        assert {cell for row in table.rows for cell in row.cells if cell} <= set(texts)
        console = Console(file=io.StringIO(), width=1000)
        console.print(table)
        shown = console.file.getvalue()
        lines = [" ".join(line.split()) for line in shown.splitlines()]
        for row in table.rows:
            assert " ".join(" ".join(row.cells).split()) in lines
        assert all(note in shown for note in table.all_notes())
        assert set(table.all_notes()) <= set(texts)
    headings = ("acceptance rate", "block efficiency", "expected here", "Theorem 3.8", "best γ")
    for heading in (*headings, "chrF against baseline"):
        assert heading in texts


def test_all_that_went_wrong_is_there(whole):
    summaries, text = whole
    texts = Elements(text).texts
    for runs in (summaries[:4], summaries[4:]):
        found = verdict(runs)
        assert {*found.errors, *found.failures, *found.departures, *found.warnings} <= set(texts)
    assert BASE["diagnosis"] in texts


def test_texts_are_shown_and_what_departs_is_marked(whole):
    texts = Elements(whole[1]).texts
    start = texts.index("Prompt first (a manual)")
    shown = ["Prompt", "Say it & be done.", "Reference", "Sag es.", "baseline", "Sag es jetzt."]
    shown += ["best: same as baseline", "other", "Sag es", "nie."]
    assert texts[start + 1 : start + 1 + len(shown)] == shown
    start = texts.index("Prompt second")
    assert texts[start + 1 : start + 5] == ["Prompt, system", "Be brief.", "Prompt, user", "Why?"]
    assert "Tell <script>alert(1)</script>" in texts, "sampled texts differ anyway: nothing is marked"
    assert whole[1].count("<mark>") == 1


def test_texts_are_cut_and_only_the_first_prompts_are_shown():
    prompts = [PromptText(f"number {number}", "x" * 700) for number in range(7)]
    text = page([baseline()], {(None, "baseline"): [output(None)]}, {None: prompts})
    assert "x" * 600 + " … (100 more characters)" in text
    assert "x" * 601 not in text
    assert "number 4" in text
    assert "number 5" not in text
    assert "tokens 4, 5" in text, "without a tokenizer there are no texts"


def test_what_was_not_measured_is_left_out():
    bare = page([baseline(**UNMEASURED), run("gone", **UNMEASURED, error="it broke")])
    positions = "Acceptance rate by position, if the tokens before it were accepted"
    for heading in ("Speed-up", "Where the time went", positions, "Quality"):
        assert f"<h3>{heading}</h3>" not in bare
    assert "None" not in bare
    Elements(page([]))
    few = {"alpha_by_position": (0.5,), "verified_by_position": (3,), "speedup_by_gamma": (1.0,), "gamma_best": 0}
    once = run("once", repeats=1, **few)
    text = page([baseline(repeats=1), once, run("adaptive", gamma="confidence", quality=None, time_shares=None)])
    assert "None" not in text
    Elements(text)


def test_bars_end_where_the_numbers_are():
    runs = [baseline(), run("a"), run("gone", **UNMEASURED, error="x")]
    assert charts.speed_scale(runs) == pytest.approx(1.04 * 1.8)
    assert charts.speed_scale(runs[::2]) is None
    assert [*charts.ticks(1.04 * 1.8)] == [0, 0.5, 1, 1.5]
    shares = {**BASE["time_shares"], "framework": -0.001}
    scale = charts.time_scale([baseline()])
    plain, fast = (charts.segments(one, scale) for one in (baseline(), run("a", speedup=2.0, time_shares=shares)))
    assert sum(one.width for one in plain) == pytest.approx(100 / scale)
    assert sum(one.width for one in fast) == pytest.approx(50 / scale)
    assert fast[3].width == 0.0
    assert [one.part for one in plain] == [*BASE["time_shares"]]
    assert [one.share for one in plain if one.width >= charts.LABELED] == ["50%", "20%", "15%"]
