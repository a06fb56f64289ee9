"""The beam search of one prompt, and the node of each running beam in the tree that the target reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from specdec_core.decoding.beams.search import BeamRules, BeamState, Continuations, Ends, Hypothesis, advance
from specdec_core.decoding.rows import FinishReason


@dataclass(frozen=True)
class RunningBeam:
    """A running beam and its position in the tree that the target reads.

    Attributes:
        node: The last node of the tree on its path; -1 for the text before the tree.
        pending: Its last token, if the target has not read that.
        known: Its best continuations, if the target has read all of it.
        origin: The beam that it was, or continues, when the step began.
        source: The continuations that its last token is one of; None before the first step.
    """

    node: int
    pending: int | None
    known: Continuations | None
    origin: int
    source: Continuations | None = None


class PromptBeams:
    """The beam search of one prompt, and the nodes of the target's tree that its beams pass through.

    Args:
        text: The committed tokens before decoding.
        rules: What the search keeps.
        reason_at_limit: Finish reason of the beams that reach the maximum number of tokens.
        ends: Returns why a beam ends with a token before that, given its new tokens and that one.

    Attributes:
        text: The committed tokens before decoding.
        state: The search so far.
        running: The running beams.
        nodes: Token and parent of each node of the tree.
        before: The tokens before the tree.
    """

    def __init__(self, text: Sequence[int], rules: BeamRules, reason_at_limit: FinishReason, ends: Ends) -> None:
        self.text = tuple(text)
        self.state = BeamState.start(rules.beams)
        self.running = [RunningBeam(-1, None, None, beam) for beam in range(rules.beams)]
        self.nodes: list[tuple[int, int]] = []
        self.before = list(text)
        self._rules = rules
        self._reason_at_limit = reason_at_limit
        self._ends_early = ends

    @property
    def done(self) -> bool:
        """Whether the search has ended."""
        return self.state.done

    @property
    def hypotheses(self) -> list[Hypothesis]:
        """The finished hypotheses, the best first."""
        return [one for one in self.state.finished if one is not None]

    def unread(self) -> list[int]:
        """Return the beams whose last token the target has to read. Call `read` with a node for each of them."""
        return [beam for beam, current in enumerate(self.running) if current.pending is not None]

    def read(self, beams: Sequence[int], draft: Sequence[tuple[int, int]]) -> None:
        """Add nodes to the tree: the last token of each of some beams, and a draft.

        Args:
            beams: Beams that are not read yet.
            draft: Token and parent of each node of the draft, as numbered in this tree.
        """
        for beam in beams:
            current = self.running[beam]
            assert current.pending is not None, "the beam is read"
            self.running[beam] = replace(current, node=len(self.nodes), pending=None)
            self.nodes.append((current.pending, current.node))
        self.nodes += draft

    def simulate(self, known: Mapping[int, Continuations]) -> int:
        """Advance the search as far as the target's forward pass allows.

        Args:
            known: The best continuations after each node that was read in this pass; after the text itself, -1.

        Returns:
            The number of steps.
        """
        children = {(parent, token): node for node, (token, parent) in reversed(list(enumerate(self.nodes)))}
        running = [
            replace(current, known=current.known or known.get(current.node), origin=beam)
            for beam, current in enumerate(self.running)
        ]
        steps = 0
        while not self.done:
            step = advance(self.state, [current.known for current in running], self._rules, self._ends)
            if step is None:
                break
            steps += 1
            self.state = step.state
            after = zip(step.parents, step.state.beams, strict=True)
            running = [self._continued(running[parent], text[-1], children, known) for parent, text in after]
        self.running = running
        return steps

    def path(self, node: int, stop: int) -> list[int]:
        """Return the nodes from below `stop` down to `node`."""
        path = []
        while node != stop:
            path.append(node)
            node = self.nodes[node][1]
        return path[::-1]

    def prune(self) -> tuple[list[int], int]:
        """Drop the nodes that no running beam passes through.

        Returns:
            The nodes that stay, with their old numbers, and how many of them are a line that all others follow.
            These belong to the text now.
        """
        paths = [] if self.done else [self.path(current.node, -1) for current in self.running]
        kept = sorted({node for path in paths for node in path})
        trunk = 0
        while paths and all(len(path) > trunk and path[trunk] == paths[0][trunk] for path in paths):
            trunk += 1
        self.before += [self.nodes[node][0] for node in kept[:trunk]]
        numbers = {-1: -1, **{node: number - trunk for number, node in enumerate(kept)}}
        self.nodes = [(self.nodes[node][0], max(numbers[self.nodes[node][1]], -1)) for node in kept[trunk:]]
        if paths:
            self.running = [replace(current, node=numbers[current.node]) for current in self.running]
        return kept, trunk

    def _ends(self, text: Sequence[int], token: int) -> FinishReason | None:
        early = self._ends_early(text, token)
        at_limit = len(text) + 1 >= self._rules.max_new_tokens
        return early or (self._reason_at_limit if at_limit else None)

    def _continued(
        self,
        current: RunningBeam,
        token: int,
        children: Mapping[tuple[int, int], int],
        known: Mapping[int, Continuations],
    ) -> RunningBeam:
        node = children.get((current.node, token))
        if node is None or node not in known:
            return RunningBeam(current.node, token, None, current.origin, current.known)
        return RunningBeam(node, None, known[node], current.origin, current.known)
