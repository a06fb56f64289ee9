"""The target's input in one pass: the last tokens of the running beams, and the drafts that follow them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from specdec_core.decoding.beams.prompt_beams import PromptBeams
from specdec_core.interface import Proposal
from specdec_core.models.device import uploaded


@dataclass(frozen=True)
class _Node:
    """A node to be read: `source` is its index among the last tokens of beams and then all draft tokens.

    Its parent is `base`, or the parent that the draft says, `shift` later.
    """

    source: int
    shift: int
    base: int
    row: int = -1
    number: int = -1


class TreeBlock:
    """The nodes that a forward pass adds to the tree of each prompt: beams first, then drafts row by row.

    Args:
        prompts: The beam searches.
        rows: The drafter's row of each beam of each prompt.
        proposal: The drafts of all rows.
        most: The maximum number of draft nodes of each prompt. Each of its rows may have as many, so that all
            together may have more: those of the best beams are read.

    Attributes:
        proposal: The drafts that are read.
        beams: The beams whose last token is read, of each prompt.
        starts: The node of each beam of each prompt, from which its draft goes on.
        lengths: Number of nodes of each prompt.
        tokens: `[B, T]` int64 on the device of the proposal.
        parents: `[B, T]` int64.
    """

    def __init__(
        self,
        prompts: Sequence[PromptBeams],
        rows: Sequence[Sequence[int]],
        proposal: Proposal,
        most: Sequence[int],
    ) -> None:
        self._prompts, self._rows = prompts, rows
        lengths = list(proposal.lengths)
        for own, left in zip(rows, most, strict=True):
            for row in own:
                lengths[row] = min(lengths[row], left)
                left -= lengths[row]
        self.proposal = replace(proposal, lengths=tuple(lengths))
        self.beams = [[] if prompt.done else prompt.unread() for prompt in prompts]
        pairs = zip(prompts, self.beams, strict=True)
        heads = [prompt.running[beam].pending for prompt, some in pairs for beam in some]
        self.starts: list[list[int]] = []
        self._nodes: list[list[_Node]] = []
        before = 0
        for prompt, own, some in zip(prompts, rows, self.beams, strict=True):
            self._nodes.append(self._of_prompt(prompt, own, some, before, len(heads)))
            before += len(some)
        self.lengths = tuple(map(len, self._nodes))
        self.tokens, self.parents = self._made(heads)

    def read(self, tokens: Sequence[Sequence[int]], parents: Sequence[Sequence[int]]) -> None:
        """Add the nodes to the trees of the prompts, given the values of `tokens` and `parents`."""
        for prompt, some, nodes, *values in zip(
            self._prompts, self.beams, self._nodes, tokens, parents, strict=True
        ):
            pairs = list(zip(*values, strict=True))[: len(nodes)]
            prompt.read(some, pairs[len(some) :])

    def drafts(self, prompt: int) -> dict[int, tuple[int, int]]:
        """Return the row of each draft node of a prompt and its number there, by its number in the tree.

        Call it before `read`.
        """
        first = len(self._prompts[prompt].nodes)
        return {
            first + index: (node.row, node.number)
            for index, node in enumerate(self._nodes[prompt])
            if node.row >= 0
        }

    def _of_prompt(
        self, prompt: PromptBeams, rows: Sequence[int], beams: Sequence[int], before: int, heads: int
    ) -> list[_Node]:
        first = len(prompt.nodes)
        starts = [current.node for current in prompt.running]
        nodes = []
        for index, beam in enumerate(beams):
            nodes.append(_Node(before + index, 0, prompt.running[beam].node))
            starts[beam] = first + index
        width = self.proposal.tokens.shape[1]
        for start, row in zip(starts, rows, strict=True):
            shift = first + len(nodes)
            count = self.proposal.lengths[row]
            nodes += [_Node(heads + row * width + n, shift, start, row, n) for n in range(count)]
        self.starts.append(starts)
        return nodes

    def _made(self, heads: Sequence[int | None]) -> tuple[Tensor, Tensor]:
        """Return the tokens and the parents of all nodes, each `[B, T]`, without waiting for the device."""
        proposal, width = self.proposal, max(self.lengths)
        device = proposal.tokens.device
        layout = [
            [*((one.source, one.shift, one.base) for one in nodes), *[(0, 0, -1)] * (width - len(nodes))]
            for nodes in self._nodes
        ]
        numbers = uploaded(layout, device, torch.long).view(len(layout), width, 3)
        source, shift, base = numbers.unbind(2)
        drafted = proposal.parents
        if drafted is None:
            drafted = torch.arange(-1, proposal.tokens.shape[1] - 1, device=device).expand_as(proposal.tokens)
        read = uploaded(list(heads), device, torch.long)
        tokens = torch.cat([read, proposal.tokens.flatten()])
        parents = torch.cat([torch.full_like(read, -1), drafted.flatten()])
        if not len(tokens):
            return source, source
        parent = parents[source]
        return tokens[source], torch.where(parent < 0, base, parent + shift)
