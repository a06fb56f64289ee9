"""The kit's frame: checks, outcomes, messages, and what is judged. Planted defects test what the checks see."""

from __future__ import annotations

import re

import pytest

from specdec_core import DeterministicDrafter, DrafterConfig, PluginConfig
from specdec_core.interface import ConfigError, PluginError
from specdec_core.testing import (
    CheckFailure,
    DrafterSubject,
    checks_for,
    named,
    parametrize_with_checks,
    subject_of,
)
from specdec_core.testing import registration as checking
from specdec_core.testing.registration import Check, check
from tests.conformance import failures, outcome_of
from tests.testing.defects import healthy
from tests.toys import CountingDrafter


class Raising(DeterministicDrafter):
    def draft(self, tokens, budget):
        raise RuntimeError("this drafter is tired")


def subject(kind=CountingDrafter, **given):
    return DrafterSubject(
        lambda target: kind(6) if kind is CountingDrafter else kind(PluginConfig(), target), **given
    )


def passing(_):
    """Holds."""


def failing(_):
    """Does not hold."""
    raise CheckFailure("did it", "this", "that", "do it otherwise")


def made(run, name="one", *, required=True, skip_reason=lambda _: None):
    return Check(name, "drafter", run.__doc__, run, required, skip_reason, "for fun")


class TestACheck:
    @pytest.fixture(autouse=True)
    def _no_other_checks(self, monkeypatch):
        monkeypatch.setitem(checking._CHECKS, "drafter", {})
        monkeypatch.setitem(checking._MODULES, "drafter", ())

    def test_is_registered_in_order_with_the_first_line_of_its_docstring(self):
        @check("second", kind="drafter", required=False, purpose="for fun")
        def second(subject):
            """It is second.

            More on it.
            """

        @check("first", kind="drafter")
        def first(subject):
            """It is first."""

        assert [(one.name, one.summary, one.required) for one in checks_for("drafter")] == [
            ("second", "It is second.", False),
            ("first", "It is first.", True),
        ]

    def test_that_is_optional_says_what_it_is_for(self):
        with pytest.raises(ValueError, match="'aimless' is optional"):
            check("aimless", kind="drafter", required=False)(passing)

    def test_needs_a_docstring(self):
        with pytest.raises(ValueError, match="'silent' has no docstring"):
            check("silent", kind="drafter")(lambda subject: None)

    def test_of_a_name_that_another_module_has_is_refused(self):
        check("taken", kind="drafter")(passing)
        with pytest.raises(ValueError, match="two drafter checks are named 'taken'"):
            check("taken", kind="drafter")(_elsewhere())

    def test_does_not_apply_for_the_first_reason_there_is(self):
        check("choosy", kind="drafter", skip_if=[lambda _: None, lambda _: "too small", lambda _: "too late"])(
            passing
        )
        (one,) = checks_for("drafter")
        assert one.skip_reason(None) == "too small"


def _elsewhere():
    def run(subject):
        """Holds, elsewhere."""

    run.__module__ = "some.other.module"
    return run


def test_there_are_no_checks_of_trainers():
    with pytest.raises(
        ConfigError, match=r"unknown kind of plugin with checks 'trainer'.*drafter, gamma, lenience"
    ):
        checks_for("trainer")
    with pytest.raises(ConfigError, match="unknown kind of plugin with checks 'trainr'"):
        subject_of("trainr", lambda: None)


@pytest.mark.parametrize("kind", ["drafter", "gamma", "lenience"])
def test_names_are_in_kebab_case_and_summaries_are_sentences(kind):
    for one in checks_for(kind):
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", one.name)
        assert re.fullmatch(r"[A-Z`].*\.", one.summary), one.name
        assert len(one.summary) <= 115


def test_a_failure_says_what_was_done_what_came_back_and_what_was_expected():
    text = str(CheckFailure("first\nthen", "this", "that", "do it otherwise"))
    assert text.splitlines() == [
        "did:      first",
        "          then",
        "got:      this",
        "expected: that",
        "hint:     do it otherwise",
    ]


