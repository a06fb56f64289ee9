"""Checks of acceptance rules, by enumeration on a few tokens and in the decoding loop."""

import copy
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from specdec_core.decoding.answer import check_form, fetch, wrong_values
from specdec_core.decoding.decoder import Decoder
from specdec_core.interface import AcceptanceResult, AcceptanceRule, PluginError, PointMass, Proposal, RuleConfig
from specdec_core.interface.settings import SamplingSettings
from specdec_core.testing.failures import CheckFailure, calling
from specdec_core.testing.harness.enumeration import continuations, require_distribution
from specdec_core.testing.harness.rule_distribution import (
    FORMS,
    POINTS,
    TOLERANCE,
    Step,
    deviation_of,
    models,
    replay_error,
    step_of,
)
from specdec_core.testing.harness.state import equal, global_state
from specdec_core.testing.harness.toys import Gamma, TableDrafter
from specdec_core.testing.kit import Kit
from specdec_core.verification import accept_greedy

SIZES = ((4, 0), (4, 1), (4, 2), (3, 3), (3, 2))
"""Vocabulary and gamma of the models that are enumerated."""
FEW = 16
"""Points for checks that measure no distribution."""
_SAMPLED = SamplingSettings(temperature=0.8)


class RuleKit(Kit):
    """Checks of acceptance rules. Each requires answers of the right shapes and types, with values in range."""

    kind = "rule"

    def fresh(self) -> AcceptanceRule:
        """Build the rule."""
        rule: AcceptanceRule = self.build(AcceptanceRule)  # type: ignore[type-abstract]
        if not isinstance(rule.config, RuleConfig):
            got = f"settings of type {type(rule.config).__name__}"
            hint = "They declare where the rule is lossless, and whether it takes lenience."
            raise CheckFailure("built the rule and read its config", got, "a RuleConfig", hint)
        return rule

    @property
    def declared(self) -> Any:
        """The rule's settings, with what they declare."""
        return self.once("declared", lambda: self.fresh().config)

    def _skip_unless(self, applies: bool, reason: str) -> None:
        if not applies:
            pytest.skip(reason)

    def test_answers(self) -> None:
        """It accepts at most a row's length, draws a token of the vocabulary, and changes no input."""
        rule = self.fresh()
        for step in self._steps(FEW):
            self._answer(rule, step)
            self._answer(rule, _ragged(step))
        for proposal, scores in _greedy_drafts():
            self._greedy(rule, proposal, scores)

    def test_distribution(self) -> None:
        """After every accepted prefix, the next token has the target's distribution, for every form of q.

        If it does not declare itself lossless, it deviates by no more than the `deviation` that it reports.
        """
        rule = self.fresh()
        for step in self._steps():
            found = deviation_of(step, self._answer(rule, step))
            allowed = torch.zeros_like(found.declared) if self.declared.lossless else found.declared
            index = int((found.measured - allowed).argmax())
            if found.measured[index] - allowed[index] > TOLERANCE:
                raise CheckFailure(
                    _did(step),
                    f"a total variation of {found.measured[index]:.4f} from the target at position {index + 1}",
                    f"at most {allowed[index]:.4f}, as it declares (up to {TOLERANCE:g}, the precision of the "
                    "enumeration)",
                    "The token after them must make up for what they take: norm(max(0, p - q)) in Algorithm 1. "
                    "`accept_allowed` computes the deviation of rules that accept a set of tokens.",
                )

    def test_replay_as_declared(self) -> None:
        """If it declares `replays_from`, `acceptance_given_text` is what it accepts, given what it emits."""
        self._skip_unless(bool(self.declared.replays_from), "its settings do not declare `replays_from`")
        rule = self.fresh()
        for step in self._steps():
            found = replay_error(step, self._answer(rule, step), rule)
            if not bool((found <= TOLERANCE).all()):
                index = int(found.nan_to_num(nan=torch.inf).argmax())
                raise CheckFailure(
                    f"{_did(step)}, and asked for the acceptance given each text",
                    f"at position {index + 1} it is {found[index]:.4f} from what was accepted",
                    f"no difference (up to {TOLERANCE:g}, the precision of the enumeration)",
                    "It is P(accepted and y emitted) / P(y emitted), given that all before y was accepted.",
                )

    def test_lossless_greedy(self) -> None:
        """In greedy decoding it accepts draft tokens while they are the argmax, and the argmax follows."""
        exact = self.declared.lossless_for(greedy=True)
        self._skip_unless(exact, "its settings declare it lossy in greedy decoding")
        rule = self.fresh()
        for proposal, scores in _greedy_drafts():
            got, expected = self._greedy(rule, proposal, scores), accept_greedy(proposal, scores, None)
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

    def test_deviation_greedy(self) -> None:
        """In greedy decoding it reports a deviation of at least 1 for an accepted token that is not the argmax."""
        exact = self.declared.lossless_for(greedy=True)
        self._skip_unless(not exact, "its settings declare it lossless in greedy decoding")
        rule = self.fresh()
        for proposal, scores in _greedy_drafts():
            got = self._greedy(rule, proposal, scores)
            width = proposal.tokens.shape[1]
            kept = torch.arange(width) < got.accepted[:, None]
            other = kept & (proposal.tokens != scores[:, :width].argmax(dim=2))
            reported = torch.zeros(other.shape) if got.deviation is None else got.deviation
            if (other & (reported < 1)).any():
                found = "an accepted token that is not the argmax, with a deviation of less than 1"
                hint = "`accept_greedy_allowed` reports it."
                raise CheckFailure("verified greedy drafts", found, "a deviation of 1 there", hint)

    def test_rows_independent(self) -> None:
        """A row's answer depends neither on the other rows nor on what lies beyond its length."""
        rule = self.fresh()
        for step in self._steps(FEW):
            count, width = step.proposal.tokens.shape
            ragged = _ragged(step)
            mixed = self._answer(rule, ragged)
            for length in range(width + 1):
                rows = torch.tensor([row for row in range(count) if ragged.proposal.lengths[row] == length])
                tokens, p, uniforms = step.proposal.tokens.clone(), step.p.clone(), step.uniforms.clone()
                tokens[:, length:] = step.models.vocab_size - 1
                p[:, length + 1 :] = 1 / step.models.vocab_size
                uniforms[:, length:width] = 0.5
                proposal = replace(step.proposal, tokens=tokens, lengths=(length,) * count)
                answer = self._answer(rule, replace(step, proposal=proposal, p=p, uniforms=uniforms))
                for name in ("accepted", "token"):
                    if not torch.equal(getattr(answer, name)[rows], getattr(mixed, name)[rows]):
                        raise CheckFailure(
                            f"{_did(step)}; some of them cut to {length}, with other rows and other padding",
                            f"another `{name}`",
                            "the same: a row's answer depends on that row up to its length",
                            "Mask positions from `proposal.lengths` on, as `count_accepted` does.",
                        )

    def test_deterministic(self) -> None:
        """Equal inputs give equal answers."""
        rule = self.fresh()
        for step in self._steps(FEW):
            first, second = (self._answer(rule, step) for _ in range(2))
            if not (torch.equal(first.accepted, second.accepted) and torch.equal(first.token, second.token)):
                hint = "Compare with `uniforms`, and draw with `draw_next`; keep no state."
                raise CheckFailure(f"{_did(step)}, twice", "two different answers", "the same answer", hint)

    def test_global_state_unchanged(self) -> None:
        """It leaves random generators, torch's settings and the process alone."""
        steps, drafts = list(self._steps(FEW)), list(_greedy_drafts())
        before = global_state()
        rule = self.fresh()
        for step in steps:
            self._answer(rule, step)
        for proposal, scores in drafts:
            self._greedy(rule, proposal, scores)
        self.require_globals_unchanged("verified drafts", before)

    def test_decodes(self) -> None:
        """A decoder with this rule runs to the end, and is lossless if the rule is; sampled and greedy."""
        target, config = self.target, self.declared
        for sampling in (_SAMPLED, SamplingSettings(temperature=0)):
            if config.greedy_only and not sampling.greedy:
                continue
            drafter, gamma = TableDrafter(target.info.vocab_size), Gamma(3, 0, 2)
            made = Decoder(target.loaded, drafter, gamma=gamma, rule=self.fresh(), sampling=sampling, strict=True)
            where = f"at temperature {sampling.temperature:g}"
            if config.lossless_for(greedy=sampling.greedy):
                expected = continuations(target.loaded, sampling)
                require_distribution(
                    made, expected, where, batch=250, min_count=1000, max_count=4000, seed=self.seed
                )
            else:
                with calling(f"decoded {where}"):
                    made.generate([[2, 3], [3]], max_new_tokens=6)

    def _steps(self, points: int = POINTS) -> Iterator[Step]:
        """Yield all drafts of several models in every form of q; none for a rule that does not sample."""
        for number, size in enumerate(() if self.declared.greedy_only else SIZES):
            for form in FORMS:
                yield step_of(models(*size, self.seed + number), form, points)

    def _answer(self, rule: AcceptanceRule, step: Step) -> AcceptanceResult:
        proposal, p, uniforms = _to((step.proposal, step.p, step.uniforms), self.device)
        return _checked(_did(step), rule.sample, proposal, p, None, uniforms)

    def _greedy(self, rule: AcceptanceRule, proposal: Proposal, scores: Tensor) -> AcceptanceResult:
        did = f"verified greedy drafts of up to {proposal.tokens.shape[1]} tokens"
        return _checked(did, rule.greedy, *_to((proposal, scores), self.device), None)


