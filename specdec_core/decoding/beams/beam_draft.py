"""The drafter's own beam search: which continuations of the running beams become the nodes of the draft.

Appendix A.4 of arXiv 2211.17192: the drafter searches with u >= w beams for gamma steps, from the w running beams
and their scores. A row of the request is a beam; each level has the u best continuations of all beams of a prompt,
so that rows have different numbers of nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import torch
from torch import Tensor

from specdec_core.decoding.drawing import DraftRecord
from specdec_core.decoding.guard import PluginGuard, opened
from specdec_core.decoding.proposer import checked_plan
from specdec_core.decoding.tree_draft import all_paths
from specdec_core.interface import (
    BatchInfo,
    BestFirstTree,
    Branches,
    ConfigError,
    GammaController,
    GammaSession,
    PluginConfig,
    PointMass,
    Proposal,
    StepReport,
)
from specdec_core.interface.tree import TreeShape
from specdec_core.models.device import moved, uploaded
from specdec_core.sampling.logits import LogitsToProbs

_NO_BEAM = -1e8
"""Scores below are those of beams that do not exist yet."""


def log_probs(to_probs: LogitsToProbs, logits: Tensor, prefixes: Sequence[Sequence[int]] | None) -> Tensor:
    """Return log probabilities `[N, V]` float32 as beam search adds them up: processors come after the softmax."""
    return to_probs.scores(torch.log_softmax(logits.float(), dim=-1), prefixes)


class BeamGamma(GammaController):
    """A gamma controller whose tokens are levels of the drafter's beam search.

    Args:
        inner: The controller that decides how many.
        limit: Its `max_gamma`.
        beams: w, the number of rows of each prompt.
        width: u, the number of nodes of a level.
        batch: What the controller knows about the prompts.
        guard: Records its failures.

    Raises:
        ConfigError: The controller decides after each token whether to draft another.
    """

    def __init__(
        self, inner: GammaController, limit: int, beams: int, width: int, batch: BatchInfo, guard: PluginGuard
    ) -> None:
        super().__init__(PluginConfig())
        self._inner, self._limit, self._beams, self._width, self._guard = inner, limit, beams, width, guard
        self._levels: tuple[int, ...] = (0,) * batch.batch_size
        self._session: GammaSession | None = None
        with guard.calling(inner):
            self._session = opened(inner.open(batch))
        if self._session is not None and self._session.uses_confidence:
            raise ConfigError(
                f"gamma: {type(inner).__name__} decides after each draft token whether to draft another, but with "
                "beams all of them draft a level together; choose a number, or a controller that decides before "
                "the draft."
            )

    @property
    def max_gamma(self) -> int:
        """The largest number of nodes of a row."""
        return self._limit * self._width

    def open(self, batch: BatchInfo) -> GammaSession:  # noqa: ARG002  (it was opened for prompts, not for rows)
        """Return the session for the batch whose rows are beams."""
        return _BeamGammaSession(self)

    def next_levels(self) -> list[int]:
        """Ask the controller how many levels each prompt drafts in the next step; return them for each row.

        Raises:
            ConfigError: It asks for a tree.
        """
        plan: Sequence[int] | TreeShape = self._levels
        if self._session is not None:
            with self._guard.calling(self._inner):
                plan = checked_plan(self._session.plan(), len(self._levels), self._limit)
        if not isinstance(plan, tuple):
            raise ConfigError(
                f"gamma: {type(self._inner).__name__} asks for trees, but with beams the drafter's beam search "
                "decides on the tree; choose the number of its levels, and draft_beams for their width."
            )
        self._levels = plan
        return [levels for levels in plan for _ in range(self._beams)]

    def tree(self) -> TreeShape:
        """Return the shape of the draft, over all beams of a prompt."""
        return BestFirstTree((self._width,) * max(self._levels))

    def observe(self, report: StepReport) -> None:
        """Pass on a report, whose rows are prompts."""
        if self._session is not None:
            with self._guard.calling(self._inner):
                self._session.observe(report)


class _BeamGammaSession(GammaSession):
    def __init__(self, controller: BeamGamma) -> None:
        self._controller = controller

    def plan(self) -> TreeShape:
        return self._controller.tree()

    def observe(self, report: StepReport) -> None:
        self._controller.observe(report)


@dataclass
class DraftSearch:
    """The limits of the drafter's beam search.

    Attributes:
        beams: w, the number of rows of each prompt.
        width: u, the number of nodes of a level, over all rows of a prompt.
        eos_ids: Tokens that end a beam. They are not drafted: nothing follows them.
        scores: The log probability of each row, to be set before each step.
    """

    beams: int
    width: int
    eos_ids: tuple[int, ...]
    scores: Sequence[float] = ()


class BeamDraft:
    """One step's draft: the levels of the drafter's beam search.

    Each level waits for the device of the logits once: how many of its nodes belong to which row depends on their
    scores.

    Args:
        search: What is kept.
        budget: The maximum number of nodes of each row: u times the levels of its prompt, 0 for finished ones.
        to_probs: The sampling settings for drafts.
        record: Holds the tokens.
        prefixes: The text of each row.
    """

    def __init__(
        self,
        search: DraftSearch,
        budget: Sequence[int],
        to_probs: LogitsToProbs,
        record: DraftRecord,
        prefixes: Sequence[Sequence[int]],
    ) -> None:
        self._budget, self._to_probs, self._record, self._prefixes = budget, to_probs, record, prefixes
        self._search = search
        self._level = 0
        self._nodes: list[list[tuple[int, int]]] = [[] for _ in budget]  # token and parent of each
        first = zip(search.scores, budget, strict=True)
        # A row that may not draft, or does not exist yet, has no continuations.
        self._paths = [[score if most and score > _NO_BEAM else -inf] for score, most in first]
        self._core: list[set[int]] = [{0} for _ in budget]  # which of them a search with w beams would have

    @property
    def width(self) -> int:
        """P, the number of nodes of a row whose continuations are drawn next."""
        return max(map(len, self._paths))

    @property
    def lengths(self) -> tuple[int, ...]:
        """The number of nodes that each row has so far."""
        return tuple(map(len, self._nodes))

    def wants_more(self) -> bool:
        """Return whether there is another level to draw."""
        return any(self._open())

    def proposal(self) -> Proposal:
        """Return everything drawn, in memory that the next step overwrites."""
        width = max(self.lengths)
        if not width:
            return Proposal.empty(len(self._nodes), self._record.device)
        padded = [[*row, *[(0, -1)] * (width - len(row))] for row in self._nodes]
        both = uploaded(padded, self._record.device)
        self._record.write_columns(0, both[..., 0])
        return Proposal(self._record.columns(width), self.lengths, PointMass(), both[..., 1])

    def branch(self, logits: Tensor) -> Branches:
        """Draw the next level of each prompt.

        It has the w nodes that a search with w beams would keep, so that a drafter that agrees with the target
        always helps, and the best u - w other continuations.

        Args:
            logits: `[R, P, V]`, the logits after each node of the level before.
        """
        self._record = self._record if self._level else self._record.on(logits.device)
        logits = moved(logits, self._record.device)
        rows, leaves, vocab = logits.shape
        beams, width = self._search.beams, self._search.width
        pairs = zip(self._paths, self._open(), strict=True)
        nodes = [(row, node) for row, (paths, more) in enumerate(pairs) for node in range(len(paths)) if more]
        before = [self._paths[row][node] for row, node in nodes]
        core = [node in self._core[row] for row, node in nodes]
        found = uploaded(nodes, logits.device)
        prefixes = self._node_texts(nodes) if self._to_probs.needs_prefix else None
        each = log_probs(self._to_probs, logits[found[:, 0], found[:, 1]], prefixes)
        each.index_fill_(1, uploaded(list(self._search.eos_ids), each.device, torch.long), -inf)
        # No node has more than u children in a level of u.
        top = each.topk(min(width, vocab), dim=1)
        scores = top.values.nan_to_num(nan=-inf, posinf=-inf) + uploaded(before, each.device)[:, None]
        shape = (rows // beams, beams * leaves * scores.shape[1])
        flat = scores.new_full((rows, leaves, scores.shape[1]), -inf)
        own, tokens = flat.clone(), top.indices.new_zeros(flat.shape)
        flat[found[:, 0], found[:, 1]] = scores
        own[found[:, 0], found[:, 1]] = scores.masked_fill(~uploaded(core, each.device)[:, None], -inf)
        tokens[found[:, 0], found[:, 1]] = top.indices
        flat, own, tokens = flat.view(shape), own.view(shape), tokens.view(shape)
        first = own.topk(min(beams, shape[1]), dim=1)
        left = flat.scatter(1, first.indices, -inf)
        others = left.topk(min(width, shape[1]) - first.indices.shape[1], dim=1)
        best, index = (torch.cat(pair, dim=1) for pair in zip(first, others, strict=True))
        chosen = tokens.gather(1, index)
        best_list, index_list, chosen_list = torch.stack([best.double(), index.double(), chosen.double()]).tolist()
        return self._add(best_list, index_list, chosen_list, leaves * scores.shape[1], scores.shape[1])

    def _add(
        self,
        scores: Sequence[Sequence[float]],
        index: Sequence[Sequence[float]],
        tokens: Sequence[Sequence[float]],
        of_row: int,
        of_node: int,
    ) -> Branches:
        """Add the nodes that each prompt has in the next level.

        Args:
            scores: Their scores; minus infinity where there are fewer.
            index: Their indices among the candidates of their prompt.
            tokens: Their tokens.
            of_row: Number of candidates of a row.
            of_node: Number of candidates of a node.
        """
        rows = len(self._nodes)
        firsts = [len(nodes) - len(last) for nodes, last in zip(self._nodes, self._paths, strict=True)]
        starts = self.lengths
        paths: list[list[float]] = [[] for _ in range(rows)]
        self._core = [set() for _ in range(rows)]
        for prompt, found in enumerate(zip(scores, index, tokens, strict=True)):
            for rank, (score, candidate, token) in enumerate(zip(*found, strict=True)):
                if score == -inf:
                    continue
                row, rest = divmod(int(candidate), of_row)
                row += prompt * self._search.beams
                self._nodes[row].append((int(token), firsts[row] + rest // of_node))
                if rank < self._search.beams:
                    self._core[row].add(len(paths[row]))
                paths[row].append(score)
        self._paths = paths
        self._level += 1
        width = max(map(len, paths))
        new = [row[start:] for row, start in zip(self._nodes, starts, strict=True)]
        padded = [[*row, *[(0, -1)] * (width - len(row))] for row in new]
        drawn, parents = uploaded(padded, self._record.device, torch.long).view(rows, width, 2).unbind(2)
        return Branches(drawn, parents, tuple(map(len, new)))

    def _open(self) -> list[bool]:
        """Return which rows draw continuations of their nodes."""
        levels = self._level * self._search.width
        pairs = zip(self._budget, self._paths, strict=True)
        return [most > levels and any(score > -inf for score in paths) for most, paths in pairs]

    def _node_texts(self, nodes: Sequence[tuple[int, int]]) -> list[list[int]]:
        """Return the text before the continuations of some nodes of the last level, given as row and index."""
        paths = [all_paths([token for token, _ in row], [parent for _, parent in row]) for row in self._nodes]
        return [[*self._prefixes[row], *paths[row][node - len(self._paths[row])]] for row, node in nodes]
