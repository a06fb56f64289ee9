"""Verification of one step's draft: p, the acceptance rule, and one transfer from the device.

Row b has n accepted draft tokens and one token that follows them: *recovered* after a rejection, else *bonus*.

References:
    Leviathan et al. 2023, Algorithm 1 and appendix A.5 (arXiv 2211.17192).
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specdec_core.decoding.drafting.tree_draft import all_paths
from specdec_core.decoding.guard.guarded_rule import GuardedRule
from specdec_core.decoding.guard.plugin_guard import PluginGuard, opened
from specdec_core.decoding.row import Row
from specdec_core.interface import (
    AcceptanceRule,
    BatchInfo,
    LenienceController,
    LenienceSession,
    PluginError,
    Proposal,
    StepReport,
)
from specdec_core.interface.errors import NumericsError
from specdec_core.models.device import fetched, uploaded
from specdec_core.sampling.generators import RowGenerators
from specdec_core.sampling.logits import LogitsToProbs
from specdec_core.verification import AcceptanceResult

_UNIT = 2.0**-40
"""Deviations are fetched from the device as multiples of this, in the same int64 tensor as token ids."""
_LEAST_LENIENCE = float(torch.finfo(torch.float32).tiny)
"""Smaller numbers are 0 where drafts are verified."""


@dataclass(frozen=True)
class Verified:
    """The outcome of verification, fetched from the device; a list entry per row.

    Attributes:
        lengths: Number of draft tokens; 0 in all rows if the draft turned out to be wrong.
        draft: The draft tokens.
        accepted: n of Algorithm 1.
        token: The recovered or bonus token.
        deviation: What lenience costs at each draft token; empty where l = 1.
        parents: The parent of each draft token; None for lines.
        paths: The numbers of the accepted draft tokens; None for lines.
        last: `[B]` int64 on the device, the column of logits that the next token was drawn from.
    """

    lengths: tuple[int, ...]
    draft: list[list[int]]
    accepted: list[int]
    token: list[int]
    deviation: list[list[float]]
    parents: list[list[int]] | None
    paths: list[list[int]] | None
    last: Tensor

    def tokens(self, row: int) -> list[int]:
        """Return the accepted tokens of a row and the one that follows them."""
        draft = self.draft[row]
        accepted = draft[: self.accepted[row]] if self.paths is None else [draft[node] for node in self.paths[row]]
        return [*accepted, self.token[row]]


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

    @property
    def p(self) -> Tensor | None:
        """The target's adjusted distributions of the last step at each position, `[B, K + 1, V]` float32.

        They follow the last token committed before it, and each draft token; of a tree, each accepted one. None
        where they are one-hot (greedy).
        """
        if self._p is None or self._path is None:
            return self._p
        return self._p.gather(1, _columns(self._path)[..., None].expand(-1, -1, self._p.shape[2]))

    def verify(self, rows: Sequence[Row], proposal: Proposal, logits: Tensor, faults: Tensor | None) -> Verified:
        """Verify a draft; if it turns out to be wrong itself, continue as if there had been none.

        Args:
            rows: The sequences.
            proposal: The draft `[B, K]`, on the device of the logits.
            logits: `[B, K + 1, V]`, the target's, after the last committed token and each draft token.
            faults: `[B]` int64, what is wrong with the draft; None if nothing can be.

        Raises:
            NumericsError: The logits are not a distribution.
        """
        fault, sound, verified = self._fetch(proposal, self._accept(rows, proposal, logits), faults)
        if any(fault):
            self._reject(max(fault))
            proposal = Proposal.empty(len(rows), logits.device)
            _, sound, verified = self._fetch(proposal, self._accept(rows, proposal, logits[:, :1]), None)
        answer = self._rule.instead(sound, [row.reason is not None for row in rows])
        if answer is not None:
            _, sound, verified = self._fetch(proposal, answer, None)
        for index, (row, is_sound) in enumerate(zip(rows, sound, strict=True)):
            if not is_sound and row.reason is None:
                raise NumericsError(
                    f"the target's logits after {len(row.tokens)} tokens of row {index} are not a distribution: "
                    "NaN, infinity, or nothing left after filtering. Check the weights, the dtype (float16 "
                    "overflows where bfloat16 does not), custom logits processors, and a temperature close to 0 "
                    "(0 itself is greedy)."
                )
        return verified

    def observe(self, report: StepReport) -> None:
        """Report the step to the lenience controller."""
        if self._session is not None:
            with self._guard.calling(self._lenience):
                self._session.observe(report)

    def _accept(self, rows: Sequence[Row], proposal: Proposal, logits: Tensor) -> AcceptanceResult:
        """Apply the acceptance rule, with each row's own lenience and random numbers."""
        batch, width = proposal.tokens.shape
        prefixes = _prefixes(rows, proposal) if self._to_probs.needs_prefix else None
        flat = logits.reshape(batch * (width + 1), -1)
        l_each = self._next_lenience(width)
        lenience = None if l_each is None else uploaded(l_each, logits.device)
        if self._to_probs.greedy:
            self._p = None
            scores = self._to_probs.scores(flat, prefixes).view(batch, width + 1, -1)
            return self._rule.greedy(proposal, scores, lenience)
        self._p = self._to_probs(flat, prefixes).view(batch, width + 1, -1)
        return self._rule.sample(proposal, self._p, lenience, self._uniforms(rows, proposal))

    def _uniforms(self, rows: Sequence[Row], proposal: Proposal) -> Tensor:
        """Draw r_1 ... r_n of each row, and the number for its next token in the last column, `[B, K + 1]`."""
        width = proposal.tokens.shape[1]
        # A finished row consumes none: inside a hierarchy it resumes later, whatever its neighbours did.
        counts = [0 if row.reason else n + 1 for row, n in zip(rows, proposal.lengths, strict=True)]
        drawn = self._generators.numbers(counts, width + 1)
        for numbers, n in zip(drawn, proposal.lengths, strict=True):
            numbers[width] = numbers[n]  # r beyond a draft is never used
        return uploaded(drawn, proposal.tokens.device, torch.float64)

    def _fetch(
        self, proposal: Proposal, result: AcceptanceResult, faults: Tensor | None
    ) -> tuple[list[int], list[int], Verified]:
        """Fetch the result from the device: the one synchronisation of a step.

        Returns:
            What is wrong with the draft, or nothing if nothing can be; whether each token was drawn from a
            distribution, or the codes of `GuardedRule`; and the rest.
        """
        deviation = None if result.deviation is None else (result.deviation.double() / _UNIT).round().long()
        self._path = None if proposal.parents is None else result.path
        optional = (faults, deviation, proposal.parents, self._path)
        accepted, token, sound, draft, *others = fetched(
            result.accepted, result.token, result.sound, proposal.tokens, *(p for p in optional if p is not None)
        )
        others.reverse()
        fault, costs, parents, paths = (None if part is None else others.pop() for part in optional)
        last = result.accepted
        if self._path is not None:
            last = _columns(self._path).gather(1, last[:, None])[:, 0]
        lengths = proposal.lengths
        verified = Verified(
            lengths=lengths,
            draft=cut(draft, lengths),
            accepted=accepted,
            token=token,
            deviation=[] if costs is None else [[_UNIT * one for one in row] for row in cut(costs, lengths)],
            parents=None if parents is None or paths is None else cut(parents, lengths),
            paths=None if paths is None else cut(paths, accepted),
            last=last,
        )
        return fault or [], sound, verified

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


def cut(rows: Sequence[list[int]], lengths: Sequence[int]) -> list[list[int]]:
    """Return the first `lengths[b]` entries of each row b."""
    return [row[:length] for row, length in zip(rows, lengths, strict=True)]


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
