"""Opening a batch: the outer loop of a decoder, and the loop inside the loop of a hierarchy.

In a hierarchy the drafter is itself a model that a further drafter accelerates. Algorithm 1 draws each token of
that model from its own adjusted distribution, whatever the level below proposes. That distribution is therefore q
for the level above, and nothing is approximated, to any depth.

References:
    Leviathan et al. 2023, section 6 and Algorithm 1 (arXiv 2211.17192).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from specdec_core.decoding.arguments import run_settings
from specdec_core.decoding.drawing import DraftRecorder, DraftSampler, NewTree
from specdec_core.decoding.guard import PluginGuard
from specdec_core.decoding.proposer import Proposer
from specdec_core.decoding.rows import FinishReason, Row, StopRule
from specdec_core.decoding.step import Batch
from specdec_core.decoding.tree_draft import TreeDraft
from specdec_core.decoding.verify import ModelOracle
from specdec_core.interface import (
    LAST_HIDDEN,
    BatchInfo,
    Drafter,
    DraftRequest,
    DraftSession,
    GammaController,
    LenienceController,
    Outcome,
    PluginError,
    Proposal,
    SessionInfo,
    StepReport,
)
from specdec_core.models import LoadedModel, ModelSession
from specdec_core.models.prefix_cache import PrefixCache
from specdec_core.models.run.encoder import Encoded, encode
from specdec_core.models.run.forward import check_ready
from specdec_core.models.run.prompt_inputs import PromptInputs
from specdec_core.sampling.constraints import Constraints
from specdec_core.sampling.generators import RowGenerators
from specdec_core.sampling.logits import LogitsToProbs
from specdec_core.verification import AcceptanceRule, SpeculativeSampling


@dataclass(frozen=True)
class LoopContext:
    """The shared state of the loops of all levels.

    Attributes:
        draft_to_probs: The sampling settings for drafts, at every level below the target.
        generators: The sequences' random generators.
        guard: Records plugin failures.
    """

    draft_to_probs: LogitsToProbs
    generators: RowGenerators
    guard: PluginGuard

    def open_drafting(
        self,
        drafter: Drafter | None,
        gamma: GammaController | None,
        info: SessionInfo,
        batch: BatchInfo,
        *,
        sampler: DraftSampler | None = None,
        new_tree: NewTree = TreeDraft,
    ) -> Proposer:
        """Open the sessions of a drafter and its gamma controller.

        Args:
            drafter: The drafter; None for autoregressive decoding.
            gamma: Decides how many tokens are drafted.
            info: What drafters know about the batch; the means to open an inner loop is added.
            batch: What controllers know about the batch.
            sampler: Draws the draft tokens; None to draw them from q.
            new_tree: Makes a step's draft where it is a tree.
        """
        sizes = info.batch_size, info.vocab_size, info.max_gamma, info.device
        request = DraftRecorder(self.draft_to_probs, self.generators, *sizes, sampler=sampler, new_tree=new_tree)
        return Proposer(drafter, gamma, request, self.with_loop(info), batch, self.guard)

    def with_loop(self, info: SessionInfo) -> SessionInfo:
        """Return the same information for drafters, with the means to open an inner loop."""

        def open_loop(
            model: LoadedModel, drafter: Drafter, gamma: GammaController, session: SessionInfo | None = None
        ) -> InnerLoop:
            if session is None:
                return InnerLoop(self, info, model, drafter, gamma)
            context = replace(self, draft_to_probs=self.draft_to_probs.in_other_tokens())
            return InnerLoop(context, session, model, drafter, gamma)

        return replace(info, loop=open_loop, note=self.guard.note)


def first_rows(target: LoadedModel, begins: Sequence[Sequence[int]], max_new_tokens: int) -> list[Row]:
    """Return the sequences that begin with some tokens."""
    rows = []
    for begin in begins:
        tokens = list(begin)
        longest = target.max_length(len(tokens))
        limit = len(tokens) + max_new_tokens
        fits = longest is None or limit <= longest
        reason: FinishReason = "length" if fits else "context"
        rows.append(Row(tokens, len(tokens), limit if fits else longest or limit, reason))
    return rows


def max_gamma_of(drafter: Drafter | None, gamma: GammaController | None, guard: PluginGuard) -> int:
    """Return the longest draft that a controller may ask for; 0 without a drafter."""
    if gamma is None or drafter is None:
        return 0
    with guard.calling(gamma):
        limit = gamma.max_gamma
        if isinstance(limit, int) and limit >= 0:
            return limit
        raise PluginError(f"max_gamma is {limit!r}; it must be a whole number, at least 0. Nothing is drafted.")
    return 0


def kept_layers(drafter: Drafter | None, guard: PluginGuard) -> tuple[int, ...]:
    """Return the layers whose states the target keeps for a drafter; if there are any, `LAST_HIDDEN` is one."""
    layers: tuple[int, ...] = ()
    if drafter is not None:
        with guard.calling(drafter):
            layers = tuple(drafter.hidden_layers)
    return (*layers, LAST_HIDDEN) if layers else ()


def session_info(
    target: LoadedModel,
    rows: Sequence[Row],
    sources: Sequence[Sequence[int]] | None,
    max_gamma: int,
    metadata: Sequence[Mapping[str, Any]] = (),
    encoded: Encoded | None = None,
) -> SessionInfo:
    """Return the facts of a batch for drafters; the target's encoder runs, unless it has."""
    if sources is not None and encoded is None:
        check_ready(target)
        encoded = encode(target, sources)
    return SessionInfo(
        batch_size=len(rows),
        vocab_size=target.vocab_size,
        capacity=max(row.limit for row in rows),
        max_gamma=max_gamma,
        device=target.device,
        sources=None if sources is None else tuple(map(tuple, sources)),
        metadata=metadata,
        encoded=encoded,
    )


