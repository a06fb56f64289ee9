"""What decoding gives back: tokens, text, and what went wrong on the way."""

from __future__ import annotations

from dataclasses import dataclass

from specdec_core.decoding.metrics import Metrics
from specdec_core.decoding.stopping import FinishReason


@dataclass(frozen=True)
class Generation:
    """One finished sequence.

    Attributes:
        prompt: The token ids it began with (for encoder-decoder targets the source).
        tokens: The new token ids.
        text: The new tokens decoded, or None without a tokenizer.
        finish_reason: Why it ended.
    """

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    text: str | None
    finish_reason: FinishReason


@dataclass(frozen=True)
class PluginFailure:
    """What a plugin did wrong during decoding; no token was lost.

    Attributes:
        plugin: Its class.
        step: The target call at which it first happened.
        message: What it did.
        times: How often.
    """

    plugin: str
    step: int
    message: str
    times: int = 1


@dataclass(frozen=True)
class BatchResult:
    """The result of one call.

    Attributes:
        rows: The sequences, in the order of the prompts.
        metrics: Counts and times.
        failures: What plugins did wrong on the way.
    """

    rows: tuple[Generation, ...]
    metrics: Metrics
    failures: tuple[PluginFailure, ...] = ()
