"""Gamma controllers that watch confidence, with one thing wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from specdec_core.interface import BatchInfo, GammaSession
from tests.testing.defects.healthy import Confident, ConfidentSession


class ForgetsQuietRows(Confident):
    """Answers only for the rows that have just drafted a token."""

    def open(self, batch: BatchInfo) -> GammaSession:
        return _ForgetsQuietRowsSession(self, batch)


class _ForgetsQuietRowsSession(ConfidentSession):
    def keep_drafting(self, confidence: Sequence[float]) -> Sequence[bool]:
        return [value >= 0.3 for value in confidence if value == value]


class OneAnswer(Confident):
    """Says once for all rows whether to draft on."""

    def open(self, batch: BatchInfo) -> GammaSession:
        return _OneAnswerSession(self, batch)


class _OneAnswerSession(ConfidentSession):
    def keep_drafting(self, confidence: Sequence[float]) -> Sequence[bool]:
        return cast(Sequence[bool], all(value >= 0.3 for value in confidence))


class FailsAtNaN(Confident):
    """Counts confidences in tenths, and fails where a row has drafted none."""

    def open(self, batch: BatchInfo) -> GammaSession:
        return _FailsAtNaNSession(self, batch)


class _FailsAtNaNSession(ConfidentSession):
    def keep_drafting(self, confidence: Sequence[float]) -> Sequence[bool]:
        return [int(10 * value) >= 3 for value in confidence]


class WritesIntoConfidence(Confident):
    """Replaces NaN in the list that it was given."""

    def open(self, batch: BatchInfo) -> GammaSession:
        return _WritesIntoConfidenceSession(self, batch)


class _WritesIntoConfidenceSession(ConfidentSession):
    def keep_drafting(self, confidence: Sequence[float]) -> Sequence[bool]:
        values = cast(list[float], confidence)
        for row, value in enumerate(values):
            values[row] = value if value == value else 0.0
        return super().keep_drafting(values)
