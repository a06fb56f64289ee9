"""`specdec check`."""

from __future__ import annotations

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
    done = check("drafter:random", "--only", "zero-budget", "--only", "rows-apart")
    assert done.exit_code == 0, done.output
    assert "zero-budget" in done.output
    assert "A row drafts the same, whatever rows stand beside it." in done.output
    assert "2 passed in" in done.output


def test_a_check_that_fails_is_told_and_gives_exit_code_1(site):
    site.install("specdec-greedy", "toy_greedy", DEFECTIVE)
    done = check("drafter:greedy", "--only", "budget-respected")
    assert done.exit_code == 1
    assert "got:      5 tokens in row 0\nexpected: at most 4" in done.output
    assert "1 failed in" in done.output


def test_settings_are_those_of_a_study():
    silent = ("--set", "min_match=90", "--set", "max_match=90", "--only", "drafts-something")
    assert "1 optional in" in check("drafter:prompt-copy", *silent).output
    assert check("drafter:prompt-copy", *silent, "--require", "drafts-something").exit_code == 1


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
            "device 'nonsense': torch cannot compute there. There is: cpu",
        ),
        (["gamma:fixed", "--device", "cuda:99"], "device 'cuda:99': torch cannot compute there. There is: cpu"),
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