@pytest.mark.parametrize(
    ("run", "given", "outcome", "message"),
    [
        (passing, {}, "passed", ""),
        (failing, {}, "failed", "one: Does not hold.\n\ndid:      did it\ngot:      this"),
        (passing, {"skip_reason": lambda _: "one row only"}, "skipped", "one row only"),
        (failing, {"required": False}, "xfailed", "optional, for fun: did:      did it\ngot:      this"),
        (failing, {"required": False, "require": ["one"]}, "failed", "got:      this"),
        (failing, {"expected": "known since May"}, "xfailed", "known since May"),
        (
            passing,
            {"expected": "known since May"},
            "failed",
            "it passed, but was expected to fail: known since May",
        ),
        (passing, {"expected": "known", "skip_reason": lambda _: "one row only"}, "skipped", "one row only"),
    ],
)
def test_outcomes(run, given, outcome, message):
    terms = {"expected_failures": {"one": given.pop("expected")}} if "expected" in given else {}
    terms["require"] = given.pop("require", ())
    result = outcome_of(made(run, **given), subject(), **terms)
    assert result.outcome == outcome
    assert message in result.message


def test_an_error_within_a_check_is_a_failure_of_that_check():
    def broken(_):
        """Holds."""
        raise KeyError("lost")

    result = outcome_of(made(broken), subject())
    assert result.outcome == "failed"
    assert "KeyError: 'lost'" in result.message


def test_an_expected_failure_is_not_the_first_of_its_cause():
    one = subject()
    assert outcome_of(made(failing), one, expected_failures={"one": "known"}).outcome == "xfailed"
    assert "did:" in outcome_of(made(failing, "two"), one).message
    assert "the same cause as two" in outcome_of(made(failing, "three"), one).message


@pytest.mark.parametrize(("where", "names"), [("expected_failures", {"lossles": "why"}), ("require", ["lossles"])])
def test_a_check_that_does_not_exist(where, names):
    with pytest.raises(ConfigError, match=rf"{where}: unknown drafter check.*Did you mean 'lossless'"):
        parametrize_with_checks("drafter", Plain, **{where: names})


def test_a_drafter_that_raises_is_shown_with_its_own_lines_only():
    (one,) = failures(subject(Raising), "budget-respected")
    assert "RuntimeError: this drafter is tired" in one.message
    assert 'raise RuntimeError("this drafter is tired")' in one.message
    assert "specdec_core/testing" not in one.message
    assert "requested [4, 4, 4, 4] tokens" in one.message


def test_a_drafter_that_cannot_be_made():
    def make(target):
        raise OSError("no weights here")

    (one,) = failures(DrafterSubject(make), "zero-budget")
    assert "built the drafter for the decoder-only target with 6 token ids" in one.message
    assert "OSError: no weights here" in one.message
    assert "needs some for that vocabulary" in one.message


def test_a_drafter_that_says_why_it_cannot_be_made():
    def make(target):
        raise ConfigError("table.txt: the file does not exist.")

    (one,) = failures(DrafterSubject(make), "zero-budget")
    assert "got:      table.txt: the file does not exist.\nexpected: a Drafter" in one.message


def test_what_is_made_is_no_drafter():
    (one,) = failures(DrafterSubject(lambda target: "drafter"), "zero-budget")
    assert "got:      str: 'drafter'" in one.message
    assert "make must be a function that takes a TargetInfo and returns a Drafter" in one.message


class Plain(DeterministicDrafter):
    def draft(self, tokens, budget):
        return []


class Unbegun(Plain):
    def __init__(self, target):
        pass


class UnbegunGamma(healthy.Following):
    def __init__(self):
        pass


class UnbegunLenience(healthy.Lenient):
    def __init__(self):
        pass


@pytest.mark.parametrize(
    ("kind", "make", "got"),
    [
        ("drafter", Plain(PluginConfig(), None), "make is a Plain"),
        ("drafter", Plain, "make is the class Plain: missing a required argument: 'target'"),
        ("drafter", lambda: None, "make is the function <lambda>: too many positional arguments"),
        ("gamma", healthy.Following(), "make is a Following"),
        ("lenience", healthy.Lenient.open, "make is the function open: missing a required argument: 'self'"),
    ],
)
def test_what_makes_it_cannot_be_called(kind, make, got):
    one = subject_of(kind, make)
    (failure,) = failures(one, "global-state-unchanged")
    assert f"got:      {got}\nexpected: make is {one.make_must_be}" in failure.message
    assert "hint" not in failure.message


