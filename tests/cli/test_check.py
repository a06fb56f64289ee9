"""`specdec check`."""

from __future__ import annotations

import re

import pytest
from typer.testing import CliRunner

from specdec_core.cli.main import app

DEFECTIVE = """
    from specdec_core import DeterministicDrafter, PluginConfig, PluginSpec, hookimpl

    class Greedy(DeterministicDrafter):
        def draft(self, tokens, budget):
            return [2] * (budget + 1)

    @hookimpl
    def specdec_drafters():
        return [PluginSpec("drafter", "greedy", "toy_greedy:Greedy", PluginConfig, "One too many.")]
"""


def check(*arguments):
    return CliRunner().invoke(app, ["check", *arguments])


def test_it_shows_a_table_of_checks():
    done = check("drafter:random", "--only", "zero-budget", "--only", "rows-independent")
    assert done.exit_code == 0, done.output
    assert "zero-budget" in done.output
    assert "depend on the other rows of the batch." in done.output
    assert "2 passed in" in done.output


def test_a_check_that_fails_is_told_and_gives_exit_code_1(site):
    site.install("specdec-greedy", "toy_greedy", DEFECTIVE)
    done = check("drafter:greedy", "--only", "budget-respected")
    assert done.exit_code == 1
    assert "got:      5 tokens were proposed for row 0; its budget was 4.\nexpected: a Proposal" in done.output
    assert "1 failed in" in done.output


TALKATIVE = """
    from specdec_core import DeterministicDrafter, PluginConfig, PluginSpec, hookimpl

    class Talkative(DeterministicDrafter):
        def draft(self, tokens, budget):
            print("looking at", len(tokens))
            return [tokens[-1]] * budget

    class Stopped(DeterministicDrafter):
        def draft(self, tokens, budget):
            raise KeyboardInterrupt

    class Endless(DeterministicDrafter):
        def draft(self, tokens, budget):
            while True:
                pass

    @hookimpl
    def specdec_drafters():
        names = ("Talkative", "Stopped", "Endless")
        return [PluginSpec("drafter", n.lower(), f"toy_talk:{n}", PluginConfig, "A toy.") for n in names]
"""


@pytest.fixture
def _toys(site):
    site.install("specdec-talk", "toy_talk", TALKATIVE)


@pytest.mark.usefixtures("_toys")
def test_what_the_plugin_prints_does_not_break_the_lines():
    done = check("drafter:talkative", "--only", "zero-budget", "--only", "budget-respected")
    assert done.exit_code == 0
    assert done.output.count("looking at") == 1
    assert re.search(r"printed by the plugin: \d+ line\(s\), the first 'looking at \d+'", done.output)


@pytest.mark.usefixtures("_toys")
def test_what_was_done_before_ctrl_c_is_kept():
    names = ("spec-matches-class", "hidden-states-declared", "zero-budget")
    done = check("drafter:stopped", *(part for name in names for part in ("--only", name)))
    assert done.exit_code == 130
    assert re.search(r"^spec-matches-class +passed", done.output, re.MULTILINE)
    assert re.search(r"^zero-budget +stopped", done.output, re.MULTILINE)  # it is named
    assert "1 passed in" in done.output


@pytest.mark.usefixtures("_toys")
def test_a_check_that_does_not_end_is_stopped():
    done = check("drafter:endless", "--only", "zero-budget", "--timeout", "1")
    assert done.exit_code == 1
    assert "no end after" in done.output
    assert "while True" in done.output


@pytest.mark.usefixtures("_toys")
def test_checks_that_are_not_run_are_named_and_give_exit_code_1():
    done = check("drafter:endless", "--only", "zero-budget", "--only", "lossless", "--total-timeout", "0.1")
    assert done.exit_code == 1
    assert "not run, since all checks together may take 0.1 s: zero-budget, lossless" in done.output
    assert "2 not run in" in done.output


def test_a_quick_run_says_what_it_leaves_out():
    done = check("gamma:fixed", "--quick")
    assert done.exit_code == 0, done.output
    assert "left out by the quick run: spec-imports-no-torch" in done.output
    assert "shortened: fewer texts and samples, since this is a quick run" in done.output
    assert "at most 374 of 6,000 samples, which show errors that move 18% of the probability" in done.output


def test_one_cause_is_told_once_and_all_if_asked(site):
    site.install("specdec-greedy", "toy_greedy", DEFECTIVE)
    two = ("--only", "budget-respected", "--only", "ids-in-range")
    done = check("drafter:greedy", *two)
    assert done.output.count("did:") == 1
    assert "1 more check failed with the same cause: ids-in-range" in done.output
    assert check("drafter:greedy", *two, "--verbose").output.count("did:") == 2


def test_skipped_and_optional_checks_say_why():
    silent = ("drafter:prompt-copy", "--set", "min_match=90", "--set", "max_match=90", "--only", "drafts-tokens")
    why = "failed; optional, to know that the other checks had drafts to look at; see --verbose"
    assert why in check(*silent).output
    assert "no draft tokens in four steps" in check(*silent, "-v").output
    skipped = check("lenience:constant", "--set", "lenience=0.5", "--only", "lossless-as-declared").output
    assert re.search(r"skipped +[0-9.]+ +its settings do not declare it lossless$", skipped, re.MULTILINE)


@pytest.mark.parametrize(
    ("plugin", "lines"),
    [
        (
            "drafter:ngram",
            [
                "drafter 'ngram': give either 'arpa' (an ARPA file) or 'text' (a text to count); got neither",
                "  --set arpa=FILE  An ARPA file",
                "  --set text=TEXT  A UTF-8 text",
                '  settings = {"arpa": FILE, "text": TEXT}',
                '  pytest --specdec drafter:ngram --specdec-settings \'{"arpa": FILE, "text": TEXT}\'',
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
    silent = ("--set", "min_match=90", "--set", "max_match=90", "--only", "drafts-tokens")
    assert "1 optional in" in check("drafter:prompt-copy", *silent).output
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
        (["drafter:prompt-copy", "--set", "min_match"], "--set min_match: expected key=value"),
        (
            ["drafter:random", "--device", "nonsense"],
            "device 'nonsense': torch cannot use it. Available: cpu",
        ),
        (["gamma:fixed", "--device", "cuda:99"], "device 'cuda:99': torch cannot use it. Available: cpu"),
        (["drafter:prompt-copy", "--set", "min_mach=2"], "Did you mean 'min_match'"),
        (
            ["drafter:random", "--only", "zero-buget"],
            "select: unknown drafter check 'zero-buget'. Did you mean 'zero-budget'",
        ),
    ],
)
def test_what_does_not_exist_gives_exit_code_2(arguments, message):
    done = check(*arguments)
    assert done.exit_code == 2
    assert message in done.output
