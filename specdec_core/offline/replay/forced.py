"""Forced drafts: a drafter drafts the tokens of a recorded text, and the core keeps the q that it gave them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from specdec_core.decoding.drawing import DraftSampler
from specdec_core.decoding.opening import InnerLoop, LoopContext
from specdec_core.decoding.rows import Row
from specdec_core.interface import (
    AcceptanceResult,
    AcceptanceRule,
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


class ForcedSampler(DraftSampler):
    """Draws the next tokens of recorded texts, so that the record keeps the q of these.

    Where drafts are greedy, the drafter is told the text's token too, and the record keeps the argmax: the draft
    that would have been made. Beyond the end of a text, tokens are drawn as ever.

    Args:
        texts: The whole sequences, prompts first.
        device: Device of the proposal.
        root: The sampler of the request that this one's was forked from; None for the first.

    Attributes:
        reach: How many tokens of each sequence's draft are forced, in forks too; None for as many as the text has.
    """

    reach: Sequence[int] | None = None

    def __init__(
        self, texts: Sequence[Sequence[int]], device: torch.device | str, root: ForcedSampler | None = None
    ) -> None:
        self._texts = texts
        self._device = device
        self._root = root or self

    def start(self, tokens: Sequence[Sequence[int]], budget: Sequence[int]) -> None:
        """Begin a step along the texts."""
        width = max(budget)
        reach = self._root.reach
        counts = [width] * len(budget) if reach is None else [min(n, width) for n in reach]
        rows = zip(self._texts, tokens, counts, strict=bool(tokens))
        self._ahead = [following(text, len(row), count) + [UNKNOWN] * (width - count) for text, row, count in rows]
        # [K, B]: the tokens of all sequences at each position of the draft.
        self._columns = torch.tensor(self._ahead, dtype=torch.long, device=self._device).view(-1, max(width, 1)).T

    def draw(self, q: Tensor, uniforms: Callable[[], Tensor], position: int, left: Sequence[int]) -> Tensor:
        """Return the texts' tokens; those beyond a text are drawn."""
        free = [row[position] == UNKNOWN and more > 0 for row, more in zip(self._ahead, left, strict=True)]
        if not any(free):
            return self._columns[position].clamp(min=0)  # drawing from q would read all of it
        return self.all_told(super().draw(q, uniforms, position, left), position)

    def draw_candidate(
        self, row: TemperedCandidates, uniform: float, index: int, position: int
    ) -> tuple[int, float]:
        """Return the text's token, and its probability."""
        token = self._ahead[index][position]
        if token == UNKNOWN:
            return super().draw_candidate(row, uniform, index, position)
        return token, row.probability(token)

    def told(self, token: int, index: int, position: int) -> int:
        """Return the text's token."""
        ahead = self._ahead[index][position] if position < len(self._ahead[index]) else UNKNOWN
        return token if ahead == UNKNOWN else ahead

    def all_told(self, tokens: Tensor, position: int) -> Tensor:
        """Return the texts' tokens `[B]`."""
        column = self._columns[position]
        return torch.where(column == UNKNOWN, tokens.to(column.device), column)

    def fork(self) -> ForcedSampler:
        """Return a sampler along the same texts."""
        return ForcedSampler(self._texts, self._device, self._root)


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
    """The shared state of the loops of all levels along recorded texts.

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