def open_batch(
    context: LoopContext,
    model: LoadedModel,
    rows: Sequence[Row],
    info: SessionInfo,
    drafter: Drafter | None,
    gamma: GammaController | None,
    lenience: LenienceController | None = None,
    *,
    to_probs: LogitsToProbs,
    stops: StopRule,
    rule: AcceptanceRule,
    prompt: PromptInputs | None = None,
    constraints: Constraints | None = None,
    cache: PrefixCache | None = None,
    snapshots: int = 1,
) -> Batch:
    """Open a batch: the model's cache, the drafter's and the controllers' sessions.

    Args:
        context: Shared with the loops of other levels.
        model: The model whose distribution is sampled.
        rows: The sequences.
        info: What drafters know about the batch.
        drafter: Drafts for the model; None for autoregressive decoding.
        gamma: Decides how many tokens are drafted.
        lenience: Decides how strictly drafts are verified; None for l = 1.
        to_probs: The model's sampling settings.
        stops: Decides when a sequence ends.
        rule: Verifies drafts.
        prompt: What the model's first pass reads instead of the ids of the prompts; see `ModelSession`.
        constraints: Those of the target's texts; None at the levels below.
        cache: Opens the model's cache, and keeps it; None to free it with the batch.
        snapshots: How many steps a recurrent model may be rolled back.
    """
    asked = info.max_gamma
    # Nobody drafts beyond the capacity, and buffers are as wide as the longest draft.
    lenient, trees, drafts_trees = lenience is not None, False, False
    with context.guard.calling(lenience):
        lenient = run_settings(None, None, lenience, None, None).lenient
    with context.guard.calling(rule):
        trees = model.family.trees and bool(rule.trees) and not lenient
    info = replace(info, max_gamma=min(asked, info.capacity), trees=trees)
    room = tuple(row.limit - len(row.tokens) for row in rows)
    batch_info = BatchInfo(info.batch_size, asked, room, to_probs.greedy)
    if drafter is not None:
        with context.guard.calling(drafter):
            drafts_trees = trees and bool(drafter.drafts_trees)
    # A tree has more nodes than its paths are long. With exact shapes, nothing may depend on the drafter.
    spare = model.exact_shapes or (info.max_gamma if drafts_trees else 0)
    capacity, layers = info.capacity + spare, kept_layers(drafter, context.guard)
    if cache is not None:
        texts = [row.tokens for row in rows]
        session = cache.open(model, texts, capacity, vocab_size=info.vocab_size, hidden_layers=layers)
    else:
        more = {"hidden_layers": layers, "snapshots": snapshots, "prompt": prompt}
        session = ModelSession.of_batch(model, info, capacity, **more)
    proposer = context.open_drafting(drafter, gamma, info, batch_info)
    oracle = ModelOracle(
        session,
        rule,
        lenience,
        to_probs,
        context.generators,
        batch_info,
        context.guard,
        proposer.reject,
        keep_open=cache is not None,
    )
    return Batch(rows, oracle, proposer, stops, constraints)


