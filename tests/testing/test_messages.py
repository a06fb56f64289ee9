"""Messages for plugin authors: one for each mistake, which names the function and what to return."""

from __future__ import annotations

import asyncio
import re
import sys

import pytest
import torch

from specdec_core import AutoregressiveDrafter, DeterministicDrafter, Drafter, PluginConfig
from specdec_core.interface import (
    LAST_HIDDEN,
    Dense,
    DrafterConfig,
    DraftSession,
    GammaSession,
    PointMass,
    Proposal,
)
from specdec_core.testing import DrafterSubject, subject_of
from specdec_core.testing.check_runner import findings_of
from tests.conformance import failures, quick_names
from tests.testing.defects import healthy


class ReturnsNone(DeterministicDrafter):
    def draft(self, tokens, budget):
        return None


class ReturnsNumbers(DeterministicDrafter):
    def draft(self, tokens, budget):
        return [0.5] * budget


class TooMany(DeterministicDrafter):
    def draft(self, tokens, budget):
        return [2] * (budget + 1)


class Outside(DeterministicDrafter):
    def draft(self, tokens, budget):
        return [6] * budget


class Raises(DeterministicDrafter):
    def draft(self, tokens, budget):
        raise RuntimeError("tired")


class Leaves(DeterministicDrafter):
    def draft(self, tokens, budget):
        sys.exit("goodbye")


class Cancels(DeterministicDrafter):
    def draft(self, tokens, budget):
        raise asyncio.CancelledError("not waited for")


class NoLogits(AutoregressiveDrafter):
    def logits(self, prefix):
        return None


class FewLogits(AutoregressiveDrafter):
    def logits(self, prefix):
        return torch.zeros(4)


class WithSession(Drafter):
    def open(self, session):
        return self.Session()


class ProposesNone(WithSession):
    class Session(DraftSession):
        def propose(self, request):
            return None


class ProposesInt32(WithSession):
    class Session(DraftSession):
        def propose(self, request):
            made = Proposal.from_rows([[2] * n for n in request.budget])
            return Proposal(made.tokens.int(), made.lengths, made.q)


class ProposesLists(WithSession):
    class Session(DraftSession):
        def propose(self, request):
            return Proposal([[2] * n for n in request.budget], request.budget, PointMass())


class ForgetsRows(WithSession):
    class Session(DraftSession):
        def propose(self, request):
            made = Proposal.from_rows([[2] * n for n in request.budget])
            return Proposal(made.tokens, made.lengths[:1], made.q)


class QOfOnes(WithSession):
    class Session(DraftSession):
        def propose(self, request):
            made = Proposal.from_rows([[2] * n for n in request.budget])
            return Proposal(made.tokens, made.lengths, Dense(torch.ones(*made.tokens.shape, 6)))


class ReadsHidden(WithSession):
    class Session(DraftSession):
        def propose(self, request):
            states = request.hidden_states[LAST_HIDDEN] * 2
            return Proposal.empty(len(states))


class KeepsCount(WithSession):
    class Session(DraftSession):
        asked = 0

        def propose(self, request):
            self.asked += 1
            return Proposal.from_rows(
                [[(row[-1] + self.asked) % 6] * n for row, n in zip(request.tokens, request.budget, strict=True)]
            )


class CannotClose(WithSession):
    class Session(DraftSession):
        def propose(self, request):
            return Proposal.empty(len(request.tokens))

        def close(self):
            raise OSError("it is stuck")


class CannotOpen(WithSession):
    def open(self, session):
        raise OSError("it is locked")


class CannotBegin(Raises):
    def __init__(self, config, target):
        raise OSError("no file")


def drafter_of(kind, *, needs_hidden=None):
    needs = bool(kind.hidden_layers) if needs_hidden is None else needs_hidden
    said = {"needs_hidden_states": needs, "targets": "decoder-only", "__module__": __name__}
    return DrafterSubject(
        lambda target: kind(PluginConfig(), target),
        type("Config", (DrafterConfig,), said, use_attribute_docstrings=False),
    )


def told(subject, *names):
    """Run checks and return the messages that are shown in full, and the number of failures."""
    failed = failures(subject, *names)
    return [one.message for one in failed if "the same cause as" not in one.message], len(failed)


def line_of(function):
    return f"{function.__code__.co_filename.rpartition('/')[2]}:{function.__code__.co_firstlineno}"


