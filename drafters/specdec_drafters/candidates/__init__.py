"""Candidate generators of transformers as drafters."""

from specdec_drafters.candidates.drafter import CandidateDrafter

__all__ = ["CandidateDrafter"]
