"""A study from Python: what is taken, what comes back, and what is shown."""

import json
import logging
import re
import sys
from html import unescape

import pytest
from ruamel.yaml import YAML
from transformers.utils import logging as hf_logging

from specdec_core.interface import ConfigError
from specdec_core.study import compare
from specdec_core.study.progress import NotebookProgress, quiet_libraries
from tests.study.toy_study import Recorder

STUDY = """\
target: {folder}
prompts: [a b c, d e]
generation: {{max_new_tokens: 8, ignore_eos: true}}
repeats: 2
runs:
  - {{drafter: echo, gamma: 2}}
  - {{name: broken, drafter: {{name: echo, breaks: true}}, gamma: 2}}
"""


@pytest.fixture(scope="module")
def shared():
    return {}


@pytest.fixture
def result(study, shared):
    """The result of the study, from one run for the module."""
    if not shared:
        shared["result"] = compare(study(), progress=False)
    return shared["result"]


def names(comparison):
    return [row.name for row in comparison.rows]


def test_a_path_and_a_mapping_give_the_rows_of_a_study(study, tmp_path, monkeypatch):
    path = study(None, "repeats=1").path
    path.write_text(path.read_text().replace("repeats: 2", "repeats: 1"))
    mapping = YAML(typ="safe").load(path)
    mapping["runs"] = tuple(mapping["runs"])
    monkeypatch.chdir(tmp_path)
    for given in (str(path), mapping):
        comparison = compare(given, progress=False)
        assert names(comparison) == ["baseline", "echo-2", "broken"]
    assert comparison.rows[1].tokens == 16


def test_what_is_no_study_is_a_type_error():
    with pytest.raises(TypeError, match="path of a YAML file"):
        compare(["quickstart.yaml"])


def test_problems_of_a_mapping_say_where(study):
    mapping = YAML(typ="safe").load(study().path)
    mapping["runs"][0]["drafter"] = "ecko"
    mapping["repeat"] = 2
    with pytest.raises(ConfigError) as caught:
        compare(mapping)
    assert caught.value.__suppress_context__, "a traceback would begin with that of pydantic"
    first, second = sorted(str(caught.value).splitlines())
    assert first.startswith("study: runs[0].drafter: unknown drafter 'ecko'. Did you mean 'echo'?")
    assert second.startswith("study: unknown key 'repeat'. Did you mean 'repeats'")


def test_results_are_written_and_the_report_is_named(study, tmp_path):
    output, whole = tmp_path / "out", study(STUDY.replace("true}}, gamma", "false}}, gamma"))
    comparison = compare(whole, str(output), progress=False)
    assert comparison.report == output / "report.html"
    assert all(path.is_file() for path in comparison.files)
    lines = [json.loads(line) for line in (output / "results.jsonl").read_text().splitlines()]
    assert json.loads(json.dumps(comparison.to_dicts())) == lines
    again = compare(whole, output, progress=(recorder := Recorder()))
    assert recorder.timed == []  # it resumed, and nothing was left to do
    assert again.to_dicts() == comparison.to_dicts()
    compare(whole, output, fresh=True, progress=(fresh := Recorder()))
    assert len(fresh.timed) == 6


def test_without_output_nothing_is_written(result):
    assert (result.report, result.files) == (None, ())


def test_a_result_prints_as_the_table(result):
    lines = str(result).splitlines()
    shown = [line.split()[0] for line in lines if re.match(r" (baseline|echo-2|broken) ", line)]
    assert shown[: len(result.rows)] == names(result)
    assert "\x1b" not in str(result)
    assert repr(result) == "<Comparison of study.yaml: 3 rows in 1 task>"


def test_failures_of_plugins_are_in_the_result(result):
    (failure,) = result.failures
    assert re.search(r"^broken failed: Echo at toy_parts.py:\d+: .*the echo broke", failure)
    assert failure in str(result)


def test_no_file_of_a_study_names_the_home_folder(tmp_path, monkeypatch):
    home = tmp_path / "home" / "somebody"
    home.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    absent = {"name": "gone", "drafter": {"name": "transformer", "model": "~/models/absent"}, "gamma": 2}
    given = {
        "target": "builtin:target",
        "prompts": ["a"],
        "generation": {"max_new_tokens": 1},
        "repeats": 1,
        "runs": [absent],
    }
    comparison = compare(given, output=tmp_path / "out", progress=False)
    assert any("~/models/absent" in line for line in comparison.failures)
    stored = {
        file.name: file.read_text(encoding="utf-8") for file in (tmp_path / "out").iterdir() if file.is_file()
    }
    assert "gone" in stored["results.jsonl"]
    assert [name for name, words in stored.items() if "somebody" in words] == []


def test_rows_as_a_data_frame(result):
    frame = result.to_pandas()
    assert list(frame["name"]) == names(result)
    assert frame["speedup"][0] == 1
    assert {"block_efficiency", "alpha", "tokens_per_second", "time_drafting"} <= set(frame.columns)


def test_without_pandas_the_error_says_so(result, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="pip install pandas"):
        result.to_pandas()


def test_progress_is_shown_on_standard_error_or_not_at_all(study, capsys):
    compare(study(None, "repeats=1"))
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "timing: done in" in shown.err
    compare(study(None, "repeats=1"), progress=False)
    assert capsys.readouterr() == ("", "")


def test_a_notebook_shows_the_report_in_a_frame(result):
    frame = result._repr_html_()
    assert re.fullmatch(r'<iframe srcdoc="[^"<>]+" style="[^"]+"></iframe>', frame)
    page = unescape(frame)
    assert page.count("<svg") > 5
    assert all(unescape(page).count(failure) == 1 for failure in result.failures)


class Display:
    """Stands for the display of a notebook."""

    def __init__(self):
        self.shown = []

    def __call__(self, what, display_id=False):
        assert display_id
        self.update(what)
        return self

    def update(self, what):
        self.shown.append(what._repr_html_())


def test_progress_in_a_notebook_is_one_line_that_disappears(study, monkeypatch):
    display = Display()
    monkeypatch.setattr("IPython.display.display", display)
    with NotebookProgress() as progress:
        compare(study(STUDY.replace("name: broken", "name: '<b>'"), "repeats=1"), progress=progress)
        bars = [re.search(r'<progress value="([\d.]+)" max="([\d.]+)">', shown) for shown in display.shown]
        assert [bar.groups() for bar in bars if bar][-1] == ("3", "3")
        assert any("echo-2, repeat 1" in shown for shown in display.shown)
        assert not any("<b>" in shown for shown in display.shown)
    assert display.shown[-1] == ""


def test_libraries_are_silent_only_while_a_study_runs():
    transformers_before, bitsandbytes = hf_logging.get_verbosity(), logging.getLogger("bitsandbytes")
    before = bitsandbytes.level
    with quiet_libraries():
        assert hf_logging.get_verbosity() == logging.ERROR
        assert bitsandbytes.level == logging.ERROR
    assert (hf_logging.get_verbosity(), bitsandbytes.level) == (transformers_before, before)
