"""Drafters and controllers with one planted defect each, and the checks that must catch it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from specdec_core.interface.spec import PluginKind
from tests.testing.defects import (
    confidence,
    declared,
    gammas,
    healthy,
    leniences,
    malformed,
    memory,
    shared_state,
    side_effects,
    stale_state,
    trees,
    unhelpful,
    wrong_q,
)


@dataclass(frozen=True)
class Defect:
    """A plugin with a planted defect.

    Attributes:
        make: Builds it.
        caught_by: The checks that must fail; others may fail, too.
        lasts: Whether its change is permanent, so that the check must catch it after other checks have run.
    """

    make: Callable[..., Any]
    caught_by: tuple[str, ...]
    lasts: bool = False


def _table(*rows: tuple[Callable[..., Any], str], lasts: tuple[Callable[..., Any], ...] = ()) -> dict[str, Defect]:
    """Return defects by the name of their class; checks are separated by spaces."""
    return {make.__name__: Defect(make, tuple(checks.split()), make in lasts) for make, checks in rows}


DRAFTERS = _table(
    (wrong_q.UnwarpedQ, "draft-sampled-from-q lossless-top-k"),
    (wrong_q.RawLogits, "q-sums-to-one no-extra-target-calls"),
    (wrong_q.ArgmaxWithSoftmax, "draft-sampled-from-q"),
    (wrong_q.OnePositionOff, "draft-sampled-from-q"),
    (wrong_q.OneBuffer, "draft-sampled-from-q"),
    (wrong_q.NotNormalized, "q-sums-to-one"),
    (wrong_q.ZeroAtTheDraft, "q-covers-draft"),
    (wrong_q.WithholdsEndOfSequence, "draft-sampled-from-q lossless"),
    (wrong_q.LeavesOutTheUnsure, "lossless-early-stop"),
    (wrong_q.CherryPicks, "draft-sampled-from-q inside-hierarchy"),
    (wrong_q.ExpectsProbabilities, "greedy-equals-baseline"),
    (wrong_q.FirstRowsQ, "rows-independent"),
    (wrong_q.SureOfLongTexts, "draft-sampled-from-q"),
    (wrong_q.SureBehindAnEncoder, "draft-sampled-from-q lossless-top-k"),
    (wrong_q.LeavesOutBehindAnEncoder, "lossless-early-stop"),
    (malformed.ReturnsThePrefix, "budget-respected"),
    (malformed.FixedLength, "zero-budget budget-respected"),
    (malformed.PadsRows, "ragged-rows"),
    (malformed.NegativePadding, "ids-in-range"),
    (malformed.PaddedVocabulary, "ids-in-range"),
    (malformed.NeedsABudget, "zero-budget"),
    (malformed.NeedsTwoTokens, "one-token-context"),
    (malformed.HalfIntegers, "budget-respected"),
    (malformed.ForgetsTheBatch, "one-token-context"),
    (malformed.PromisesMore, "budget-respected"),
    (malformed.ReturnsNothing, "one-token-context"),
    (malformed.OwnVocabulary, "proposal-valid"),
    (malformed.DraftsOn, "early-stop"),
    (malformed.ForksForEachToken, "early-stop"),
    (malformed.GrowsATree, "proposal-valid"),
    (malformed.OneRowOnly, "ragged-rows"),
    (malformed.SharesOneBudget, "budgets-independent"),
    (malformed.ManyRowsAtMost, "many-rows"),
    (malformed.SmallTable, "full-capacity"),
    (malformed.UndeclaredNeed, "hidden-states-declared"),
    (malformed.FourHeads, "long-drafts"),
    (malformed.NeedsRoomForTwo, "long-drafts"),
    (malformed.BudgetsOnward, "budgets-independent"),
    (stale_state.KeepsRejected, "none-accepted"),
    (stale_state.CropsOneTooMany, "all-accepted"),
    (stale_state.CropsAllRowsAlike, "prefix-accepted"),
    (stale_state.ForgetsTheBonus, "all-accepted"),
    (stale_state.HearsOnlyOfItsOwn, "step-without-draft"),
    (stale_state.TakesOthersForItsOwn, "other-drafter-used"),
    (stale_state.CountsWhatCame, "other-drafter-in-some-rows"),
    (stale_state.LeavesWaitingRows, "zero-budget-rows"),
    (stale_state.NeedsAFirstDraft, "first-step-without-draft"),
    (stale_state.ExpectsABonus, "eos-inside-draft"),
    (stale_state.ExpectsEveryRow, "rows-finished inside-hierarchy"),
    (stale_state.RunsFull, "many-steps"),
    (stale_state.RollsBackNothing, "rollback"),
    (shared_state.OneStateForAllRows, "rows-independent"),
    (shared_state.OneStateForAllSessions, "sessions-independent"),
    (shared_state.ForgetsToClean, "same-seed-same-draft"),
    (shared_state.NeverFrees, "sessions-freed"),
    (shared_state.FailsToClose, "close-any-time"),
    (stale_state.RemembersThePrompt, "prefix-accepted"),
    (stale_state.ShortensItsDrafts, "none-accepted"),
    (stale_state.UndoesTwoCommits, "rollback"),
    (stale_state.LetsEndedRowsGo, "rollback"),
    (shared_state.KeepsSources, "sessions-freed"),
    (memory.SaysNothing, "remembers-declared"),
    (memory.ForgetsNothing, "reset-forgets"),
    (memory.ReadsOn, "snapshot-kept"),
    (memory.OneThread, "learns-in-threads"),
    (trees.IgnoresTheDepth, "trees-respected"),
    (trees.OneQForAllSiblings, "draft-sampled-from-q"),
    (trees.PrunesTheUnlikely, "lossless-trees"),
    (trees.KeepsTheFirstNodes, "prefix-accepted many-steps"),
    (unhelpful.NeverDrafts, "drafts-tokens saves-target-calls"),
    (unhelpful.NeedsAToken, "empty-context"),
    (declared.BetsOnTheBudget, "replay-equals-live"),
    (declared.SeesNoDraft, "autoregressive-as-declared"),
    (declared.TakesNothingFromTheRequest, "autoregressive-as-declared"),
    (side_effects.WritesIntoTheRequest, "inputs-unchanged"),
    (side_effects.DrawsRowAfterRow, "budgets-independent"),
    (side_effects.PrunesTheHead, "target-unchanged"),
    (side_effects.ScalesTheEmbeddings, "target-unchanged"),
    (side_effects.WritesBackGamma, "config-unchanged"),
    (side_effects.ReseedsTorch, "global-state-unchanged"),
    (side_effects.DrawsGlobally, "same-seed-same-draft"),
    (side_effects.LooksAtTheClock, "same-seed-same-draft"),
    (side_effects.ShufflesWithPython, "global-state-unchanged"),
    (side_effects.SwitchesGradientsOff, "global-state-unchanged"),
    (side_effects.SortsRows, "rows-independent"),
    (side_effects.CopiesFromNeighbors, "rows-independent decoded-rows-independent"),
    (side_effects.LeavesLayersOut, "drafter-unchanged"),
    (side_effects.UsesUpItself, "sessions-independent"),
    (side_effects.SetsAPadToken, "target-unchanged"),
    (side_effects.WritesIntoHiddenStates, "inputs-unchanged"),
    (side_effects.TradesPrecision, "global-state-unchanged"),
    (side_effects.SetsTheEnvironment, "global-state-unchanged"),
    (side_effects.ComputesElsewhere, "global-state-unchanged"),
    (side_effects.ComputesInHalf, "global-state-unchanged"),
    (side_effects.MovesToItsFiles, "global-state-unchanged"),
    (side_effects.HandlesSignals, "global-state-unchanged"),
    (side_effects.LeavesAThread, "global-state-unchanged"),
    (side_effects.DrawsGloballyInTheEnd, "global-state-unchanged"),
    lasts=(
        side_effects.PrunesTheHead,
        side_effects.SwitchesGradientsOff,
        side_effects.WritesBackGamma,
        side_effects.SetsAPadToken,
        side_effects.TradesPrecision,
        side_effects.SetsTheEnvironment,
    ),
)

GAMMAS = _table(
    (gammas.GrowsWithoutEnd, "gamma-in-range"),
    (gammas.FallsBelowZero, "gamma-in-range"),
    (gammas.ForgetsFinishedRows, "finished-rows"),
    (gammas.OneRow, "gamma-per-row"),
    (gammas.HalfTokens, "gamma-per-row"),
    (gammas.AnswersNothing, "gamma-per-row"),
    (gammas.TensorOfGammas, "gamma-per-row"),
    (gammas.OneGammaForAllRows, "rows-independent"),
    (gammas.OneStateForAllBatches, "batches-independent"),
    (gammas.RemembersTheFirstBatch, "any-batch-size"),
    (gammas.ReplacesItsSettings, "inputs-unchanged"),
    (confidence.ForgetsQuietRows, "keep-drafting"),
    (confidence.OneAnswer, "keep-drafting"),
    (confidence.FailsAtNaN, "keep-drafting"),
    (confidence.WritesIntoConfidence, "inputs-unchanged"),
    (gammas.LooksAtTheClock, "deterministic"),
    (gammas.DrawsGlobally, "deterministic"),
    (gammas.DividesByDrafted, "empty-drafts"),
    (gammas.ExpectsABonus, "finished-rows"),
    (gammas.NeedsRoom, "empty-drafts"),
    (gammas.CountsOnBeingAsked, "empty-drafts"),
    (gammas.MovingMaximum, "max-gamma-constant"),
    (gammas.LearnsByGradient, "lossless"),
    (gammas.NeedsSampling, "greedy-equals-baseline"),
    (gammas.ReseedsTorch, "global-state-unchanged"),
    (gammas.KeepsItsBatches, "sessions-freed"),
)

LENIENCES = _table(
    (leniences.FallsToZero, "lenience-in-range"),
    (leniences.AboveOne, "lenience-in-range"),
    (leniences.NotANumber, "lenience-in-range"),
    (leniences.OneRow, "lenience-per-row"),
    (leniences.NoPositions, "lenience-per-row"),
    (leniences.TensorOfPositions, "lenience-per-row"),
    (leniences.SaysLossless, "lossless-as-declared"),
    (leniences.LosslessForAWhile, "lossless-as-declared"),
    (leniences.OneStateForAllRows, "rows-independent"),
    (leniences.OneStateForAllBatches, "batches-independent"),
    (leniences.RemembersTheFirstBatch, "any-batch-size"),
    (leniences.FailsAtASkippedStep, "empty-drafts"),
    (leniences.ExpectsEveryRow, "finished-rows"),
    (leniences.LooksAtTheClock, "deterministic"),
    (leniences.DrawsGlobally, "deterministic"),
    (leniences.ReplacesItsSettings, "inputs-unchanged"),
    (leniences.NeedsSampling, "greedy-bound"),
    (leniences.LearnsByGradient, "probability-bound"),
    (leniences.ReseedsTorch, "global-state-unchanged"),
    (leniences.KeepsItsBatches, "sessions-freed"),
)

DEFECTS: dict[PluginKind, dict[str, Defect]] = {"drafter": DRAFTERS, "gamma": GAMMAS, "lenience": LENIENCES}
"""For each kind: name → defect."""

HEALTHY: dict[PluginKind, tuple[Callable[..., Any], ...]] = {
    "drafter": (
        healthy.Sampling,
        healthy.Branching,
        healthy.Deterministic,
        healthy.Cached,
        healthy.Hidden,
        healthy.Remembers,
    ),
    "gamma": (healthy.Following, healthy.Confident),
    "lenience": (healthy.Lenient, healthy.Strict),
}
"""For each kind: plugins without a defect."""
