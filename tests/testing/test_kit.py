"""The frame of the kit: how a plugin is named or made, how pytest runs it, and what a failure says."""

from pathlib import Path

import pytest

from specdec_core import DeterministicDrafter, DrafterConfig, PluginConfig
from specdec_core.interface import ConfigError, PluginError
from specdec_core.testing import DrafterKit, GammaKit, RuleKit
from tests.conformance import failure_of, kit_of
from tests.docs.pages import ROOT
from tests.installed import site  # noqa: F401  (a fixture)
from tests.testing import healthy

pytest_plugins = ["pytester"]


class Raising(DeterministicDrafter):
    def draft(self, tokens, budget):
        raise RuntimeError("this drafter is tired")


def test_a_drafter_that_raises_is_shown_with_its_own_lines_only():
    report = failure_of(kit_of(DrafterKit, lambda target: Raising(PluginConfig(), target)), "budgets_respected")
    assert "RuntimeError: this drafter is tired" in report
    assert 'raise RuntimeError("this drafter is tired")' in report
    assert "specdec_core" not in report
    assert "requested [4, 0, 2, 1] tokens" in report


@pytest.mark.parametrize(
    ("base", "make", "got"),
    [
        (DrafterKit, lambda target: Path("no-weights-here").read_text(encoding="utf-8"), "FileNotFoundError"),
        (DrafterKit, lambda target: "drafter", "str: 'drafter'"),
        (RuleKit, healthy.Following, "Following"),
    ],
)
def test_what_cannot_be_made(base, make, got):
    report = failure_of(kit_of(base, make), "global_state_unchanged")
    assert report.startswith("did:      built the ")
    assert got in report


def test_a_kit_without_a_plugin():
    assert "override `make`" in failure_of(kit_of(GammaKit), "deterministic")


@pytest.mark.parametrize("encoder_decoder", [True, False])
def test_settings_say_which_targets_are_tried(encoder_decoder):
    said = {"targets": "encoder-decoder" if encoder_decoder else "decoder-only", "__module__": __name__}
    config = type("Config", (DrafterConfig,), said, use_attribute_docstrings=False)
    (target,) = kit_of(DrafterKit, healthy.Sampling, config=config)().targets
    assert target.encoder_decoder == encoder_decoder
    assert target.info.tokenizer is None


def test_some_settings_may_need_a_tokenizer():
    def make(target):
        if target.tokenizer is None:
            raise ConfigError("a text needs a tokenizer")
        return healthy.Sampling(target)

    one, _ = kit_of(DrafterKit, make)().targets
    assert one.info.tokenizer("2 3 5")["input_ids"] == [2, 3, 5]
    assert one.info.tokenizer.decode([2, 3]) == "2 3"


class TestNamed:
    def test_settings_are_read_as_in_a_study(self):
        kit = kit_of(DrafterKit, plugin="chain", settings={"drafters": ["random", {"name": "prompt-copy"}]})()
        assert [inner.name for inner in kit.drafter(kit.targets[0]).config.drafters] == ["random", "prompt-copy"]

    def test_a_name_that_does_not_exist(self):
        with pytest.raises(PluginError, match=r"promt-copy.*'prompt-copy'"):
            kit_of(DrafterKit, plugin="promt-copy")

    def test_settings_that_it_does_not_take(self):
        with pytest.raises(ConfigError, match=r"min_mach.*min_match"):
            kit_of(DrafterKit, plugin="prompt-copy", settings={"min_mach": 2})


PLUGIN = """
    {first}
    from specdec_core import DeterministicDrafter, DrafterConfig, PluginSpec, hookimpl

    class MineConfig(DrafterConfig):
        {summary}

        size: int = 2
        {about}

    class Mine(DeterministicDrafter):
        def draft(self, tokens, budget):
            return []

    @hookimpl
    def specdec_drafters():
        return [PluginSpec("drafter", "mine", "toy_mine:Mine", MineConfig)]
"""
FITTING = {"first": "", "about": '"""How large."""', "summary": '"""Drafts nothing."""'}


@pytest.mark.parametrize(
    ("otherwise", "check", "message"),
    [
        ({}, "spec_imports_no_torch", None),
        ({"first": "import torch"}, "spec_imports_no_torch", "torch was imported"),
        ({}, "settings_described", None),
        ({"about": ""}, "settings_described", "no description of size"),
        ({"summary": ""}, "settings_described", "no description of the class"),
    ],
)
def test_checks_of_a_spec(site, otherwise, check, message, tmp_path, monkeypatch):  # noqa: F811
    (tmp_path / "torch.py").touch()  # a new process would take seconds to import the true one
    monkeypatch.syspath_prepend(str(tmp_path))
    site.install("specdec-mine", "toy_mine", PLUGIN.format(**(FITTING | otherwise)))
    report = failure_of(kit_of(DrafterKit, plugin="mine"), check)
    assert report is None if message is None else message in report


def test_the_examples_of_the_page_run(pytester):
    """docs/examples/kit_ways.py: a table, a check that fails as expected, and one that counts."""
    options = ("-p", "no:cacheprovider", "-k", "replay_equals_live or drafts_tokens", "-rxX")
    done = pytester.runpytest_inprocess(str(ROOT / "docs" / "examples" / "kit_ways.py"), *options)
    done.assert_outcomes(passed=2, xfailed=1, xpassed=1, deselected=done.parseoutcomes()["deselected"])


def test_a_failure_has_no_traceback_of_the_kit(pytester):
    pytester.makepyfile(
        """
        from specdec_core import DeterministicDrafter, PluginConfig
        from specdec_core.testing import DrafterKit

        class Greedy(DeterministicDrafter):
            def draft(self, tokens, budget):
                return [2] * (budget + 1)

        class TestGreedy(DrafterKit):
            def make(self, target):
                return Greedy(PluginConfig(), target)
        """
    )
    done = pytester.runpytest_inprocess("-p", "no:cacheprovider", "-k", "budgets_respected")
    done.stdout.fnmatch_lines(["did: *", "got: *budget was*", "expected: *", "hint: *"])
    done.stdout.no_fnmatch_line("*Traceback*")
    done.stdout.no_fnmatch_line("*raise *")
