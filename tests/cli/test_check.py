"""`specdec check`."""

from __future__ import annotations

import re

import pytest
from typer.testing import CliRunner

from specdec_core.cli.main import app

DEFECTIVE = """
    from specdec_core import DeterministicDrafter, DrafterConfig, PluginSpec, hookimpl

    class Greedy(DeterministicDrafter):
        def draft(self, tokens, budget):
            return [2] * (budget + 1)

    @hookimpl
    def specdec_drafters():
        return [PluginSpec("drafter", "greedy", "toy_greedy:Greedy", DrafterConfig)]
"""


@pytest.fixture(autouse=True)
def _few_plugins(monkeypatch):
    # Each run would import plugins of pytest again that have nothing to do with it.
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:hypothesispytest -p no:pytest_cov -p no:timeout")


def check(*arguments):
    return CliRunner().invoke(app, ["check", *arguments])


def only(*names):
    return [part for name in names for part in ("--only", name)]


def test_it_shows_a_table_of_checks():
    done = check("drafter:random", *only("zero-budget", "rows-independent"))
    assert done.exit_code == 0, done.output
    assert re.search(
        r"^zero-budget +passed +[0-9.]+ +A budget of 0 gives an empty draft", done.output, re.MULTILINE
    )
    assert "do not depend on other rows." in done.output
    assert "2 passed in" in done.output


def test_pytest_selects_and_takes_its_own_options():
    done = check("drafter:random", "-k", "ids-in-range or zero-budget", "--quick", "--", "--durations=1", "-x")
    assert done.exit_code == 0, done.output
    assert re.search("3 passed, .* deselected in", done.output)
    assert "slowest" in done.output


def test_a_check_that_fails_is_told_and_gives_exit_code_1(site):
    site.install("specdec-greedy", "toy_greedy", DEFECTIVE)
    done = check("drafter:greedy", *only("budget-respected"))
    assert done.exit_code == 1
    assert "got:      5 tokens were proposed for row 0; its budget was 4.\nexpected: a Proposal" in done.output
    assert "1 failed in" in done.output
    assert "Traceback" not in done.output


