"""Verification of a draft by the model: one forward pass, p, the acceptance rule, one transfer from the device.

Row b has n accepted draft tokens and one token that follows them: *recovered* after a rejection, else *bonus*.

References:
    Leviathan et al. 2023, Algorithm 1 and appendix A.5 (arXiv 2211.17192).
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from typing import Any

import torch
from torch import Tensor

from specdec_core.decoding.answer import Answered, answer_on_cpu, decide, fetch, wrong_values
from specdec_core.decoding.captured import replay
from specdec_core.decoding.guard import PluginGuard, opened
from specdec_core.decoding.rows import Row
from specdec_core.decoding.step import Oracle
from specdec_core.decoding.tree_draft import all_paths
from specdec_core.decoding.validation import FINE
from specdec_core.decoding.verification_record import verifications
from specdec_core.interface import (
    LAST_HIDDEN,
    AcceptanceRule,
    BatchInfo,
    LenienceController,
    LenienceSession,
    PluginError,
    Proposal,
    StepReport,
)
from specdec_core.interface.errors import NumericsError
from specdec_core.interface.outcome import Verification
from specdec_core.models import ModelSession
from specdec_core.models.device import uploaded
from specdec_core.sampling.generators import RowGenerators
from specdec_core.sampling.logits import LogitsToProbs
from specdec_core.verification import SpeculativeSampling

_LEAST_LENIENCE = float(torch.finfo(torch.float32).tiny)
"""Smaller numbers are 0 where drafts are verified."""


@dataclass(eq=False)
class ModelOracle(Oracle):
    """Answers the drafts of a batch with a model: the `Oracle` of decoding.

    Args:
        session: The model's cached forward pass.
        rule: The acceptance rule. One that fails is replaced by Algorithm 1.
        lenience: Decides how strictly drafts are verified; None for l = 1.
        to_probs: The model's sampling settings.
        generators: The sequences' random generators.
        batch: What controllers know about the batch.
        guard: Records plugin failures.
        reject: Called with one of the codes of `validation.FAULTS` where a draft turns out to be wrong.
        keep_open: Leave the cache open at the end: somebody else keeps it.

    Attributes:
        device: Where drafts are verified.
    """

    session: ModelSession
    rule: AcceptanceRule
    lenience: LenienceController | None
    to_probs: LogitsToProbs
    generators: RowGenerators
    batch: InitVar[BatchInfo]
    guard: PluginGuard
    reject: Callable[[int], None]
    keep_open: bool = field(default=False, kw_only=True)

    def __post_init__(self, batch: BatchInfo) -> None:
        self.device = self.session.device
        self._last_lenience: Sequence[Sequence[float]] = ((1.0,),) * batch.batch_size
        self._lenience_session: LenienceSession | None = None
        if self.lenience is not None:
            with self.guard.calling(self.lenience):
                self._lenience_session = opened(self.lenience.open(batch))
        self._hidden: Tensor | None = None  # [B, D], what the last token of each row was predicted from
        self._p: Tensor | None = None
        self._buffer: Tensor | None = None  # of all p, so that no step allocates megabytes
        self._answered: tuple[Any, ...] = ()  # the last answer's rows, proposal, logits, lenience and numbers
        self._paths: list[list[int]] | None = None

    @property
    def p(self) -> Tensor | None:
        """The model's adjusted distributions of the last step at each position, `[B, K + 1, V]` float32.

        They follow the last token committed before it, and each draft token; of a tree, each accepted one. None
        where they are one-hot (greedy).
        """
        if self._p is None or self._paths is None:
            return self._p
        longest = max(map(len, self._paths))
        columns = [[0, *(node + 1 for node in path), *[0] * (longest - len(path))] for path in self._paths]
        index = uploaded(columns, self._p.device)[..., None]
        return self._p.gather(1, index.expand(-1, -1, self._p.shape[2]))

    def hidden_states(self, rows: Sequence[Row]) -> Mapping[int, Tensor]:
        """Return the hidden states that drafters read, as `DraftRequest` has them; none where they are not known.

        After a rollback, or forced tokens, rows hold tokens whose predecessor the model has not read.
        """
        pairs = zip(rows, self.session.read, strict=True)
        if self._hidden is None or any(len(row.tokens) - n != 1 for row, n in pairs):
            return {}
        return {LAST_HIDDEN: self._hidden, **self.session.hidden_states}

    def room(self, rows: Sequence[Row]) -> list[int]:
        """Return how many tokens may be drafted for each row: none where too many are to be read first."""
        pairs = zip(rows, self.session.lengths, strict=True)
        return [0 if self.session.too_many(len(row.tokens) - cached) else row.room for row, cached in pairs]

    def waiting(self, rows: Sequence[Row]) -> Sequence[int]:
        """Return how many tokens of each row take the place of draft tokens, so that all rows share a pass.

        That is only where rows have to read equally many; then one that begins drafts nothing.
        """
        if not self.session.pairs_rows:
            return super().waiting(rows)
        pairs = zip(rows, self.session.lengths, strict=True)
        return [len(row.tokens) - cached - 1 if cached else row.limit for row, cached in pairs]

    def answer(self, rows: Sequence[Row], proposal: Proposal, faults: Tensor | None) -> Answered:
        """Run the model over a draft, and verify it; if it turns out to be wrong itself, as if there were none.

        Args:
            rows: The sequences.
            proposal: The draft `[B, K]`, on the device of the model.
            faults: `[B, K]`, a code of `validation` for each position; None if nothing can be wrong.

        Raises:
            NumericsError: The model's logits are not a distribution.
        """
        pairs = zip(rows, self.session.lengths, strict=True)
        uncached = [() if row.reason else row.tokens[cached:] for row, cached in pairs]
        lenience = self._next_lenience(proposal.tokens.shape[1])
        numbers = self._numbers(rows, proposal)
        captured = None
        if self.session.decides:
            rule = self.rule if type(self.rule) is not SpeculativeSampling else None
            given = proposal, faults, uncached, lenience, numbers
            captured = replay(self.session, self.to_probs, rule, *given, self.guard.note)
        if captured is not None:
            logits, self._p, answered = captured
        else:
            logits = self.session.forward(uncached, proposal.tokens, proposal.lengths, proposal.parents)
            answered = self._decide(self.rule, rows, proposal, logits, lenience, numbers, faults)
        if answered.fault != FINE:
            self.reject(answered.fault)
            proposal, logits, lenience = Proposal.empty(len(rows), logits.device), logits[:, :1], None
            numbers = self._numbers(rows, proposal)
            answered = self._decide(self.rule, rows, proposal, logits, None, numbers, None)
        for index, (row, sound) in enumerate(zip(rows, answered.sound, strict=True)):
            if not sound and row.reason is None:
                raise NumericsError(
                    f"the target's logits after {len(row.tokens)} tokens of row {index} are not a distribution: "
                    "NaN, infinity, or nothing left after filtering. Check the weights, the dtype (float16 "
                    "overflows where bfloat16 does not), custom logits processors, and a temperature close to 0 "
                    "(0 itself is greedy)."
                )
        self._paths = answered.paths
        self._answered = rows, proposal, logits, lenience, numbers
        return answered

    def record(self, answered: Answered) -> tuple[Verification, ...]:
        """Return the numbers that decided the last answer, before the rows grow."""
        rows, proposal, logits, lenience, numbers = self._answered
        p, exact = self._p, type(self.rule) is SpeculativeSampling
        if p is None:
            prefixes = _prefixes(rows, proposal) if self.to_probs.needs_prefix else None
            flat = logits.flatten(0, 1)
            one_hot = exact and lenience is None
            p = self.to_probs(flat, prefixes) if one_hot else self.to_probs.scores(flat, prefixes).softmax(1)
            p = p.view(logits.shape)
        return verifications(proposal, p, lenience, numbers, answered, algorithm_1=exact)

    def keep(self, rows: Sequence[Row], answered: Answered) -> None:
        """Roll back what was rejected: the rows have their new tokens.

        Args:
            rows: The sequences.
            answered: What `answer` returned.
        """
        session = self.session
        if session.hidden is not None:
            # The next token, recovered or bonus, was predicted from the hidden state of the last accepted one.
            index, columns = uploaded([[*range(len(rows))], answered.last], session.hidden.device)
            self._hidden = session.hidden[index, columns]
        if answered.paths is not None:
            session.keep(answered.paths)
        session.rollback([len(row.tokens) - 1 for row in rows])

    def rollback(self, lengths: Sequence[int]) -> None:
        """Keep only the first `lengths[b]` tokens of each row b."""
        self._hidden = None  # it may belong to a token that is gone
        self.session.rollback(lengths)

    def observe(self, report: StepReport) -> None:
        """Report the step to the lenience controller."""
        if self._lenience_session is not None:
            with self.guard.calling(self.lenience):
                self._lenience_session.observe(report)

    def close(self) -> None:
        """Free the cache."""
        if not self.keep_open:
            self.session.close()

    def _decide(
        self,
        rule: AcceptanceRule,
        rows: Sequence[Row],
        proposal: Proposal,
        logits: Tensor,
        lenience: list[list[float]] | None,
        numbers: list[list[float]],
        faults: Tensor | None,
    ) -> Answered:
        """Turn logits into p, apply the acceptance rule, and fetch its answer: the one synchronization of a step.

        A rule that fails costs speed, never a token: Algorithm 1 verifies the same draft with the same numbers.
        """
        prefixes = _prefixes(rows, proposal) if self.to_probs.needs_prefix else None
        flat = logits.flatten(0, 1)
        if self.to_probs.greedy:
            p, self._p = self.to_probs.scores(flat, prefixes).view(logits.shape), None
        else:
            p = self._p = self.to_probs(flat, prefixes, out=self._room_for(flat)).view(logits.shape)
        strict = lenience is None and type(rule) is SpeculativeSampling
        if strict and p.is_cpu and (proposal.parents is None or not numbers):
            return answer_on_cpu(proposal, p, numbers, faults)
        l_each = None if lenience is None else uploaded(lenience, p.device)
        uniforms = uploaded(numbers, p.device, torch.float64) if numbers else None
        if type(rule) is SpeculativeSampling:
            return fetch(proposal, decide(rule, proposal, p, l_each, uniforms), faults)
        with self.guard.calling(rule, self._use_algorithm_1):
            answered = fetch(proposal, decide(rule, proposal, p, l_each, uniforms), faults)
            if wrong := wrong_values(answered, p.shape[2]):
                raise PluginError(f"{wrong} Algorithm 1 takes its place.")
            if all(sound or row.reason for sound, row in zip(answered.sound, rows, strict=True)):
                return answered
        answered = self._decide(SpeculativeSampling(), rows, proposal, logits, lenience, numbers, faults)
        if self.rule is rule and all(answered.sound):
            unsound = "sound is False although the target's distribution is one. Algorithm 1 takes its place."
            self.guard.fail(rule, PluginError(unsound))
            self._use_algorithm_1()
        return answered

    def _room_for(self, logits: Tensor) -> Tensor:
        """Return memory for p of the same shape, which the next step overwrites."""
        if self._buffer is None or len(self._buffer) < len(logits):
            self._buffer = torch.empty_like(logits, dtype=torch.float32)
        return self._buffer if len(self._buffer) == len(logits) else self._buffer[: len(logits)]

    def _use_algorithm_1(self) -> None:
        self.rule = SpeculativeSampling()

    def _numbers(self, rows: Sequence[Row], proposal: Proposal) -> list[list[float]]:
        """Draw r_1 ... r_n of each row, and the number for its next token in the last of K + 1 columns.

        Nothing where the target decodes greedily.
        """
        if self.to_probs.greedy:
            return []
        width = proposal.tokens.shape[1]
        # A finished row consumes none: inside a hierarchy it resumes later, whatever its neighbors did.
        counts = [0 if row.reason else n + 1 for row, n in zip(rows, proposal.lengths, strict=True)]
        drawn = self.generators.numbers(counts, width + 1)
        for numbers, n in zip(drawn, proposal.lengths, strict=True):
            numbers[width] = numbers[n]  # r beyond a draft is never used
        return drawn

    def _next_lenience(self, width: int) -> list[list[float]] | None:
        """Return l of each position of a draft of this width, `[B][width]`; None where all are 1."""
        if self._lenience_session is None or not width:
            return None
        with self.guard.calling(self.lenience):
            self._last_lenience = checked_lenience(self._lenience_session.lenience(), len(self._last_lenience))
        rows = tuple((*row[:width], *[row[-1]] * (width - len(row))) for row in self._last_lenience)
        return list(map(list, rows)) if any(value < 1 for row in rows for value in row) else None


def checked_lenience(asked: Sequence[float | Sequence[float]], count: int) -> tuple[tuple[float, ...], ...]:
    """Return l of each row, as a lenience controller asks for it.

    Args:
        asked: A number for each row, or numbers for the positions of its draft.
        count: Number of rows.

    Raises:
        PluginError: It asks for something else.
    """
    given = tuple(asked)
    rows = tuple(tuple(map(float, row)) if isinstance(row, Sequence) else (float(row),) for row in given)
    if len(rows) == count and all(row and all(_LEAST_LENIENCE <= x <= 1 for x in row) for row in rows):
        return rows
    raise PluginError(
        f"lenience {reprlib.repr(list(given))} was asked for; expected, for each of {count} rows, a number in "
        "(0, 1] or a sequence of them. The last valid lenience is used."
    )


def _prefixes(rows: Sequence[Row], proposal: Proposal) -> list[list[int]]:
    """Return the prefix of every verified position, row by row."""
    drafts = proposal.tokens.tolist()
    if proposal.parents is not None:
        trees = zip(rows, drafts, proposal.parents.tolist(), strict=True)
        return [row.tokens + path for row, *tree in trees for path in all_paths(*tree)]
    width = proposal.tokens.shape[1]
    return [row.tokens + draft[:n] for row, draft in zip(rows, drafts, strict=True) for n in range(width + 1)]
