"""`specdec check`."""

import re

import pytest

from tests.commands import run_command

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
    return run_command("check", *arguments)


def test_pytest_selects_and_takes_its_own_options():
    options = ("--quick", "-k", "full_capacity or lossless_top_k or close_any", "--", "--durations=1", "-v")
    done = check("drafter:random", *options)
    assert done.exit_code == 0, done.output
    assert re.search("2 passed, .* deselected in", done.output)
    assert "slowest" in done.output


def test_a_check_that_fails_is_told_and_gives_exit_code_1(site):
    site.install("specdec-greedy", "toy_greedy", DEFECTIVE)
    done = check("drafter:greedy", "-k", "budgets_respected")
    assert done.exit_code == 1
    assert re.search("^got: .* its budget was ", done.output, re.MULTILINE)
    assert "1 failed, " in done.output
    assert "Traceback" not in done.output


def test_settings_and_tests_of_the_folder_do_not_matter(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "test_mine.py").write_text("raise OSError\n", encoding="utf-8")
    (tmp_path / "conftest.py").write_text("raise OSError\n", encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --unknown\ntestpaths = .\n", encoding="utf-8")
    done = check("drafter:random", "-k", "close_any_time")
    assert (done.exit_code, "1 passed, " in done.output) == (0, True), done.output


def test_it_needs_pytest(monkeypatch):
    monkeypatch.setattr("specdec_core.models.packages.find_spec", lambda name: None)
    done = check("drafter:random")
    assert done.exit_code == 2
    assert "pip install 'specdec-core[kit]'" in done.output


def test_a_check_that_is_interrupted_gives_exit_code_130(site):
    site.install(
        "specdec-greedy", "toy_greedy", DEFECTIVE.replace("return [2] * (budget + 1)", "raise KeyboardInterrupt")
    )
    done = check("drafter:greedy", "-k", "budgets_respected or settings_described")
    assert done.exit_code == 130


SILENT = ("drafter:prompt-copy", "--set", "min_match=90", "--set", "max_match=90", "-k", "drafts_tokens")


def test_an_optional_check_counts_with_runxfail():
    assert "1 xfailed" in check(*SILENT).output
    assert check(*SILENT, "--", "--runxfail").exit_code == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["random"], "expected KIND:NAME, e.g. drafter:random."),
        (["trainer:ngram"], "unknown kind of plugin 'trainer'"),
        (["drafter:radnom"], "unknown drafter 'radnom'. Did you mean 'random'"),
        (["drafter:random", "-k", "no_such_check"], "deselected"),
        (["drafter:prompt-copy", "--set", "min_match"], "--set min_match: expected key=value"),
    ],
)
def test_what_does_not_exist_gives_exit_code_2(arguments, message):
    done = check(*arguments)
    assert done.exit_code == 2
    assert message in done.output
