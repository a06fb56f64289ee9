"""Forced drafts: a drafter drafts the tokens of a recorded text, and the core keeps the q that it gave them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from specdec_core.decoding.drafting import DraftRecorder
from specdec_core.decoding.loop import InnerLoop, LoopContext
from specdec_core.decoding.row import Row
from specdec_core.interface import (
    AcceptanceResult,
    AcceptanceRule,
    Candidates,
    Drafter,
    GammaController,
    PluginError,
    Proposal,
    RuleConfig,
    SessionInfo,
    StepReport,
)
from specdec_core.models import LoadedModel
from specdec_core.sampling.candidates import TemperedCandidates
from specdec_core.sampling.generators import draw_with_total
from specdec_core.sampling.logits import argmax

UNKNOWN = -1
"""Stands for a token beyond the end of a text, where drafts are free."""


def following(text: Sequence[int], length: int, count: int) -> list[int]:
    """Return the next tokens of a text after its first `length`, `UNKNOWN` beyond its end."""
    known = list(text[length : length + count])
    return known + [UNKNOWN] * (count - len(known))


class ForcedRecorder(DraftRecorder):
    """A request that answers every draw with the next token of a recorded text, and keeps the q of that token.

    Where drafts are greedy, the drafter is given the text's token too, and the record keeps the argmax: the draft
    that would have been made. Beyond the end of a text, tokens are drawn as ever.

    Args:
        texts: The whole sequences, prompts first.
        *args: See `DraftRecorder`.

    Attributes:
        reach: How many tokens of each sequence's draft are forced; None for as many as the text has.
    """

    reach: Sequence[int] | None = None

    def __init__(self, texts: Sequence[Sequence[int]], *args: Any) -> None:
        self._texts = texts
        super().__init__(*args)

    def start(self, tokens: Sequence[Sequence[int]], budget: tuple[int, ...], *args: Any, **keywords: Any) -> None:
        """Discard the last step's draft and start another, along the texts."""
        super().start(tokens, budget, *args, **keywords)
        width = max(budget)
        counts = [width] * len(budget) if self.reach is None else [min(n, width) for n in self.reach]
        rows = zip(self._texts, tokens, counts, strict=bool(tokens))
        self._ahead = [following(text, len(row), count) + [UNKNOWN] * (width - count) for text, row, count in rows]
        # [K, B]: the tokens of all sequences at each place of the draft.
        self._columns = torch.tensor(self._ahead, dtype=torch.long, device=self._device).view(-1, max(width, 1)).T

    def sample(self, logits: Tensor) -> Tensor:
        """See `DraftRequest.sample`."""
        token = super().sample(logits)
        if not self._to_probs.greedy:
            return token
        return self._forced(token.to(self._device), len(self._record) - 1).to(logits.device)

    def drew(self, proposal: Proposal) -> bool:
        """Return whether the tokens of a proposal were drawn here or in a fork."""
        width = proposal.tokens.shape[1]
        own = self._record.tokens()
        if own.shape[1] >= width:
            at = torch.arange(width, device=own.device)
            within = at < torch.tensor(proposal.lengths, device=own.device)[:, None]
            if bool(((own[:, :width] == proposal.tokens.to(own.device)) | ~within).all()):
                return True
        forks = self._forks[: self._forked]
        return any(isinstance(fork, ForcedRecorder) and fork.drew(proposal) for fork in forks)

    def _forced(self, drawn: Tensor, place: int) -> Tensor:
        column = self._columns[place]
        return torch.where(column == UNKNOWN, drawn, column)

    def _pick(self, q: Tensor) -> Tensor:
        place = len(self._record)
        free = [row[place] == UNKNOWN and left > 0 for row, left in zip(self._ahead, self._left, strict=True)]
        # Drawing from q reads all of it.
        return self._forced(super()._pick(q), place) if any(free) else self._columns[place].clamp(min=0)

    def _draw_row(self, row: TemperedCandidates, index: int, number: float) -> tuple[int, float]:
        token = self._ahead[index][len(self._record)]
        return super()._draw_row(row, index, number) if token == UNKNOWN else (token, row.probability(token))

    def _draw_best(self, rows: Sequence[Candidates | None]) -> list[int]:
        place = len(self._record)
        wanted = [left > 0 for left in self._left]
        drawn = super()._draw_best(rows)
        given = zip(drawn, self._ahead, wanted, strict=True)
        return [ahead[place] if more and ahead[place] != UNKNOWN else token for token, ahead, more in given]

    def _current_prefixes(self) -> list[list[int]]:
        rows = zip(super()._current_prefixes(), self._tokens, self._ahead, strict=True)
        return [
            [
                *row[: len(base)],
                *(new if to == UNKNOWN else to for new, to in zip(row[len(base) :], ahead, strict=False)),
            ]
            for row, base, ahead in rows
        ]

    def _another(self) -> DraftRecorder:
        batch, width, vocab = self._shape
        fork = ForcedRecorder(self._texts, self._to_probs, self._generators, batch, vocab, width, self._device)
        fork.reach = self.reach
        return fork


