"""The columns of a ragged batch, one after the other, as plain `generate` would have made them.

Rows get ahead of each other. What a stopping criterion, a streamer or a caller sees is nevertheless what plain
`generate` shows them: ids `[B, L]` that grow by a column at a time, with padding after the end of a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import StoppingCriteriaList

from specdec_core.decoding.custom_generate.processors import PreparedProcessors
from specdec_core.decoding.rows import Row
from specdec_core.interface import StepReport


class Columns:
    """Collects the tokens of the rows, and ends rows by stopping criteria.

    Args:
        ids: `[B, L]`, the prompts.
        criteria: Called after each column, as plain `generate` does.
        pad_id: Stands after the end of a row; None where rows go on until all have ended, as they do in plain
            `generate` if it has no end-of-sequence id.
        streamer: Given each column.
        kept: Keeps the logits and scores of a step, if they are asked for.

    Attributes:
        ids: `[B, L + n]`, the prompts and what was generated.
        scores: For each column, the processed scores `[B, V]` float32; zeros in rows that had ended.
        logits: The same of the logits.
        tokens: Number of generated tokens, without padding.
    """

    def __init__(
        self,
        ids: Tensor,
        criteria: StoppingCriteriaList,
        pad_id: int | None,
        streamer: Any,
        kept: PreparedProcessors,
        *,
        scores: bool,
        logits: bool,
    ) -> None:
        self.ids = ids
        self.scores: list[Tensor] | None = [] if scores else None
        self.logits: list[Tensor] | None = [] if logits else None
        self.tokens = 0
        self._criteria, self._pad_id, self._streamer, self._kept = criteria, pad_id, streamer, kept
        self._live = [True] * len(ids)
        self._taken = 0
        # For each row, the vectors of its tokens that are in no column yet.
        self._waiting: dict[str, list[list[Tensor]]] = {
            name: [[] for _ in self._live] for name, on in (("scores", scores), ("logits", logits)) if on
        }

    def add(self, rows: Sequence[Row], report: StepReport) -> None:
        """Take the columns that a step has completed, and end the rows that a criterion ends."""
        self._remember(report)
        while any(self._live) and (column := self._next(rows)) is not None:
            self._take(column)
        waits = self._pad_id is None and any(self._live)
        for row, live in zip(rows, self._live, strict=True):
            if not live and not waits:
                row.reason = row.reason or "stop"

    def _next(self, rows: Sequence[Row]) -> list[int] | None:
        """Return the tokens of the next column; None if a row has not come so far."""
        column = []
        for row, live in zip(rows, self._live, strict=True):
            index = row.begin + self._taken
            if not live and self._pad_id is not None:
                column.append(self._pad_id)
            elif index < len(row.tokens):
                column.append(row.tokens[index])
            else:
                return None
        return column

    def _take(self, column: list[int]) -> None:
        tokens = torch.tensor(column, dtype=self.ids.dtype, device=self.ids.device)
        self.ids = torch.cat([self.ids, tokens[:, None]], dim=1)
        real = [live or self._pad_id is None for live in self._live]
        self.tokens += sum(real)
        self._taken += 1
        for name, rows in self._waiting.items():
            width = self._kept.processed.shape[1]  # type: ignore[union-attr]
            zeros = torch.zeros(width, device=self.ids.device)
            vectors = [row.pop(0) if has else zeros for row, has in zip(rows, real, strict=True)]
            getattr(self, name).append(torch.stack(vectors))
        if self._streamer is not None:
            self._streamer.put(tokens.cpu())
        ended = self._criteria(self.ids, None if self.scores is None else tuple(self.scores))
        self._live = [live and not end for live, end in zip(self._live, ended.tolist(), strict=True)]

    def _remember(self, report: StepReport) -> None:
        """Take over the logits and scores that a step's tokens were chosen by."""
        if not self._waiting:
            return
        found = {"scores": self._kept.processed, "logits": self._kept.logits}
        paths = report.outcome.paths
        for row, new in enumerate(report.outcome.committed):
            # In a line, column i follows the first i draft tokens; in a tree, column 1 + i follows node i.
            path = range(len(new)) if paths is None else [0, *(1 + node for node in paths[row])]
            for name, rows in self._waiting.items():
                flat = found[name]
                assert flat is not None
                width = len(flat) // len(rows)
                rows[row] += [flat[row * width + column].to(self.ids.device) for column in path[: len(new)]]