def test_a_class_may_be_what_makes_it():
    assert isinstance(subject_of("gamma", healthy.Following).fresh(), healthy.Following)


@pytest.mark.parametrize(
    ("kind", "make", "got", "call"),
    [
        ("drafter", Unbegun, "`config` and `target`", "super().__init__(config, target)"),
        ("gamma", UnbegunGamma, "`config`", "super().__init__(config)"),
        ("lenience", UnbegunLenience, "`config`", "super().__init__(config)"),
    ],
)
def test_what_does_not_call_its_base_class(kind, make, got, call):
    (failure,) = failures(subject_of(kind, make), "global-state-unchanged")
    assert f"got:      a {make.__name__} without {got}\n" in failure.message
    assert f"hint:     In {make.__name__}.__init__ call {call}." in failure.message


def test_a_drafter_that_cannot_be_made_is_tried_once():
    tries = []

    def make(target):
        tries.append(target)
        raise OSError("no weights here")

    failures(DrafterSubject(make), "zero-budget", "budget-respected", "ragged-rows")
    assert len(tries) == 1


def config_of(**needs):
    """Return a class of settings that says what a drafter needs."""
    return type("Config", (DrafterConfig,), {"__module__": __name__, **needs}, use_attribute_docstrings=False)


class TestNeeds:
    @pytest.mark.parametrize("encoder_decoder", [True, False])
    def test_say_which_targets_are_tried(self, encoder_decoder):
        kind = "encoder-decoder" if encoder_decoder else "decoder-only"
        (one,) = subject(config=config_of(targets=kind)).targets
        assert one.encoder_decoder == encoder_decoder
        assert one.info.encoder_decoder == encoder_decoder

    def test_say_whether_there_is_a_tokenizer(self):
        (one, _) = subject(config=config_of(needs_tokenizer=True)).targets
        assert one.info.tokenizer("2 3 5")["input_ids"] == [2, 3, 5]
        assert one.info.tokenizer.decode([2, 3]) == "2 3"
        assert subject().target.info.tokenizer is None

    def test_need_not_say_that_some_settings_need_a_tokenizer(self):
        class Picky(Plain):
            def __init__(self, config, target):
                super().__init__(config, target)
                if target.tokenizer is None:
                    raise ConfigError("a text needs a tokenizer")

        one = subject(Picky)
        assert one.target.info.tokenizer is not None
        assert one.drafter(one.target).target.tokenizer is not None


@pytest.mark.parametrize("device", ["nonsense", "meta", "cuda:99"])
def test_a_device_that_torch_cannot_compute_on(device):
    with pytest.raises(ConfigError, match=rf"device '{device}': torch cannot use it. Available: cpu"):
        named("drafter", "random", device=device)
    with pytest.raises(ConfigError, match="torch cannot use it"):
        parametrize_with_checks("gamma", healthy.Following, device=device)


class TestNamed:
    def test_an_installed_plugin_is_found_with_what_it_announced(self):
        one = named("drafter", "heads", {"model": "no-file.safetensors"})
        assert one.needs.needs_hidden_states
        assert one.spec is not None
        assert one.spec.name == "heads"

    def test_settings_are_read_as_in_a_study(self):
        one = named("drafter", "chain", {"drafters": ["random", {"name": "prompt-copy", "min_match": 1}]})
        assert [inner.name for inner in one.drafter(one.target).config.drafters] == ["random", "prompt-copy"]

    def test_a_name_that_does_not_exist(self):
        with pytest.raises(PluginError, match=r"unknown drafter 'promt-copy'.*Did you mean 'prompt-copy'"):
            named("drafter", "promt-copy")

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"min_mach": 2}, "unknown key 'min_mach'.*Did you mean 'min_match'"),
            (
                {"min_match": 0},
                "drafter 'prompt-copy': min_match: input should be greater than or equal to 1; given 0",
            ),
        ],
    )
    def test_settings_that_it_does_not_take(self, settings, message):
        with pytest.raises(ConfigError, match=message):
            named("drafter", "prompt-copy", settings)
