"""The trace that a study keeps of each run, and its figure in the report."""

import json
import re
from collections import Counter

import pytest

from specdec_core.study import compare
from specdec_core.study.report.result_files import first_outputs, first_traces
from specdec_core.study.run import factory
from specdec_core.study.run.runner import run_study
from specdec_core.trace.figure import script, script_source
from tests.pairwise import some
from tests.study.page_elements import Elements
from tests.study.toy_study import STUDY, Recorder
from tests.toys import Gamma

KEPT = ("accepted", "recovered", "bonus")


def text_of(trace):
    return "".join(item["text"] for step in trace["steps"] for item in step["items"] if item["fate"] in KEPT)


@pytest.mark.parametrize("settings", some([[], ["timing=false"], ["batch_size=2", "sampling.temperature=0"]], 1))
def test_a_run_that_drafts_has_the_trace_of_its_first_output(result_of, settings):
    result = result_of(STUDY, *settings)
    traces, outputs = first_traces(result), first_outputs(result)
    assert sorted(traces) == [(None, "echo-2"), (None, "lenient")]
    for key, trace in traces.items():
        written = outputs[key][trace["prompt"]].text
        assert trace["tokens"] == 12
        assert re.sub("[ ?]", "", text_of(trace)) == written.replace(" ", "")
        assert any("q" in item for step in trace["steps"] for item in step["items"])
        timed = {name for step in trace["steps"] for name in step} - {"items"}
        assert bool(timed) == ("timing=false" not in settings)


def test_the_trace_is_in_no_other_figure(result_of):
    result = result_of(STUDY)
    for (_, run, number), repeat in result.repeats.items():
        assert repeat.metrics.tokens == sum(len(one.tokens) for one in repeat.outputs)
        assert (repeat.trace is not None) == (number == 1 and run != "baseline")
    calls = [repeat.metrics.target_calls for (_, run, _), repeat in result.repeats.items() if run == "echo-2"]
    assert len(set(calls)) == 1


def test_beam_search_has_none(study):
    beams = STUDY.replace(", lenience: 0.5", "")
    searched = study(beams, "generation.beams=2", "generation.ignore_eos=false", "sampling.temperature=0")
    assert first_traces(run_study(searched, Recorder())) == {}


def test_what_cannot_be_traced_is_said_and_costs_nothing(study, monkeypatch):
    from specdec_core.interface import ModelError
    from specdec_core.study.run import prepared

    def fails(**_):
        raise ModelError("out of memory")

    monkeypatch.setattr(prepared, "TraceObserver", fails)
    result = run_study(study(STUDY, "repeats=1"), Recorder())
    assert (result.failed, first_traces(result)) == ({}, {})
    assert result.repeats[None, "echo-2", 1].notes == ("the report has no trace: out of memory",)


def test_it_is_kept_with_the_results_and_shown_in_the_report(study, tmp_path):
    first = compare(study(STUDY, "repeats=1"), tmp_path / "out", progress=False)
    page = first.report.read_text(encoding="utf-8")
    lines = [json.loads(line) for line in (tmp_path / "out" / "repeats.jsonl").read_text().splitlines()]
    assert [line["run"] for line in lines if "trace" in line] != []
    compare(study(STUDY, "repeats=1"), tmp_path / "out", progress=False)  # resumes
    assert first.report.read_text(encoding="utf-8") == page

    elements = Elements(page)
    figures = [one for one in elements.of("figure") if one.get("class") == "specdec-trace"]
    assert len(figures) == 2
    (policy,) = [one["content"] for one in elements.of("meta") if one.get("http-equiv")]
    assert policy == f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src {script_source()}"
    assert page.count("<script") == 1
    assert f"<script>{script()}</script>" in page
    ids = {one["id"] for _, one, _ in elements.all if "id" in one}
    links = {one["href"].removeprefix("#") for one in elements.of("a") if "#trace-" in one["href"]}
    assert links == {"trace-1-1", "trace-1-2"}
    assert links <= ids


def test_controllers_do_not_learn_from_it(study, monkeypatch):
    opened = []

    class Counted(Gamma):
        def open(self, batch):
            opened.append(self)
            return super().open(batch)

    make = factory.make_controller
    monkeypatch.setattr(factory, "make_controller", lambda *how: Counted(2) if how[0] == "gamma" else make(*how))
    run_study(study(STUDY, "repeats=1"), Recorder())
    assert sorted(Counter(opened).values()) == [1, 1, 1 + 3, 1 + 3], "of two runs: to warm up, and for each prompt"
