"""Drawing a line of draft tokens in a captured function."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specdec_core.decoding.drafting.validation import check_recorded
from specdec_core.interface import Dense, Proposal
from specdec_core.interface.settings import SamplingSettings
from specdec_core.sampling.generators import draw
from specdec_core.sampling.logits import LogitsToProbs, argmax


@dataclass(frozen=True)
class CapturedLine:
    """The `LineSampler` of sampling settings. Equal ones compute the same, so that graphs outlive a batch.

    Attributes:
        settings: Those of drafts, none of which reads the prefix.
    """

    settings: SamplingSettings

    def draw(self, logits: Tensor, uniforms: Tensor) -> tuple[Tensor, ...]:
        """Draw a token of each row.

        Args:
            logits: `[B, V]`.
            uniforms: `[B]` float64; not read where drafts are greedy.

        Returns:
            The tokens `[B]`; where drafts are sampled, also q `[B, V]` float32.
        """
        to_probs = LogitsToProbs(self.settings)
        if to_probs.greedy:
            return (argmax(to_probs.scores(logits)),)
        q = to_probs(logits)
        return draw(q, uniforms), q

    def finish(self, drawn: Sequence[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """Return the tokens `[B, G]` int64.

        Args:
            drawn: What was drawn at each of G positions.

        Returns:
            The tokens; where drafts are sampled, also q `[B, G, V]`, and what `check_recorded` says.
        """
        tokens, *q = (torch.stack(part, dim=1) for part in zip(*drawn, strict=True))
        if not q:
            return (tokens,)
        faults = check_recorded(Proposal(tokens, (len(drawn),) * len(tokens), Dense(q[0])))
        assert faults is not None, "on a GPU, nothing is known before it is fetched"
        return tokens, q[0], faults