class _ForcedRule(AcceptanceRule):
    """Emits the next token of each recorded text, for a model that drafts alone.

    Args:
        texts: The whole sequences, prompts first.

    Attributes:
        rows: The sequences so far.
        best: The argmax that a greedy model would have emitted; None where it samples.
    """

    def __init__(self, texts: Sequence[Sequence[int]]) -> None:
        super().__init__(RuleConfig())
        self._texts = texts
        self.rows: Sequence[Row] = ()
        self.best: list[int] | None = None

    def sample(self, proposal: Proposal, p: Tensor, lenience: Tensor | None, uniforms: Tensor) -> AcceptanceResult:  # noqa: ARG002
        """Emit the text's token, or one drawn from p beyond its end."""
        token, total = draw_with_total(p[:, 0], uniforms[:, -1])
        return self._answer(token, total > 0)

    def greedy(self, proposal: Proposal, scores: Tensor, lenience: Tensor | None) -> AcceptanceResult:  # noqa: ARG002
        """Emit the text's token, or the argmax beyond its end."""
        token = argmax(scores[:, 0])
        self.best = token.tolist()
        return self._answer(token, scores[:, 0].gather(1, token[:, None])[:, 0].isfinite())

    def _answer(self, token: Tensor, sound: Tensor) -> AcceptanceResult:
        pairs = zip(self._texts, self.rows, strict=True)
        ahead = torch.tensor([following(text, len(row.tokens), 1)[0] for text, row in pairs], device=token.device)
        return AcceptanceResult(torch.zeros_like(token), torch.where(ahead == UNKNOWN, token, ahead), sound)


class ForcedLoop(InnerLoop):
    """The inner loop of a hierarchy along recorded texts.

    Its model drafts alone: q is its own adjusted distribution, whatever drafts for it.

    Args:
        context: What is shared with the level above.
        above: What drafters know about the batch above.
        model: The model in the middle.
    """

    def __init__(self, context: ForcedContext, above: SessionInfo, model: LoadedModel) -> None:
        self._rule = _ForcedRule(context.texts)
        super().__init__(context, above, model, None, None, self._rule)
        self._rule.rows = self._batch.rows

    def _drawn(self, report: StepReport) -> Sequence[Sequence[int]]:
        committed = report.outcome.committed
        best = self._rule.best
        return committed if best is None else [(x,) if new else () for x, new in zip(best, committed, strict=True)]


@dataclass(frozen=True)
class ForcedContext(LoopContext):
    """What the loops of all levels share along recorded texts.

    Attributes:
        texts: The whole sequences, prompts first.
    """

    texts: Sequence[Sequence[int]] = ()

    def with_loop(self, info: SessionInfo) -> SessionInfo:
        """Return the same information for drafters, with the means to open an inner loop along the texts."""

        def open_loop(
            model: LoadedModel,
            drafter: Drafter,  # noqa: ARG001
            gamma: GammaController,  # noqa: ARG001
            session: SessionInfo | None = None,
        ) -> ForcedLoop:
            if session is not None:
                raise PluginError(
                    "a hierarchy with another tokenizer than the target's cannot be replayed: a record holds the "
                    "target's tokens. Replay its model alone, or compare live."
                )
            return ForcedLoop(self, info, model)

        return replace(info, loop=open_loop)
