"""Beams of a model that reads one path: each is a row, which continues the row that has read most of its text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from specdec_core.decoding.beams.prompt_beams import PromptBeams
from specdec_core.interface.outcome import common_prefix
from specdec_core.models import LoadedModel, ModelSession
from specdec_core.models.device import inference_only, uploaded


class BeamRows(ModelSession):
    """Reads the trees of beam searches path by path, with a model whose states follow one path.

    Keys, values and states of a row are copied where two beams continue it.

    Args:
        loaded: The model.
        prompts: The beam searches.
        capacity: Maximum number of tokens of a path.
        **settings: Those of `ModelSession`.

    Attributes:
        unread: The most tokens of a path that its next pass reads again, should its draft be rejected.
    """

    def __init__(
        self, loaded: LoadedModel, prompts: Sequence[PromptBeams], capacity: int, **settings: Any
    ) -> None:
        super().__init__(loaded, len(prompts), capacity, **settings)
        self._prompts, self._most = prompts, capacity
        self._texts: list[tuple[int, list[int]]] = [(number, []) for number in range(len(prompts))]
        self.unread = max(len(prompt.text) for prompt in prompts)

    @inference_only
    def forward(
        self,
        uncached: Sequence[Sequence[int]],
        draft: Tensor | None = None,
        draft_lengths: Sequence[int] | None = None,
        parents: Tensor | None = None,
        states: Tensor | None = None,  # noqa: ARG002  (no beam search of a draft head)
    ) -> Tensor:
        """Add nodes to the tree of each prompt, and read them; see `ModelSession.forward`."""
        first, lengths = any(uncached), draft_lengths or [0] * len(uncached)
        new: list[list[tuple[int, int]]] = [[]] * len(uncached)
        if draft is not None and parents is not None:
            pairs = torch.stack([draft, parents], dim=-1).tolist()
            new = [[(token, parent) for token, parent in row[:n]] for row, n in zip(pairs, lengths, strict=True)]
        paths = [(n, path) for n, nodes in enumerate(new) for path in self._paths(n, nodes, first=first)]
        texts, known = [], []
        for number, path in paths:
            prompt = self._prompts[number]
            tokens = [token for token, _ in (*prompt.nodes, *new[number])]
            texts.append([*prompt.before, *(tokens[node] for node in path)])
            known.append(len(prompt.before) + sum(node < len(prompt.nodes) for node in path))
        self._continue([number for number, _ in paths], [text[:n] for text, n in zip(texts, known, strict=True)])
        places = list(zip(texts, known, self.lengths, strict=True))
        heads = [text[read:n] if first or n < len(text) else [] for text, n, read in places]
        fresh = [text[n:] for text, n, _ in places]
        width = max(map(len, fresh))
        padded = torch.tensor([[*row, *[0] * (width - len(row))] for row in fresh], dtype=torch.long)
        logits = super().forward(heads, padded.view(len(fresh), width), list(map(len, fresh)))
        self._texts = [(n, text[:read]) for (n, _), text, read in zip(paths, texts, self.lengths, strict=True)]
        self.unread = max(
            (len(head) + 1 for head, row in zip(heads, fresh, strict=True) if len(row) > 1), default=0
        )
        return self._in_order(logits, paths, new, first=first, shift=int(any(heads)))

    def prune(self, nodes: Sequence[Sequence[int]], trunks: Sequence[int]) -> None:
        """Do nothing: the next pass looks for the rows of the paths that were kept."""

    def _paths(self, number: int, new: Sequence[tuple[int, int]], *, first: bool) -> list[list[int]]:
        """Return the nodes from the root to each leaf of a prompt's tree."""
        nodes = [*self._prompts[number].nodes, *new]
        inner = {parent for _, parent in nodes}
        paths = []
        for leaf in [node for node in range(len(nodes)) if node not in inner] or [-1] * first:
            path, node = [], leaf
            while node >= 0:
                path.append(node)
                node = nodes[node][1]
            paths.append(path[::-1])
        return paths

    def _continue(self, numbers: Sequence[int], texts: Sequence[Sequence[int]]) -> None:
        """Have a row for each text, rolled back to what it shares with a row of the same prompt."""
        rows, lengths = [], []
        for number, text in zip(numbers, texts, strict=True):
            shared = [
                (common_prefix(text, read), -len(read), row)
                for row, (of, read) in enumerate(self._texts)
                if of == number
            ]
            length, _, row = max(shared)
            rows.append(row)
            lengths.append(length)
        self.resume(rows, lengths, self._most)

    def _in_order(
        self,
        logits: Tensor,
        paths: Sequence[tuple[int, Sequence[int]]],
        new: Sequence[Sequence[tuple[int, int]]],
        *,
        first: bool,
        shift: int,
    ) -> Tensor:
        """Return what was computed at the text, if it was read, and at the new nodes of each prompt."""
        found: dict[tuple[int, int], tuple[int, int]] = {}
        for row, (number, path) in enumerate(paths):
            begin = len(self._prompts[number].nodes)
            fresh = [node for node in path if node >= begin]
            found |= {(number, node): (row, shift + column) for column, node in enumerate(fresh)}
            if first:
                found[number, -1] = row, 0
        width = max(map(len, new))
        starts = [-1 if first else len(prompt.nodes) for prompt in self._prompts]
        order = [
            [found.get((n, start + column), (0, 0)) for column in range(width + first)]
            for n, start in enumerate(starts)
        ]
        rows, columns = uploaded(order, logits.device).unbind(-1)
        self.hidden = None if self.hidden is None else self.hidden[rows, columns]
        return logits[rows, columns]
