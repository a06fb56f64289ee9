"""The logits processors that `generate` has prepared, for rows at different lengths.

A processor of transformers takes ids `[B, L]`, in which all rows are of one length, with the padding on the left,
and it may go by the number of the row. A step verifies several positions of each row, and rows accept different
numbers of tokens. So the positions are put in groups of one length: in each, a row keeps its own index.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import LogitsProcessor, TemperatureLogitsWarper

from specdec_core.interface.settings import SamplingSettings
from specdec_core.models.device import moved, uploaded
from specdec_core.sampling.logits import LogitsToProbs, applied


@dataclass(frozen=True)
class Padding:
    """The tokens before the text of each row, which the processors read.

    Attributes:
        left: For each of B rows, the ids before its text.
        pad_id: The id after the text of a row that has ended.
    """

    left: Sequence[Sequence[int]]
    pad_id: int

    def groups(self, prefixes: Sequence[Sequence[int]]) -> list[tuple[list[list[int]], list[int], list[int]]]:
        """Return the calls that take N prefixes to a processor, the N / B of each row after each other.

        Returns:
            For each call the B rows of ids, all of one length; the numbers of the prefixes in it, and their rows.
            A row without a prefix of this length stands there with its text, cut or padded.
        """
        each = len(prefixes) // len(self.left)
        found: dict[tuple[int, int], dict[int, int]] = {}
        turns: Counter[tuple[int, int]] = Counter()  # nodes of a tree have prefixes of the same length
        for number, prefix in enumerate(prefixes):
            row = number // each
            length = len(self.left[row]) + len(prefix)
            found.setdefault((length, turns[row, length]), {})[row] = number
            turns[row, length] += 1
        calls = []
        for (length, _), members in found.items():
            texts = []
            for row, left in enumerate(self.left):
                text = [*left, *prefixes[members.get(row, row * each)]][:length]
                texts.append(text + [self.pad_id] * (length - len(text)))
            calls.append((texts, list(members.values()), list(members)))
        return calls


class PreparedProcessors(LogitsToProbs):
    """Turns logits into probabilities by the processors that `generate` has prepared; see `LogitsToProbs`.

    Args:
        processors: The processors, warpers included.
        padding: What stands before the text of each row.
        device: Where the processors compute: that of the ids that `generate` was given, which may be a CPU.
        do_sample: Whether tokens are sampled.
        prove: Ask each of them twice in its first calls, and reject one that keeps state.
        keep: Keep logits and scores of the last call.

    Attributes:
        logits: `[N, V]` float32, the logits of the last call, if they are kept.
        processed: `[N, V]` float32, its scores.
    """

    def __init__(
        self,
        processors: Sequence[LogitsProcessor],
        padding: Padding,
        device: torch.device,
        *,
        do_sample: bool,
        prove: bool = False,
        keep: bool = False,
    ) -> None:
        settings = SamplingSettings(temperature=float(do_sample))
        # A drafter that need not build dense logits may go on doing so.
        if len(processors) == 1 and type(processors[0]) is TemperatureLogitsWarper:
            settings, processors = SamplingSettings(temperature=processors[0].temperature), ()
        super().__init__(settings, processors, prove=prove)
        self._padding, self._device = padding, device
        self._keep = keep
        self.logits: Tensor | None = None
        self.processed: Tensor | None = None

    def scores(self, logits: Tensor, prefixes: Sequence[Sequence[int]] | None = None) -> Tensor:
        """See `LogitsToProbs.scores`."""
        scores = super().scores(moved(logits, self._device), prefixes)
        if self._keep:
            self.logits, self.processed = logits.float(), scores
        return moved(scores, logits.device)

    def _with_prefixes(
        self, processor: LogitsProcessor, scores: Tensor, prefixes: Sequence[Sequence[int]]
    ) -> Tensor:
        result = torch.empty_like(scores)
        for texts, numbers, rows in self._padding.groups(prefixes):
            to, source = uploaded([rows, numbers], scores.device)
            given = scores.new_zeros(len(texts), scores.shape[1])
            given[to] = scores[source]
            result[source] = applied(processor, texts, given)[to]
        return result
