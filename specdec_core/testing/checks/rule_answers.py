"""Checks of acceptance rules, by enumeration on a few tokens and in the decoding loop."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from specdec_core.decoding import Decoder
from specdec_core.decoding.answer import check_form, fetch, wrong_values
from specdec_core.interface import AcceptanceResult, AcceptanceRule, PluginError, PointMass, Proposal
from specdec_core.interface.settings import SamplingSettings
from specdec_core.testing.harness.enumeration import continuations, require_distribution
from specdec_core.testing.harness.rule_distribution import (
    FORMS,
    TOLERANCE,
    Step,
    StepDeviation,
    deviation_of,
    models,
    replay_error,
    step_of,
)
from specdec_core.testing.harness.state import changed_globals, global_state
from specdec_core.testing.harness.toys import Gamma, TableDrafter
from specdec_core.testing.registration import CheckFailure, check
from specdec_core.testing.rule_subject import RuleSubject
from specdec_core.verification import accept_greedy

SIZES = ((4, 0), (4, 1), (4, 2), (3, 3), (3, 2))
"""Vocabulary and gamma of the models that are enumerated."""
FEW = 64
"""Points for checks that measure no distribution."""
_SAMPLED = SamplingSettings(temperature=0.8)


def greedy_only(subject: RuleSubject) -> str | None:
    """Return why a check of sampling does not apply."""
    return "it verifies greedy drafts only" if subject.declared.greedy_only else None


def lossy(subject: RuleSubject) -> str | None:
    """Return why a check of losslessness does not apply."""
    return None if subject.declared.lossless else "its settings do not declare it lossless"


def lossless(subject: RuleSubject) -> str | None:
    """Return why a check of the declared deviation does not apply."""
    return "its settings declare it lossless" if subject.declared.lossless else None


def not_replayed(subject: RuleSubject) -> str | None:
    """Return why a check of replays does not apply."""
    return None if subject.declared.replays_from else "its settings do not declare `replays_from`"


def lossy_greedy(subject: RuleSubject) -> str | None:
    """Return why a check of lossless greedy decoding does not apply."""
    return (
        None if subject.declared.lossless_for(greedy=True) else "its settings declare it lossy in greedy decoding"
    )


def lossless_greedy(subject: RuleSubject) -> str | None:
    """Return why a check of the deviation of greedy decoding does not apply."""
    exact = subject.declared.lossless_for(greedy=True)
    return "its settings declare it lossless in greedy decoding" if exact else None


@check("answer-form", kind="rule")
def answer_form(subject: RuleSubject) -> None:
    """It returns an `AcceptanceResult` of the right shapes and types.

    It returns an `AcceptanceResult` with tensors of the right shapes and types, also for an empty draft.
    """
    rule = subject.fresh()
    for step in _steps(subject, FEW):
        _answer(subject, rule, step)
    for proposal, scores in _greedy_drafts():
        _greedy(subject, rule, proposal, scores)


@check("answer-in-range", kind="rule")
def answer_in_range(subject: RuleSubject) -> None:
    """Accepted counts and tokens are in range.

    It accepts no more tokens than a row's length, and draws a token of the vocabulary.
    """
    rule = subject.fresh()
    for step in _steps(subject, FEW):
        count, width = step.proposal.tokens.shape
        lengths = tuple(row % (width + 1) for row in range(count))
        _answer(subject, rule, replace(step, proposal=replace(step.proposal, lengths=lengths)))
    for proposal, scores in _greedy_drafts():
        _greedy(subject, rule, proposal, scores)


@check("lossless", kind="rule", skip_if=(greedy_only, lossy))
def is_lossless(subject: RuleSubject) -> None:
    """The next token has the target's distribution, for every q.

    After every accepted prefix, the next token has the target's distribution, for every form of q.
    """
    rule = subject.fresh()
    for step in _steps(subject):
        found = deviation_of(step, _answer(subject, rule, step))
        index = int(found.measured.argmax())
        if found.measured[index] > TOLERANCE:
            raise CheckFailure(
                _did(step),
                f"a total variation of {found.measured[index]:.4f} from the target at position {index + 1}",
                f"none: `config.lossless` is True (up to {TOLERANCE:g}, the precision of the enumeration)",
                "The token after them must make up for what they take: norm(max(0, p - q)) in Algorithm 1.",
            )


@check("replay-as-declared", kind="rule", skip_if=(greedy_only, not_replayed))
def replay_as_declared(subject: RuleSubject) -> None:
    """If it declares `replays_from`, `acceptance_given_text` is right.

    If it declares `replays_from`, `acceptance_given_text` is what it accepts, given what it emits.
    """
    rule = subject.fresh()
    for step in _steps(subject):
        found = replay_error(step, _answer(subject, rule, step), rule)
        if not bool((found <= TOLERANCE).all()):
            index = int(found.nan_to_num(nan=torch.inf).argmax())
            raise CheckFailure(
                f"{_did(step)}, and asked for the acceptance given each text",
                f"at position {index + 1} it is {found[index]:.4f} from what was accepted",
                f"no difference (up to {TOLERANCE:g}, the precision of the enumeration)",
                "It is P(accepted and y emitted) / P(y emitted), given that the tokens before y were accepted.",
            )


@check("deviation-declared", kind="rule", skip_if=(greedy_only, lossless))
def deviation_declared(subject: RuleSubject) -> None:
    """It deviates by no more than its `deviation`.

    It deviates from the target by no more than the `deviation` that it reports, for every form of q.
    """
    rule = subject.fresh()
    for step in _steps(subject):
        _require_declared(step, deviation_of(step, _answer(subject, rule, step)))


@check("lossless-greedy", kind="rule", skip_if=lossy_greedy)
def is_lossless_greedy(subject: RuleSubject) -> None:
    """Greedy decoding emits the argmax at each position.

    In greedy decoding it accepts draft tokens while they are the argmax, and the argmax follows.
    """
    rule = subject.fresh()
    for proposal, scores in _greedy_drafts():
        got = _greedy(subject, rule, proposal, scores)
        expected = accept_greedy(proposal, scores, None)
        for row in range(len(got.token)):
            pair = (int(got.accepted[row]), int(got.token[row]))
            right = (int(expected.accepted[row]), int(expected.token[row]))
            if pair != right:
                length = proposal.lengths[row]
                raise CheckFailure(
                    f"verified the greedy draft {proposal.tokens[row, :length].tolist()}, where the argmax is "
                    f"{scores[row, : length + 1].argmax(dim=1).tolist()}",
                    f"{pair[0]} accepted, then token {pair[1]}",
                    f"{right[0]} accepted, then token {right[1]}",
                )


@check("deviation-greedy", kind="rule", skip_if=lossless_greedy)
def deviation_greedy(subject: RuleSubject) -> None:
    """In greedy decoding, a token other than the argmax deviates by 1 or more.

    In greedy decoding it reports a deviation of at least 1 for every accepted token that is not the argmax.
    """
    rule = subject.fresh()
    for proposal, scores in _greedy_drafts():
        got = _greedy(subject, rule, proposal, scores)
        width = proposal.tokens.shape[1]
        kept = torch.arange(width) < got.accepted[:, None]
        other = kept & (proposal.tokens != scores[:, :width].argmax(dim=2))
        reported = torch.zeros(other.shape) if got.deviation is None else got.deviation
        if (other & (reported < 1)).any():
            raise CheckFailure(
                "verified greedy drafts",
                "an accepted token that is not the argmax, and a deviation of less than 1 at its position",
                "a deviation of 1 there",
                "`accept_greedy_allowed` reports it.",
            )


@check("rows-independent", kind="rule", skip_if=greedy_only)
def rows_independent(subject: RuleSubject) -> None:
    """A row's results do not depend on other rows.

    A row's answer depends neither on the other rows nor on what lies beyond its length.
    """
    rule = subject.fresh()
    for step in _steps(subject, FEW):
        count, width = step.proposal.tokens.shape
        lengths = tuple(row % (width + 1) for row in range(count))
        mixed = _answer(subject, rule, replace(step, proposal=replace(step.proposal, lengths=lengths)))
        for length in range(width + 1):
            rows = torch.tensor([row for row in range(count) if lengths[row] == length])
            tokens = step.proposal.tokens.clone()
            tokens[:, length:] = step.models.vocab_size - 1
            p = step.p.clone()
            p[:, length + 1 :] = 1 / step.models.vocab_size
            uniforms = step.uniforms.clone()
            uniforms[:, length:width] = 0.5
            alone = replace(step, proposal=replace(step.proposal, tokens=tokens, lengths=(length,) * count), p=p)
            answer = _answer(subject, rule, replace(alone, uniforms=uniforms))
            for name in ("accepted", "token"):
                if not torch.equal(getattr(answer, name)[rows], getattr(mixed, name)[rows]):
                    raise CheckFailure(
                        f"{_did(step)}; some of them cut to {length}, with other rows and other padding",
                        f"another `{name}`",
                        "the same: a row's answer depends on that row up to its length",
                        "Mask positions from `proposal.lengths` on, as `count_accepted` does.",
                    )


@check("deterministic", kind="rule", skip_if=greedy_only)
def deterministic(subject: RuleSubject) -> None:
    """Equal inputs give equal answers."""
    rule = subject.fresh()
    for step in _steps(subject, FEW):
        first, second = (_answer(subject, rule, step) for _ in range(2))
        if not (torch.equal(first.accepted, second.accepted) and torch.equal(first.token, second.token)):
            hint = "Compare with `uniforms`, and draw with `draw_next`; keep no state."
            raise CheckFailure(f"{_did(step)}, twice", "two different answers", "the same answer", hint)


@check("inputs-unchanged", kind="rule")
def inputs_unchanged(subject: RuleSubject) -> None:
    """It does not modify its inputs.

    It changes neither the draft, nor p, nor the random numbers.
    """
    rule = subject.fresh()
    for step in _steps(subject, FEW):
        before = copy.deepcopy((step.proposal, step.p, step.uniforms))
        _answer(subject, rule, step)
        _require_same(before, (step.proposal, step.p, step.uniforms))
    for proposal, scores in _greedy_drafts():
        given = copy.deepcopy((proposal, scores))
        _greedy(subject, rule, proposal, scores)
        _require_same(given, (proposal, scores))


@check("global-state-unchanged", kind="rule")
def global_state_unchanged(subject: RuleSubject) -> None:
    """It leaves random generators, torch's settings and the environment alone.

    It leaves global random generators, torch settings and environment variables alone.
    """
    steps, drafts = list(_steps(subject, FEW)), list(_greedy_drafts())
    before = global_state()
    rule = subject.fresh()
    for step in steps:
        _answer(subject, rule, step)
    for proposal, scores in drafts:
        _greedy(subject, rule, proposal, scores)
    changed = changed_globals(before)
    if changed:
        raise CheckFailure("verified drafts", f"changed: {', '.join(changed)}", "no change")


@check("decodes", kind="rule")
def decodes(subject: RuleSubject) -> None:
    """A decoder with this rule runs to the end.

    A decoder with this rule runs to the end, sampled and greedy; if it is lossless, so is what it decodes.
    """
    target = subject.target
    config = subject.declared
    for sampling in (_SAMPLED, SamplingSettings(temperature=0)):
        if config.greedy_only and not sampling.greedy:
            continue
        drafter = TableDrafter(target.info.vocab_size)
        made = Decoder(
            target.loaded, drafter, gamma=Gamma(3, 0, 2), rule=subject.fresh(), sampling=sampling, strict=True
        )
        if config.lossless_for(greedy=sampling.greedy):
            expected = continuations(target.loaded, sampling)
            where = "greedily" if sampling.greedy else f"at temperature {sampling.temperature:g}"
            require_distribution(
                made, expected, where, batch=250, min_count=1000, max_count=4000, seed=subject.seed
            )
        else:
            made.generate([[2, 3], [3]], max_new_tokens=6)


def _steps(subject: RuleSubject, points: int | None = None) -> Iterator[Step]:
    """Yield all drafts of several models in every form of q; none for a rule that does not sample."""
    for number, size in enumerate(() if subject.declared.greedy_only else SIZES):
        for form in FORMS:
            pair = models(*size, subject.seed + number)
            yield step_of(pair, form) if points is None else step_of(pair, form, points)


def _greedy_drafts() -> Iterator[tuple[Proposal, Tensor]]:
    """Yield greedy drafts of different lengths, of which some tokens are the argmax."""
    for seed, width in enumerate((0, 1, 3)):
        generator = torch.Generator().manual_seed(seed)
        scores = torch.randn(60, width + 1, 5, generator=generator)
        keep = torch.rand(60, width, generator=generator) < 0.7
        drafts = torch.where(keep, scores[:, :width].argmax(dim=2), 2)
        yield Proposal(drafts, tuple(row % (width + 1) for row in range(60)), PointMass()), scores


def _answer(subject: RuleSubject, rule: AcceptanceRule, step: Step) -> AcceptanceResult:
    moved = [value.to(subject.device) for value in (step.p, step.uniforms)]
    proposal = _to(step.proposal, subject.device)
    return _checked(_did(step), proposal, moved[0], lambda: rule.sample(proposal, moved[0], None, moved[1]))


def _greedy(subject: RuleSubject, rule: AcceptanceRule, proposal: Proposal, scores: Tensor) -> AcceptanceResult:
    moved, there = _to(proposal, subject.device), scores.to(subject.device)
    did = f"verified greedy drafts of up to {proposal.tokens.shape[1]} tokens"
    return _checked(did, moved, there, lambda: rule.greedy(moved, there, None))


def _checked(did: str, proposal: Proposal, p: Tensor, call: Any) -> AcceptanceResult:
    """Return a rule's answer on the CPU.

    Raises:
        CheckFailure: It has the wrong form, or values out of range.
    """
    try:
        answer: AcceptanceResult = call()
        check_form(proposal, p, answer)
    except PluginError as error:
        raise CheckFailure(did, str(error).removesuffix(" Algorithm 1 takes its place."), "an answer") from error
    wrong = wrong_values(fetch(proposal, answer), p.shape[2])
    if wrong:
        raise CheckFailure(did, wrong, "accepted from 0 to each row's length, and a token of the vocabulary")
    fields = {name: value.cpu() for name, value in vars(answer).items() if isinstance(value, Tensor)}
    return replace(answer, **fields)


def _to(value: Any, device: str) -> Any:
    """Return a proposal or a q with its tensors on a device."""
    if device == "cpu":
        return value
    fields = {
        name: one.to(device) if isinstance(one, Tensor) else _to(one, device) if name == "q" else one
        for name, one in vars(value).items()
    }
    return replace(value, **fields)


def _did(step: Step) -> str:
    kind = "a point mass" if step.form == "point" else step.form
    vocab, gamma = step.models.vocab_size, step.models.gamma
    return f"verified every draft of {gamma} tokens from {vocab}, q {kind}"


def _require_declared(step: Step, found: StepDeviation) -> None:
    excess = found.measured - found.declared
    index = int(excess.argmax())
    if excess[index] > TOLERANCE:
        raise CheckFailure(
            _did(step),
            f"a total variation of {found.measured[index]:.4f} from the target at position {index + 1}, and a "
            f"reported deviation of {found.declared[index]:.4f}",
            "no more than the reported deviation",
            "`accept_allowed` computes it for rules that accept a set of tokens.",
        )


def _require_same(before: object, after: object) -> None:
    if not _equal(before, after):
        raise CheckFailure(
            "compared the arguments before and after",
            "they were changed",
            "the same values",
            "Use functions that return new tensors, not those that end in an underscore.",
        )


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return torch.equal(one, other)
    if isinstance(one, tuple):
        return all(map(_equal, one, other))
    fields = getattr(one, "__dict__", None)
    return (
        one == other if fields is None else all(_equal(value, vars(other)[key]) for key, value in fields.items())
    )