class InnerLoop(DraftSession):
    """Drafts for one batch with a model that a further drafter accelerates.

    Args:
        context: Shared with the loop above.
        above: What drafters know about the batch above.
        model: The model in the middle.
        drafter: Drafts for it; None to draft with the model alone.
        gamma: Decides how many tokens that drafter drafts; None without a drafter.
        rule: Verifies what it drafts; None for Algorithm 1.
    """

    def __init__(
        self,
        context: LoopContext,
        above: SessionInfo,
        model: LoadedModel,
        drafter: Drafter | None,
        gamma: GammaController | None,
        rule: AcceptanceRule | None = None,
    ) -> None:
        # A row holds drafted tokens before the level above has verified them.
        capacity = above.capacity + above.max_gamma
        # They have ended until the first request.
        rows = [Row([], 0, capacity, "length", "length") for _ in range(above.batch_size)]
        self._batch = open_batch(
            replace(context, guard=context.guard.child()),
            model,
            rows,
            replace(
                above, capacity=capacity, max_gamma=0 if gamma is None else gamma.max_gamma, device=model.device
            ),
            drafter,
            gamma,
            to_probs=context.draft_to_probs,
            stops=StopRule(frozenset()),  # the target decides when a sequence ends
            rule=rule or SpeculativeSampling(),
            snapshots=above.max_gamma + 1,
        )
        assert isinstance(self._batch.oracle, ModelOracle)
        self._oracle = self._batch.oracle

    def propose(self, request: DraftRequest) -> Proposal:
        """Decode with the middle model until no row wants more."""
        pairs = zip(request.tokens, request.budget, strict=True)
        self._batch.resume(request.tokens, [len(text) + most for text, most in pairs])
        extend = request.extend
        if isinstance(request, DraftRecorder):
            extend = partial(request.extend, drawn_by_core=True)
        while not self._batch.done:
            report = self._batch.step()
            wanted = extend(self._drawn(report), self._oracle.p)
            self._batch.end([not more for more in wanted])
        return request.proposal()

    def _drawn(self, report: StepReport) -> Sequence[Sequence[int]]:
        """Return the tokens of a step that become draft tokens of the level above."""
        return report.outcome.committed

    def commit(self, outcome: Outcome) -> None:
        """Roll back rejected tokens and append the committed ones, here and below."""
        rows = self._batch.rows
        if not any(row.tokens for row in rows):
            return  # nothing was drafted yet, and the first request brings all tokens
        self.rollback(tuple(row.begin + n for row, n in zip(rows, outcome.accepted, strict=True)))
        new = tuple(tokens[n:] for tokens, n in zip(outcome.committed, outcome.accepted, strict=True))
        nothing = (0,) * len(new)
        self._batch.commit(Outcome(nothing, nothing, new, outcome.finished))

    def rollback(self, lengths: Sequence[int]) -> None:
        """Keep only the first `lengths[b]` tokens of each row b, here and below."""
        self._batch.rollback(lengths)

    def close(self) -> None:
        """Free the caches, here and below."""
        self._batch.close()