def _ragged(step: Step) -> Step:
    """Return a step whose drafts have different lengths."""
    count, width = step.proposal.tokens.shape
    lengths = tuple(row % (width + 1) for row in range(count))
    return replace(step, proposal=replace(step.proposal, lengths=lengths))


def _greedy_drafts() -> Iterator[tuple[Proposal, Tensor]]:
    """Yield greedy drafts of different lengths, of which some tokens are the argmax."""
    for seed, width in enumerate((0, 1, 3)):
        generator = torch.Generator().manual_seed(seed)
        scores = torch.randn(60, width + 1, 5, generator=generator)
        keep = torch.rand(60, width, generator=generator) < 0.7
        drafts = torch.where(keep, scores[:, :width].argmax(dim=2), 2)
        yield Proposal(drafts, tuple(row % (width + 1) for row in range(60)), PointMass()), scores


def _checked(did: str, rule: Callable[..., AcceptanceResult], *given: Any) -> AcceptanceResult:
    """Return a rule's answer on the CPU; fail if it is wrong, or an argument has changed."""
    expected = "an AcceptanceResult: accepted [B], from 0 to each row's length, and token [B], of the vocabulary"
    before, (proposal, p, *_) = copy.deepcopy(given), given
    with calling(did, expected):
        answer = rule(*given)
        check_form(proposal, p, answer)
        wrong = wrong_values(fetch(proposal, answer), p.shape[2])
        if wrong:
            raise PluginError(wrong)
    if not equal(before, given):
        hint = "Use functions that return new tensors, not those that end in an underscore."
        raise CheckFailure(did, "an argument was changed", "the same values", hint)
    return _to(answer, "cpu")  # type: ignore[no-any-return]


def _to(value: Any, device: str) -> Any:
    """Return a value with its tensors on a device."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, tuple):
        return tuple(_to(one, device) for one in value)
    if is_dataclass(value) and not isinstance(value, type):
        parts = [field.name for field in fields(value) if field.init]
        return replace(value, **{name: _to(getattr(value, name), device) for name in parts})
    return value


def _did(step: Step) -> str:
    kind = "a point mass" if step.form == "point" else step.form
    vocab, gamma = step.models.vocab_size, step.models.gamma
    return f"verified every draft of {gamma} tokens from {vocab}, q {kind}"