def test_settings_and_tests_of_the_folder_do_not_matter(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "test_mine.py").write_text("raise OSError\n", encoding="utf-8")
    (tmp_path / "conftest.py").write_text("raise OSError\n", encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --unknown\ntestpaths = .\n", encoding="utf-8")
    done = check("drafter:random", *only("zero-budget"))
    assert (done.exit_code, "1 passed in" in done.output) == (0, True), done.output


def test_it_needs_pytest(monkeypatch):
    monkeypatch.setattr("specdec_core.models.packages.find_spec", lambda name: None)
    done = check("drafter:random")
    assert done.exit_code == 2
    assert "pip install 'specdec-core[kit]'" in done.output


TALKATIVE = """
    from specdec_core import DeterministicDrafter, DrafterConfig, PluginSpec, hookimpl

    class Talkative(DeterministicDrafter):
        def draft(self, tokens, budget):
            print("looking at", len(tokens))
            return [tokens[-1]] * budget

    class Stopped(DeterministicDrafter):
        def draft(self, tokens, budget):
            raise KeyboardInterrupt

    class ToyConfig(DrafterConfig):
        \"\"\"A toy.\"\"\"

    class Endless(DeterministicDrafter):
        def draft(self, tokens, budget):
            while True:
                pass

    @hookimpl
    def specdec_drafters():
        names = ("Talkative", "Stopped", "Endless")
        return [PluginSpec("drafter", n.lower(), f"toy_talk:{n}", ToyConfig) for n in names]
"""


@pytest.fixture
def _toys(site):
    site.install("specdec-talk", "toy_talk", TALKATIVE)


@pytest.mark.usefixtures("_toys")
def test_what_the_plugin_prints_does_not_break_the_lines():
    done = check("drafter:talkative", *only("zero-budget", "budget-respected"))
    assert done.exit_code == 0
    assert "looking at" not in done.output
    assert "looking at" in check("drafter:talkative", *only("zero-budget"), "--", "-rP").output


@pytest.mark.usefixtures("_toys")
def test_what_was_done_before_ctrl_c_is_kept():
    done = check("drafter:stopped", *only("settings-described", "hidden-states-declared", "zero-budget"))
    assert done.exit_code == 130
    assert re.search(r"^settings-described +passed", done.output, re.MULTILINE)
    assert re.search(r"^zero-budget $", done.output, re.MULTILINE)  # it is named
    assert "1 passed in" in done.output


@pytest.mark.usefixtures("_toys")
def test_a_check_that_does_not_end_is_stopped():
    done = check("drafter:endless", *only("zero-budget"), "--timeout", "0.5")
    assert done.exit_code == 1
    assert "no end after" in done.output
    assert "while True" in done.output


@pytest.mark.usefixtures("_toys")
def test_checks_that_are_not_run_are_named_and_give_exit_code_1():
    names = only("settings-described", "zero-budget", "lossless")
    done = check("drafter:endless", *names, "--total-timeout", "1e-6")
    assert done.exit_code == 1
    assert "not run, since all checks together may take 1e-06 s: zero-budget, lossless" in done.output
    assert "1 passed in" in done.output


def test_a_quick_run_says_what_it_leaves_out():
    done = check("gamma:fixed", "--quick")
    assert done.exit_code == 0, done.output
    assert "left out by the quick run: spec-imports-no-torch" in done.output
    assert "shortened: fewer texts and samples, since this is a quick run" in done.output
    assert "at most 374 of 6,000 samples, which show errors that move 18% of the probability" in done.output


def test_one_cause_is_told_once(site):
    site.install("specdec-greedy", "toy_greedy", DEFECTIVE)
    done = check("drafter:greedy", *only("budget-respected", "ids-in-range"))
    assert done.output.count("did:") == 1
    assert re.search(r"^ids-in-range +same cause +[0-9.]+ +as budget-respected", done.output, re.MULTILINE)
    assert "1 failed, 1 same cause in" in done.output
    assert done.exit_code == 1


def test_skipped_and_optional_checks_say_why():
    silent = ("drafter:prompt-copy", "--set", "min_match=90", "--set", "max_match=90", *only("drafts-tokens"))
    assert "(optional, to know that the others saw drafts: " in check(*silent).output
    skipped = check("lenience:constant", "--set", "lenience=0.5", *only("lossless-as-declared")).output
    assert re.search(r"skipped +[0-9.]+ \(its settings do not declare it lossless\)$", skipped, re.MULTILINE)


@pytest.mark.parametrize(
    ("plugin", "lines"),
    [
        (
            "drafter:ngram",
            [
                "drafter 'ngram': give one of 'arpa' (an ARPA file), 'text' (a text to count) and 'kenlm'",
                "  --set arpa=FILE  An ARPA file",
                "  --set text=TEXT  A UTF-8 text",
                "  --set kenlm=FILE  A model",
                '  settings = {"arpa": FILE, "text": TEXT, "kenlm": FILE}',
            ],
        ),
        ("drafter:transformer", ["missing key 'model'", "  --set model=", '  settings = {"model": ']),
        ("lenience:schedule", ["missing key 'points'", "  --set points=[...]  "]),
        (
            "gamma:optimal",
            ["give 'alpha' and 'c'", "  --set alpha=NUMBER", "  --set c=NUMBER", "  --set measured="],
        ),
    ],
)
def test_settings_that_are_missing(plugin, lines):
    done = check(plugin)
    assert done.exit_code == 2
    for line in lines:
        assert line in done.output


def test_settings_that_are_wrong_are_not_called_missing():
    assert "--set" not in check("drafter:prompt-copy", "--set", "min_match=0").output


def test_settings_are_those_of_a_study():
    silent = ("--set", "min_match=90", "--set", "max_match=90", *only("drafts-tokens"))
    assert "1 xfailed in" in check("drafter:prompt-copy", *silent).output
    assert check("drafter:prompt-copy", *silent, "--require", "drafts-tokens").exit_code == 1


def test_settings_of_plugins_within_it():
    done = check("drafter:chain", "--set", "drafters=[random, prompt-copy]", "--only", "zero-budget")
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["random"], "specdec check random: expected KIND:NAME, e.g. drafter:random."),
        (["trainer:ngram"], "unknown kind of plugin 'trainer'"),
        (["drafter:radnom"], "unknown drafter 'radnom'. Did you mean 'random'"),
        (["drafter:random", "--require", "drafts"], "--require: unknown drafter check 'drafts'"),
        (["drafter:random", "lossless"], "expected options of pytest; given lossless"),
        (["drafter:random", "-k", "no-such-check"], "deselected"),
        (["drafter:prompt-copy", "--set", "min_match"], "--set min_match: expected key=value"),
        (
            ["drafter:random", "--device", "nonsense"],
            "device 'nonsense': torch cannot use it. Available: cpu",
        ),
        (["gamma:fixed", "--device", "cuda:99"], "device 'cuda:99': torch cannot use it. Available: cpu"),
        (["drafter:prompt-copy", "--set", "min_mach=2"], "Did you mean 'min_match'"),
        (
            ["drafter:random", "--only", "zero-buget"],
            "--only: unknown drafter check 'zero-buget'. Did you mean 'zero-budget'",
        ),
    ],
)
def test_what_does_not_exist_gives_exit_code_2(arguments, message):
    done = check(*arguments)
    assert done.exit_code == 2
    assert message in done.output
