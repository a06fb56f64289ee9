"""Drafters and controllers with one planted defect each, and which check of the conformance kit must see it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from specdec_core.border import PluginKind
from tests.testing.defects import (
    dishonest,
    forgetful,
    gammas,
    healthy,
    idle,
    leaking,
    leniences,
    misshapen,
    unmannerly,
    watching,
)


@dataclass(frozen=True)
class Defect:
    """A plugin with something wrong.

    Attributes:
        make: Makes it.
        caught_by: The checks that must fail; others may.
        lasts: Whether what it changes stays changed, so that the check must see it when others have run before.
    """

    make: Callable[..., Any]
    caught_by: tuple[str, ...]
    lasts: bool = False


def _table(*rows: tuple[Callable[..., Any], str], lasts: tuple[Callable[..., Any], ...] = ()) -> dict[str, Defect]:
    """Return defects by the name of their class; checks are separated by blanks."""
    return {make.__name__: Defect(make, tuple(checks.split()), make in lasts) for make, checks in rows}


DRAFTERS = _table(
    (dishonest.UnwarpedQ, "q-is-what-was-drawn lossless-top-k"),
    (dishonest.RawLogits, "q-sums-to-one no-more-calls"),
    (dishonest.ArgmaxWithSoftmax, "q-is-what-was-drawn"),
    (dishonest.OnePositionOff, "q-is-what-was-drawn"),
    (dishonest.OneBuffer, "q-is-what-was-drawn"),
    (dishonest.NotNormalised, "q-sums-to-one"),
    (dishonest.ZeroAtTheDraft, "q-gives-the-token"),
    (dishonest.WithholdsEndOfSequence, "q-is-what-was-drawn lossless"),
    (dishonest.LeavesOutTheUnsure, "lossless-when-stopped"),
    (dishonest.CherryPicks, "q-is-what-was-drawn within-a-hierarchy"),
    (dishonest.ExpectsProbabilities, "same-as-plain"),
    (dishonest.ListsByProbability, "q-well-formed"),
    (dishonest.FirstRowsQ, "rows-apart"),
    (dishonest.SureOfLongTexts, "q-is-what-was-drawn"),
    (dishonest.SureBehindAnEncoder, "q-is-what-was-drawn lossless-top-k"),
    (dishonest.LeavesOutBehindAnEncoder, "lossless-when-stopped"),
    (misshapen.ReturnsThePrefix, "budget-respected"),
    (misshapen.FixedLength, "zero-budget budget-respected"),
    (misshapen.PadsRows, "ragged-rows"),
    (misshapen.NegativePadding, "ids-in-range"),
    (misshapen.PaddedVocabulary, "ids-in-range"),
    (misshapen.NeedsABudget, "zero-budget"),
    (misshapen.NeedsTwoTokens, "one-token-context"),
    (misshapen.HalfIntegers, "budget-respected"),
    (misshapen.ForgetsTheBatch, "one-token-context"),
    (misshapen.PromisesMore, "budget-respected"),
    (misshapen.ReturnsNothing, "one-token-context"),
    (misshapen.OwnVocabulary, "q-well-formed"),
    (misshapen.DraftsOn, "stops-when-told"),
    (misshapen.ForksForEachToken, "stops-when-told"),
    (misshapen.GrowsATree, "q-well-formed"),
    (misshapen.OneRowOnly, "ragged-rows"),
    (misshapen.SharesOneBudget, "budgets-apart"),
    (misshapen.ManyRowsAtMost, "largest-batch"),
    (misshapen.SmallTable, "full-capacity"),
    (misshapen.UndeclaredNeed, "hidden-states-declared"),
    (misshapen.FourHeads, "long-drafts"),
    (misshapen.NeedsRoomForTwo, "long-drafts"),
    (misshapen.FewerThanDeclared, "largest-batch"),
    (misshapen.BudgetsOnward, "budgets-apart"),
    (forgetful.KeepsRejected, "none-accepted"),
    (forgetful.CropsOneTooMany, "all-accepted"),
    (forgetful.CropsAllRowsAlike, "each-prefix-accepted"),
    (forgetful.ForgetsTheBonus, "all-accepted"),
    (forgetful.HearsOnlyOfItsOwn, "not-asked"),
    (forgetful.TakesOthersForItsOwn, "draft-of-another"),
    (forgetful.CountsWhatCame, "row-of-another"),
    (forgetful.LeavesWaitingRows, "zero-budget-between"),
    (forgetful.NeedsAFirstDraft, "not-asked-at-first"),
    (forgetful.ExpectsABonus, "end-inside-a-draft"),
    (forgetful.ExpectsEveryRow, "row-finished within-a-hierarchy"),
    (forgetful.RunsFull, "many-steps"),
    (forgetful.RollsBackNothing, "rolled-back"),
    (leaking.OneStateForAllRows, "rows-apart"),
    (leaking.OneStateForAllSessions, "two-sessions"),
    (leaking.ForgetsToClean, "seeded-repeatability"),
    (leaking.NeverFrees, "closing-frees"),
    (leaking.FailsToClose, "closing"),
    (forgetful.RemembersThePrompt, "each-prefix-accepted"),
    (forgetful.ShortensItsDrafts, "none-accepted"),
    (forgetful.UndoesTwoCommits, "rolled-back"),
    (forgetful.LetsEndedRowsGo, "rolled-back"),
    (leaking.KeepsSources, "closing-frees"),
    (idle.NeverDrafts, "drafts-something saves-calls"),
    (idle.NeedsAToken, "empty-context"),
    (unmannerly.WritesIntoTheRequest, "tokens-untouched"),
    (unmannerly.DrawsRowAfterRow, "budgets-apart"),
    (unmannerly.PrunesTheHead, "target-untouched"),
    (unmannerly.WritesBackGamma, "config-untouched"),
    (unmannerly.ReseedsTorch, "global-state-untouched"),
    (unmannerly.DrawsGlobally, "seeded-repeatability"),
    (unmannerly.LooksAtTheClock, "seeded-repeatability"),
    (unmannerly.ShufflesWithPython, "global-state-untouched"),
    (unmannerly.SwitchesGradientsOff, "global-state-untouched"),
    (unmannerly.SortsRows, "rows-apart"),
    (unmannerly.CopiesFromNeighbours, "rows-apart decoded-rows-apart"),
    (unmannerly.LeavesLayersOut, "drafter-unchanged"),
    (unmannerly.UsesUpItself, "two-sessions"),
    (unmannerly.SetsAPadToken, "target-untouched"),
    (unmannerly.WritesIntoHiddenStates, "tokens-untouched"),
    (unmannerly.TradesPrecision, "global-state-untouched"),
    (unmannerly.SetsTheEnvironment, "global-state-untouched"),
    (unmannerly.ComputesElsewhere, "global-state-untouched"),
    (unmannerly.DrawsGloballyInTheEnd, "global-state-untouched"),
    lasts=(
        unmannerly.PrunesTheHead,
        unmannerly.SwitchesGradientsOff,
        unmannerly.WritesBackGamma,
        unmannerly.SetsAPadToken,
        unmannerly.TradesPrecision,
        unmannerly.SetsTheEnvironment,
    ),
)

GAMMAS = _table(
    (gammas.GrowsWithoutEnd, "gamma-within-bounds"),
    (gammas.FallsBelowZero, "gamma-within-bounds"),
    (gammas.ForgetsFinishedRows, "finished-rows"),
    (gammas.OneRow, "gamma-a-row"),
    (gammas.HalfTokens, "gamma-a-row"),
    (gammas.AnswersNothing, "gamma-a-row"),
    (gammas.TensorOfGammas, "gamma-a-row"),
    (gammas.OneGammaForAllRows, "rows-apart"),
    (gammas.OneStateForAllBatches, "batches-apart"),
    (gammas.RemembersTheFirstBatch, "any-batch"),
    (gammas.WritesBackGamma, "nothing-changed"),
    (gammas.ReplacesItsSettings, "nothing-changed"),
    (watching.ForgetsQuietRows, "keep-drafting"),
    (watching.OneAnswer, "keep-drafting"),
    (watching.FailsAtNaN, "keep-drafting"),
    (watching.WritesIntoConfidence, "nothing-changed"),
    (gammas.LooksAtTheClock, "repeatable"),
    (gammas.DrawsGlobally, "repeatable"),
    (gammas.WritesIntoTheReport, "nothing-changed"),
    (gammas.DividesByDrafted, "quiet-steps"),
    (gammas.ExpectsABonus, "finished-rows"),
    (gammas.NeedsRoom, "quiet-steps"),
    (gammas.CountsOnBeingAsked, "quiet-steps"),
    (gammas.MovingMaximum, "max-gamma"),
    (gammas.LearnsByGradient, "lossless"),
    (gammas.NeedsSampling, "argmax-equals-plain"),
    (gammas.ReseedsTorch, "global-state-untouched"),
    (gammas.KeepsItsBatches, "batches-freed"),
)

LENIENCES = _table(
    (leniences.FallsToZero, "lenience-within-bounds"),
    (leniences.AboveOne, "lenience-within-bounds"),
    (leniences.NotANumber, "lenience-within-bounds"),
    (leniences.OneRow, "lenience-a-row"),
    (leniences.NoPositions, "lenience-a-row"),
    (leniences.TensorOfPositions, "lenience-a-row"),
    (leniences.SaysLossless, "lossless-as-promised"),
    (leniences.LosslessForAWhile, "lossless-as-promised"),
    (leniences.OneStateForAllRows, "rows-apart"),
    (leniences.OneStateForAllBatches, "batches-apart"),
    (leniences.RemembersTheFirstBatch, "any-batch"),
    (leniences.FailsAtASkippedStep, "quiet-steps"),
    (leniences.ExpectsEveryRow, "finished-rows"),
    (leniences.LooksAtTheClock, "repeatable"),
    (leniences.DrawsGlobally, "repeatable"),
    (leniences.WritesIntoTheReport, "nothing-changed"),
    (leniences.NeedsSampling, "argmax-rule"),
    (leniences.LearnsByGradient, "bound"),
    (leniences.PeeksAtTheDraft, "bound"),
    (leniences.ReseedsTorch, "global-state-untouched"),
    (leniences.KeepsItsBatches, "batches-freed"),
)

DEFECTS: dict[PluginKind, dict[str, Defect]] = {"drafter": DRAFTERS, "gamma": GAMMAS, "lenience": LENIENCES}
"""Of each kind: name → how it is made, and what must catch it."""

HEALTHY: dict[PluginKind, tuple[Callable[..., Any], ...]] = {
    "drafter": (healthy.Sampling, healthy.Guessing, healthy.Cached, healthy.Hidden),
    "gamma": (healthy.Following, healthy.Confident),
    "lenience": (healthy.Lenient, healthy.Strict),
}
"""Of each kind: the same without a defect."""