@pytest.mark.parametrize(
    ("kind", "function", "got", "returns"),
    [
        (ReturnsNone, "draft", "ReturnsNone.draft returned None", "[tokens[-1]] * budget"),
        (ReturnsNumbers, "draft", "ReturnsNumbers.draft returned [0.5", "[tokens[-1]] * budget"),
        (TooMany, "draft", "tokens were proposed for row 0; its budget was", "at most `budget` token ids"),
        (Outside, "draft", "id 6 in row 0: a draft token", "from 0 to `self.target.vocab_size - 1`"),
        (NoLogits, "logits", "NoLogits.logits returned None", "a float tensor [V]"),
        (FewLogits, "logits", "logits of shape (4, 4) were given", "a float tensor [V]"),
        (ProposesNone, "propose", "propose() returned NoneType", "Proposal.from_rows("),
        (ProposesInt32, "propose", "dtype torch.int32 were proposed; expected int64", "Proposal.from_rows("),
        (ProposesLists, "propose", "tokens are a list; expected a tensor", "Proposal.from_rows("),
        (ForgetsRows, "propose", "1 lengths were proposed; there are 4 rows", "Proposal.from_rows("),
        (QOfOnes, "propose", "with sum 6", "request.sample(logits)"),
    ],
)
def test_what_is_returned_wrongly_is_told_with_the_function_and_what_it_must_return(kind, function, got, returns):
    own = getattr(kind.Session if function == "propose" else kind, function)
    name = own.__qualname__
    (one,) = failures(drafter_of(kind), "q-sums-to-one")
    assert got in one.message
    assert f"{name} (" in one.message
    assert f"{line_of(own)}) must return" in one.message
    assert returns in one.message
    assert "Traceback" not in one.message


@pytest.mark.parametrize("kind", [ReturnsNone, Outside, ProposesNone, QOfOnes])
def test_it_is_told_in_the_decoding_loop_as_well(kind):
    (one,) = failures(drafter_of(kind), "lossless")
    assert re.search(r"hint: +\S+ \(.*test_messages.py:\d+\) must return", one.message)
    assert "Traceback" not in one.message


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (ReadsHidden, "has the layers that ReadsHidden names in `hidden_layers` (none), and ReadsHidden.Session"),
        (ReadsHidden, "hidden_layers = (LAST_HIDDEN,)"),
        (ReadsHidden, "needs_hidden_states = True"),
    ],
)
def test_hidden_states_that_are_missing(kind, told):
    (one,) = failures(drafter_of(kind), "zero-budget")
    assert told in one.message


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (Raises, "RuntimeError: tired"),
        (Leaves, "SystemExit: goodbye"),
        (Cancels, "CancelledError: not waited for"),
        (CannotClose, "OSError: it is stuck"),
        (CannotOpen, "OSError: it is locked"),
        (CannotBegin, "OSError: no file"),
    ],
)
def test_what_raises_is_a_failure_with_the_lines_of_the_author_alone(kind, told):
    for name in ("zero-budget", "lossless"):
        (one,) = failures(drafter_of(kind), name)
        assert told in one.message
        assert f'File "{__file__}"' in one.message
        assert "specdec_core/" not in one.message


@pytest.mark.parametrize(
    "kind",
    [
        *(ReturnsNone, Leaves, ReadsHidden, CannotClose),
        *(
            pytest.param(kind, marks=pytest.mark.slow)
            for kind in (TooMany, Outside, Raises, ProposesNone, CannotBegin)
        ),
    ],
)
def test_one_mistake_gives_one_message(kind):
    subject = drafter_of(kind).in_short()
    (message,), failed = told(subject, *quick_names("drafter"))
    assert failed > 30
    assert message.count("did:") == 1


def test_a_mistake_that_shows_in_several_states_gives_one_message():
    names = ("all-accepted", "none-accepted", "many-steps", "long-drafts")
    subject = drafter_of(KeepsCount)
    messages, failed = told(subject, *names)
    assert (len(messages), failed) == (1, 4)
    assert list(findings_of(subject).causes.values()) == [
        ["all-accepted", "none-accepted", "long-drafts", "many-steps"]
    ]


def test_two_mistakes_give_two_messages():
    class Both(TooMany):
        pass

    names = ("zero-budget", "budget-respected", "hidden-states-declared")
    messages, _ = told(drafter_of(Both, needs_hidden=True), *names)
    assert [text.partition(":")[0] for text in messages] == ["zero-budget", "hidden-states-declared"]


class Wrong(healthy.Following):
    """Answers with None."""

    class Session(GammaSession):
        def plan(self):
            return None

    def open(self, batch):
        return self.Session()


def test_a_controller_that_answers_nothing():
    (message,), _ = told(subject_of("gamma", Wrong))
    assert f"See Wrong.Session.plan (tests/testing/{line_of(Wrong.Session.plan)})." in message
    assert "expected: 1 int(s), one per row" in message


class Leaving(healthy.Following):
    """Ends the process."""

    def open(self, batch):
        sys.exit("enough")


def test_a_controller_that_ends_the_process():
    (message,), _ = told(subject_of("gamma", Leaving))
    assert "SystemExit: enough" in message
    assert f'File "{__file__}"' in message
