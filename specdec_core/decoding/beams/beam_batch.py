"""A batch of beam searches, each step of which takes as many steps of beam search as its draft allows.

The drafter sees one row for each beam. The target reads one row for each prompt: the beams are paths of a tree in
its cache, which share what they have in common (of a recurrent target, each beam is a row). A forward pass reads
the last tokens of the w running beams and the draft, w + u gamma tokens. Then beam search is simulated with what
was read. It stops where it depends on a beam that is not a node of the tree.

References:
    Leviathan et al. 2023, appendix A.4 (arXiv 2211.17192). Beyond it, a beam that is not in the draft does no harm
    where w continuations of the others are better.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from time import perf_counter

import numpy as np
import torch
from torch import Tensor

from specdec_core.decoding.beams.beam_draft import BeamGamma, DraftSearch, log_probs
from specdec_core.decoding.beams.prompt_beams import PromptBeams
from specdec_core.decoding.beams.search import Continuations, Hypothesis
from specdec_core.decoding.beams.tree_block import TreeBlock
from specdec_core.decoding.proposer import Proposer
from specdec_core.decoding.rows import Row, TokenView
from specdec_core.decoding.tree_draft import all_paths
from specdec_core.decoding.validation import FINE, worst
from specdec_core.interface import LAST_HIDDEN, Outcome, StepReport
from specdec_core.interface.errors import NumericsError
from specdec_core.interface.outcome import common_prefix
from specdec_core.models import ModelSession
from specdec_core.models.device import inference_only
from specdec_core.sampling.logits import LogitsToProbs


@dataclass(eq=False)
class BeamBatch:
    """The state of a batch of beam searches, and its step. Its reports count levels of the drafts, not nodes.

    Args:
        prompts: The beam searches.
        rows: A row for each beam of each prompt, as the drafter sees it; their tokens change with the beams.
        target: The target's cached forward pass, with a row for each prompt.
        proposer: Drafter and gamma controller, for the rows.
        gamma: That controller, which decides how many levels are drafted; None without a drafter.
        search: What the drafter's beam search keeps.
        to_probs: The target's sampling settings, greedy.
        candidates: Number of continuations of a text that are looked at.
    """

    prompts: Sequence[PromptBeams]
    rows: Sequence[Row]
    target: ModelSession
    proposer: Proposer
    gamma: BeamGamma | None
    search: DraftSearch
    to_probs: LogitsToProbs
    candidates: int

    def __post_init__(self) -> None:
        self._tokens = tuple(TokenView(row.tokens) for row in self.rows)
        self._beams = len(self.rows) // len(self.prompts)
        # The row of each beam of each prompt.
        self._row_of = [list(range(n * self._beams, (n + 1) * self._beams)) for n in range(len(self.prompts))]
        self._steps = 0

    @property
    def done(self) -> bool:
        """Whether every search has ended."""
        return all(prompt.done for prompt in self.prompts)

    @property
    def hypotheses(self) -> list[list[Hypothesis]]:
        """The finished hypotheses of each prompt, the best first."""
        return [prompt.hypotheses for prompt in self.prompts]

    @inference_only
    def step(self) -> StepReport:
        """Draft, read the draft in one target forward pass, advance every search; return the report.

        Raises:
            NumericsError: The target's logits are not a distribution.
        """
        started = perf_counter()
        self.search.scores = self._scores()
        states = self._hidden_states() if self.target.keeps_hidden else {}
        room = [row.room for row in self.rows]
        if self.gamma is not None and self.proposer.session is not None:
            room = list(map(min, room, self.gamma.next_levels()))
        proposal, faults = self.proposer.propose(self._tokens, room, states)
        proposed = perf_counter()
        most = [max(self.proposer.asked[row] for row in rows) for rows in self._row_of]
        block = TreeBlock(self.prompts, self._row_of, proposal, most)
        first = self.target.calls == 0
        uncached = [prompt.text if first else () for prompt in self.prompts]
        draft = (block.tokens, block.lengths, block.parents) if max(block.lengths) else (None, None, None)
        logits = self.target.forward(uncached, *draft)
        drafts = [block.drafts(prompt) for prompt in range(len(self.prompts))]
        known = self._read(block, logits, faults, first)
        steps = [self._simulate(prompt, one) for prompt, one in enumerate(known)]
        verified = perf_counter()
        report = self._report(drafts, steps)
        self._commit(block, drafts)
        kept = [prompt.prune() for prompt in self.prompts]
        self.target.prune([nodes for nodes, _ in kept], [trunk for _, trunk in kept])
        now = perf_counter()
        report = replace(
            report,
            draft_seconds=self.proposer.seconds,
            verify_seconds=verified - proposed,
            step_seconds=now - started,
        )
        self._steps += 1
        self.proposer.observe(report)
        return report

    def close(self) -> None:
        """Close the drafter's session and free the cache."""
        self.proposer.close()
        self.target.close()

    def _scores(self) -> list[float]:
        """Return the log probability of each of the drafter's rows."""
        scores = [0.0] * len(self.rows)
        for prompt, rows in zip(self.prompts, self._row_of, strict=True):
            for row, score in zip(rows, prompt.state.scores.tolist(), strict=True):
                scores[row] = score
        return scores

    def _last_hidden(self) -> Tensor | None:
        """Return the hidden state that the last token of each row was predicted from, `[R, D]`."""
        hidden: list[Tensor | None] = [None] * len(self.rows)
        for prompt, rows in zip(self.prompts, self._row_of, strict=True):
            for row, current in zip(rows, prompt.running, strict=True):
                hidden[row] = None if current.source is None else current.source.hidden
        found = [one for one in hidden if one is not None]
        return torch.stack(found) if len(found) == len(hidden) else None

    def _hidden_states(self) -> dict[int, Tensor]:
        """Return the hidden states of each row, as `DraftRequest` has them; none before anything was read."""
        last, kept = self._last_hidden(), self.target.hidden_states
        if last is None:
            return {}
        if not kept:
            return {LAST_HIDDEN: last}
        slots: list[list[int]] = [[]] * len(self.rows)
        for prompt, rows in zip(self.prompts, self._row_of, strict=True):
            for row, current in zip(rows, () if prompt.done else prompt.running, strict=not prompt.done):
                before = len(prompt.before)
                slots[row] = [*range(before), *(before + node for node in prompt.path(current.node, -1))]
        longest = max(map(len, slots))
        columns = torch.tensor([[*own, *[0] * (longest - len(own))] for own in slots])
        batch = torch.arange(len(self.rows))[:, None] // self._beams
        return {LAST_HIDDEN: last, **{layer: states[batch, columns] for layer, states in kept.items()}}

    def _read(
        self, block: TreeBlock, logits: Tensor, faults: Tensor | None, first: bool
    ) -> list[dict[int, Continuations]]:
        """Fetch the best continuations after each node that was read: the one synchronization of a step."""
        batch, columns, vocab = logits.shape
        prefixes = self._prefixes(block, first) if self.to_probs.needs_prefix else None
        every = log_probs(self.to_probs, logits.reshape(-1, vocab), prefixes)
        best = every.topk(min(self.candidates, vocab), dim=1)
        bits = best.values.contiguous().view(torch.int32).long()
        parts = [bits, best.indices, block.tokens, block.parents, *([] if faults is None else [faults])]
        numbers = torch.cat([part.flatten() for part in parts]).cpu().numpy()
        sizes = np.cumsum([part.numel() for part in parts])[:-1]
        values, ids, tokens, parents, *fault = np.split(numbers, sizes)
        if faults is not None:
            code = worst(fault[0].reshape(faults.shape).tolist(), block.proposal.lengths)
            if code != FINE:
                # Its tree is legal all the same by now, so that reading it does no harm.
                self.proposer.reject(code)
        values = values.astype(np.int32).view(np.float32).reshape(batch, columns, -1)
        ids = ids.reshape(values.shape)
        starts = [len(prompt.nodes) - first for prompt in self.prompts]
        block.read(tokens.reshape(batch, -1).tolist(), parents.reshape(batch, -1).tolist())
        hidden = self.target.hidden
        return [
            {
                start + column: Continuations(
                    values[row, column], ids[row, column], None if hidden is None else hidden[row, column]
                )
                for column in range(length + first)
                if np.isfinite(values[row, column, 0])
            }
            for row, (start, length) in enumerate(zip(starts, block.lengths, strict=True))
        ]

    def _prefixes(self, block: TreeBlock, first: bool) -> list[list[int]]:
        """Return the text before each position that was read, row by row."""
        prefixes = []
        drafts = zip(self.prompts, block.tokens.tolist(), block.parents.tolist(), strict=True)
        for prompt, tokens, parents in drafts:
            before = list(zip(*prompt.nodes, strict=True)) or [(), ()]
            paths = all_paths([*before[0], *tokens], [*before[1], *parents])
            prefixes += [[*prompt.before, *path] for path in paths[len(before[0]) + (not first) :]]
        return prefixes

    def _simulate(self, number: int, known: dict[int, Continuations]) -> int:
        """Advance one search; return the number of steps."""
        prompt = self.prompts[number]
        if prompt.done:
            return 0
        steps = prompt.simulate(known)
        if not steps:
            raise NumericsError(
                f"the target's logits after {len(prompt.text) + len(prompt.state.beams[0])} tokens of row "
                f"{number} are not a distribution: NaN, infinity, or nothing left after the logits processors. "
                "Check the weights, the dtype (float16 overflows where bfloat16 does not) and custom logits "
                "processors."
            )
        return steps

    def _report(self, drafts: Sequence[dict[int, tuple[int, int]]], steps: Sequence[int]) -> StepReport:
        """Return the report on the prompts, without times: levels that were drafted and that held the beams."""
        drafted = tuple(map(_levels, self.prompts, drafts))
        accepted = [
            min(taken if prompt.done else max(taken - 1, 0), levels)
            for prompt, taken, levels in zip(self.prompts, steps, drafted, strict=True)
        ]
        beams = zip(self.prompts, steps, strict=True)
        outcome = Outcome(
            drafted=drafted,
            accepted=tuple(accepted),
            committed=tuple(prompt.state.beams[0][-taken:] if taken else () for prompt, taken in beams),
            finished=tuple(prompt.done for prompt in self.prompts),
        )
        nothing = ((),) * len(drafted)
        return StepReport(self._steps, self._asked(), outcome, nothing, 0.0, 0.0, 0.0, (0.0,) * len(drafted))

    def _asked(self) -> tuple[int, ...]:
        """Return the number of levels that each prompt was to draft."""
        per_level = 1 if self.proposer.request.tree is None else self.search.width
        asked = self.proposer.asked
        return tuple(max(asked[row] for row in rows) // per_level for rows in self._row_of)

    def _commit(self, block: TreeBlock, drafts: Sequence[dict[int, tuple[int, int]]]) -> None:
        """Have the drafter's rows follow the beams, and tell it.

        A row continues with a beam that extends its own, if there is one. Otherwise it takes over another: it is
        rolled back to what both have in common, and the rest is committed.
        """
        size = len(self.rows)
        drafted = block.proposal
        paths: list[tuple[int, ...]] = [()] * size
        committed: list[tuple[int, ...]] = [()] * size
        rest: list[tuple[int, ...]] = [()] * size
        moved = [True] * size
        lengths = [len(row.tokens) for row in self.rows]
        for number, prompt in enumerate(self.prompts):
            if prompt.done:
                self._finish(number)
                continue
            stay, self._row_of[number] = self._assigned(number)
            for beam, (row, current) in enumerate(zip(self._row_of[number], prompt.running, strict=True)):
                text = (*prompt.text, *prompt.state.beams[beam])
                if beam in stay:
                    moved[row] = False
                    path = prompt.path(current.node, block.starts[number][current.origin])
                    paths[row] = tuple(drafts[number][node][1] for node in path if drafts[number][node][0] == row)
                    committed[row] = text[lengths[row] :]
                    lengths[row] = len(text)
                else:
                    lengths[row] = common_prefix(self.rows[row].tokens, text)
                    rest[row] = text[lengths[row] :]
        moved = [lost and not row.reason for lost, row in zip(moved, self.rows, strict=True)]
        self._extend(committed)
        is_tree = drafted.parents is not None
        self.proposer.commit(
            Outcome(
                drafted=drafted.lengths,
                accepted=tuple(map(len, paths)),
                committed=tuple(committed),
                # As in a hierarchy, a row that has ended may resume after a rollback.
                finished=tuple(lost or bool(row.reason) for lost, row in zip(moved, self.rows, strict=True)),
                parents=self._draft_parents(drafts) if is_tree else None,
                paths=tuple(paths) if is_tree else None,
            )
        )
        if any(moved):
            self._take_over(lengths, rest)

    def _take_over(self, lengths: Sequence[int], rest: Sequence[tuple[int, ...]]) -> None:
        """Have some rows continue other beams: roll them back, and commit the rest of the new text."""
        for row, length in zip(self.rows, lengths, strict=True):
            del row.tokens[length:]
        self.proposer.rollback(lengths)
        self._extend(rest)
        nothing = (0,) * len(rest)
        finished = tuple(row.reason is not None for row in self.rows)
        self.proposer.commit(Outcome(nothing, nothing, tuple(rest), finished))

    def _extend(self, new: Sequence[Sequence[int]]) -> None:
        for row, tokens in zip(self.rows, new, strict=True):
            row.tokens += tokens

    def _finish(self, number: int) -> None:
        """Have the rows of a prompt draft no more."""
        reason = self.prompts[number].hypotheses[0].reason
        for row in self._row_of[number]:
            self.rows[row].reason = reason

    def _assigned(self, number: int) -> tuple[set[int], list[int]]:
        """Return the beams that extend their own row, and the row of each beam."""
        prompt, rows = self.prompts[number], self._row_of[number]
        row_of: dict[int, int] = {}
        free = list(rows)
        for beam, current in enumerate(prompt.running):
            if rows[current.origin] in free:
                row_of[beam] = rows[current.origin]
                free.remove(rows[current.origin])
        stay = set(row_of)
        for beam, own in enumerate(prompt.state.beams):
            if beam not in row_of:
                text = (*prompt.text, *own)
                common = [common_prefix(self.rows[row].tokens, text) for row in free]
                row_of[beam] = free.pop(common.index(max(common)))
        return stay, [row_of[beam] for beam in range(len(rows))]

    def _draft_parents(self, drafts: Sequence[dict[int, tuple[int, int]]]) -> tuple[tuple[int, ...], ...]:
        """Return the parents of the draft tokens of each row, by their numbers in the row's draft."""
        parents: list[list[int]] = [[] for _ in self.rows]
        for prompt, nodes in zip(self.prompts, drafts, strict=True):
            for node, (row, number) in nodes.items():
                parents[row].append(max(prompt.nodes[node][1] - (node - number), -1))
        return tuple(map(tuple, parents))


def _levels(prompt: PromptBeams, drafts: dict[int, tuple[int, int]]) -> int:
    """Return the depth of a draft."""
    depths: dict[int, int] = {}
    for node in drafts:
        depths[node] = depths.get(prompt.nodes[node][1], 0) + 1
    return max(depths.values(), default=0)
