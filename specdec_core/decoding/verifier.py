"""Verification of one step's draft: p, the acceptance rule, and one transfer from the device.

Row b has n accepted draft tokens and one token that follows them: *recovered* after a rejection, else *bonus*.

References:
    Leviathan et al. 2023, Algorithm 1 and appendix A.5 (arXiv 2211.17192).
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from specdec_core.decoding.decision import (
    Best,
    CapturedDecision,
    Checked,
    Verified,
    decide,
    fetched_parts,
    parts_to_fetch,
    read,
)
from specdec_core.decoding.drafting.tree_draft import all_paths
from specdec_core.decoding.drafting.validation import FINE
from specdec_core.decoding.guard import PluginGuard, opened
from specdec_core.decoding.guarded_rule import GuardedRule
from specdec_core.decoding.row import Row
from specdec_core.decoding.verification_record import verifications
from specdec_core.interface import (
    AcceptanceRule,
    BatchInfo,
    Dense,
    LenienceController,
    LenienceSession,
    PluginError,
    PointMass,
    Proposal,
    StepReport,
)
from specdec_core.interface.errors import NumericsError
from specdec_core.interface.outcome import Verification
from specdec_core.models import ModelSession
from specdec_core.models.device import uploaded
from specdec_core.models.fast.static_step import Decision
from specdec_core.sampling.generators import RowGenerators
from specdec_core.sampling.logits import PREFIX_READERS, LogitsToProbs
from specdec_core.verification import AcceptanceResult

_LEAST_LENIENCE = float(torch.finfo(torch.float32).tiny)
"""Smaller numbers are 0 where drafts are verified."""


class Verifier:
    """Verifies the drafts of one batch.

    Args:
        rule: The acceptance rule.
        lenience: Decides how strictly drafts are verified; None for l = 1.
        to_probs: The target's sampling settings.
        generators: The sequences' random generators.
        batch: What controllers know about the batch.
        guard: Records plugin failures.
        reject: Called with one of the codes of `validation.FAULTS` where a draft turns out to be wrong.

    Attributes:
        recording: Whether `recorded` will be called after each step.
    """

    def __init__(
        self,
        rule: AcceptanceRule,
        lenience: LenienceController | None,
        to_probs: LogitsToProbs,
        generators: RowGenerators,
        batch: BatchInfo,
        guard: PluginGuard,
        reject: Callable[[int], None],
    ) -> None:
        self._rule = GuardedRule(rule, guard)
        self._lenience = lenience
        self._to_probs = to_probs
        self._generators = generators
        self._guard = guard
        self._reject = reject
        self._last_lenience: Sequence[Sequence[float]] = ((1.0,),) * batch.batch_size
        self._session: LenienceSession | None = None
        if lenience is not None:
            with guard.calling(lenience):
                self._session = opened(lenience.open(batch))
        self._p: Tensor | None = None
        self._path: Tensor | None = None
        self.recording = False
        self._decided: tuple[Proposal, Tensor, list[list[float]] | None, list[list[float]]] | None = None

    @property
    def p(self) -> Tensor | None:
        """The target's adjusted distributions of the last step at each position, `[B, K + 1, V]` float32.

        They follow the last token committed before it, and each draft token; of a tree, each accepted one. None
        where they are one-hot (greedy).
        """
        if self._p is None or self._path is None:
            return self._p
        return self._p.gather(1, _columns(self._path)[..., None].expand(-1, -1, self._p.shape[2]))

    def verify(
        self,
        rows: Sequence[Row],
        proposal: Proposal,
        faults: Tensor | None,
        target: ModelSession,
        uncached: Sequence[Sequence[int]],
    ) -> Verified:
        """Run the target over a draft, and verify it; if it turns out to be wrong itself, as if there were none.

        Args:
            rows: The sequences.
            proposal: The draft `[B, K]`, on the device of the target.
            faults: `[B, K]`, a code of `validation` for each position; None if nothing can be wrong.
            target: The target's cached forward pass.
            uncached: For each row, its committed tokens that the target has not read.

        Raises:
            NumericsError: The target's logits are not a distribution.
        """
        lenience = self._next_lenience(proposal.tokens.shape[1])
        numbers = self._numbers(rows, proposal)
        captured = self._replay(proposal, faults, target, uncached, lenience, numbers)
        if captured is None:
            logits = target.forward(uncached, proposal.tokens, proposal.lengths, proposal.parents)
            answer, self._p = self._accept(rows, proposal, logits, lenience, numbers)
            fault, sound, verified = self._fetch(proposal, answer, faults)
        else:
            logits, (fault, sound, verified) = captured
        if fault != FINE:
            self._reject(fault)
            proposal, logits, lenience = Proposal.empty(len(rows), logits.device), logits[:, :1], None
            numbers = self._numbers(rows, proposal)
            answer, self._p = self._accept(rows, proposal, logits, None, numbers)
            _, sound, verified = self._fetch(proposal, answer, None)
        instead = self._rule.instead(verified, sound, [row.reason is not None for row in rows])
        if instead is not None:
            _, sound, verified = self._fetch(proposal, instead, None)
        for index, (row, is_sound) in enumerate(zip(rows, sound, strict=True)):
            if not is_sound and row.reason is None:
                raise NumericsError(
                    f"the target's logits after {len(row.tokens)} tokens of row {index} are not a distribution: "
                    "NaN, infinity, or nothing left after filtering. Check the weights, the dtype (float16 "
                    "overflows where bfloat16 does not), custom logits processors, and a temperature close to 0 "
                    "(0 itself is greedy)."
                )
        if self.recording:
            self._decided = proposal, logits, lenience, numbers
        return verified

    def recorded(self, rows: Sequence[Row], verified: Verified) -> tuple[Verification, ...]:
        """Return the numbers that decided the last step, before the rows grow.

        Args:
            rows: The sequences.
            verified: What `verify` returned.
        """
        assert self._decided is not None
        proposal, logits, lenience, numbers = self._decided
        p, exact = self._p, self._rule.algorithm_1
        if p is None:
            prefixes = _prefixes(rows, proposal) if self._to_probs.needs_prefix else None
            flat = logits.flatten(0, 1)
            if exact and lenience is None:
                p = self._to_probs(flat, prefixes).view(logits.shape)
            else:
                p = self._to_probs.scores(flat, prefixes).softmax(1).view(logits.shape)
        return verifications(proposal, p, lenience, numbers, verified, algorithm_1=exact)

    def observe(self, report: StepReport) -> None:
        """Report the step to the lenience controller."""
        if self._session is not None:
            with self._guard.calling(self._lenience):
                self._session.observe(report)

    def _accept(
        self,
        rows: Sequence[Row],
        proposal: Proposal,
        logits: Tensor,
        lenience: list[list[float]] | None,
        numbers: list[list[float]],
    ) -> tuple[AcceptanceResult | Best, Tensor | None]:
        """Apply the acceptance rule, with each row's own lenience and random numbers; see `decide`."""
        device = logits.device
        return decide(
            self._rule,
            self._to_probs,
            proposal,
            logits,
            None if lenience is None else uploaded(lenience, device),
            lambda: uploaded(numbers, device, torch.float64),
            _prefixes(rows, proposal) if self._to_probs.needs_prefix else None,
            algorithm_1=self._rule.algorithm_1,
        )

    def _replay(
        self,
        proposal: Proposal,
        faults: Tensor | None,
        target: ModelSession,
        uncached: Sequence[Sequence[int]],
        lenience: list[list[float]] | None,
        numbers: list[list[float]],
    ) -> tuple[Tensor, Checked] | None:
        """Run the target and apply Algorithm 1 in one captured function.

        Returns:
            Logits `[B, K + 1, V]`, and what `read` returns; None where it has to be done eagerly.
        """
        if not target.decides:
            return None
        reason = self._why_eager(proposal)
        if reason is not None:
            self._guard.note(f"compile: {reason}, so that drafts are verified after a captured pass, not in it.")
            return None
        width = proposal.tokens.shape[1]
        tensors = [proposal.q.probabilities] if isinstance(proposal.q, Dense) else []
        dense = bool(tensors)
        if faults is not None:
            tensors.append(faults)
        known = [[[row[-1], *row[:-1]] for row in numbers]] if numbers else []
        known += [] if lenience is None else [lenience]
        function = CapturedDecision(self._to_probs.settings, dense, faults is not None, lenience is not None)
        wanted = Decision(function, known, tensors, proposal.origin.captured)
        found = target.decide(uncached, proposal.tokens, proposal.lengths, wanted)
        if found is None:
            return None
        logits, (whole, *p) = found
        self._p = p[0][:, : width + 1] if p else None
        self._path = None
        return logits, read(function.fetched_parts(whole), proposal.lengths)

    def _why_eager(self, proposal: Proposal) -> str | None:
        """Return why a draft cannot be verified in a captured function, or None."""
        if not self._to_probs.settings_only:
            return PREFIX_READERS
        if not self._rule.algorithm_1:
            return f"{self._rule.name} is not the rule of Algorithm 1"
        if proposal.parents is not None:
            return "token trees have many shapes"
        if not isinstance(proposal.q, PointMass | Dense):
            return "the drafter gives q on a few tokens, whose number differs"
        return None

    def _numbers(self, rows: Sequence[Row], proposal: Proposal) -> list[list[float]]:
        """Draw r_1 ... r_n of each row, and the number for its next token in the last of K + 1 columns.

        Nothing where the target decodes greedily.
        """
        if self._to_probs.greedy:
            return []
        width = proposal.tokens.shape[1]
        # A finished row consumes none: inside a hierarchy it resumes later, whatever its neighbors did.
        counts = [0 if row.reason else n + 1 for row, n in zip(rows, proposal.lengths, strict=True)]
        drawn = self._generators.numbers(counts, width + 1)
        for numbers, n in zip(drawn, proposal.lengths, strict=True):
            numbers[width] = numbers[n]  # r beyond a draft is never used
        return drawn

    def _fetch(self, proposal: Proposal, result: AcceptanceResult | Best, faults: Tensor | None) -> Checked:
        """Fetch the result from the device: the one synchronization of a step."""
        self._path = None if proposal.parents is None or isinstance(result, Best) else result.path
        return read(fetched_parts(parts_to_fetch(proposal, result, faults)), proposal.lengths)

    def _next_lenience(self, width: int) -> list[list[float]] | None:
        """Return l of each position of a draft of this width, `[B][width]`; None where all are 1."""
        if self._session is None or not width:
            return None
        with self._guard.calling(self._lenience):
            self._last_lenience = self._legal_lenience(self._session.lenience())
        rows = [[*row[:width], *[row[-1]] * (width - len(row))] for row in self._last_lenience]
        return rows if any(value < 1 for row in rows for value in row) else None

    def _legal_lenience(self, asked: Sequence[float | Sequence[float]]) -> Sequence[Sequence[float]]:
        batch = len(self._last_lenience)
        given = tuple(asked)
        rows = tuple(tuple(map(float, row)) if isinstance(row, Sequence) else (float(row),) for row in given)
        legal = all(row and all(_LEAST_LENIENCE <= x <= 1 for x in row) for row in rows)
        if len(rows) != batch or not legal:
            raise PluginError(
                f"lenience {reprlib.repr(list(given))} was asked for; expected, for each of {batch} rows, a "
                "number in (0, 1] or a sequence of them. The last valid lenience is used."
            )
        return rows


def _columns(path: Tensor) -> Tensor:
    """Return the columns of logits along the accepted paths of a tree, `[B, K + 1]`: column 0, then the nodes'."""
    return torch.cat([torch.zeros_like(path[:, :1]), path + 1], dim=1)


def _prefixes(rows: Sequence[Row], proposal: Proposal) -> list[list[int]]:
    """Return the prefix of every verified position, row by row."""
    drafts = proposal.tokens.tolist()
    if proposal.parents is not None:
        trees = zip(rows, drafts, proposal.parents.tolist(), strict=True)
        return [row.tokens + path for row, *tree in trees for path in all_paths(*tree)]
    return [
        row.tokens + draft[:position]
        for row, draft in zip(rows, drafts, strict=True)
        for position in range(proposal.tokens.shape[1] + 1)
    ]
