"""What decoding gives back: tokens, text, counts and times."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from specdec_core.border import StepReport
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
    """A plugin that was switched off during decoding; no token was lost.

    Attributes:
        plugin: Its class.
        step: The target call at which it happened.
        message: What it did.
    """

    plugin: str
    step: int
    message: str


@dataclass(frozen=True)
class Metrics:
    """Raw counts and times of a run, from which all ratios are derived; two of them add up.

    Attributes:
        tokens: New tokens of all rows.
        target_calls: Forwards of the target.
        row_steps: Rows that were decoded, summed over the forwards: `target_calls` at batch 1.
        drafted: Draft tokens verified.
        accepted: Draft tokens kept.
        rejected: Rows whose draft was cut by a rejection, summed over the steps.
        draft_calls: Depth of the drafts (the longest row; 1 where asked in vain), summed over the steps.
        seconds: Wall time.
        draft_seconds: Of which in the drafter.
        verify_seconds: Of which in the target's forward, the acceptance and the wait for both.
    """

    tokens: int = 0
    target_calls: int = 0
    row_steps: int = 0
    drafted: int = 0
    accepted: int = 0
    rejected: int = 0
    draft_calls: int = 0
    seconds: float = 0.0
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0

    def __add__(self, other: Metrics) -> Metrics:
        pairs = {field.name: getattr(self, field.name) + getattr(other, field.name) for field in fields(self)}
        return Metrics(**pairs)

    @classmethod
    def of_step(cls, report: StepReport, rejected: int) -> Metrics:
        """Return the counts of one step."""
        return cls(
            tokens=sum(len(row) for row in report.committed),
            target_calls=1,
            row_steps=sum(1 for row in report.committed if row),
            drafted=sum(report.drafted),
            accepted=sum(report.accepted),
            rejected=rejected,
            draft_calls=report.draft_calls,
            seconds=report.step_seconds,
            draft_seconds=report.draft_seconds,
            verify_seconds=report.verify_seconds,
        )

    def with_seconds(self, seconds: float) -> Metrics:
        """Return the same counts with another wall time: that of the whole call, set-up included."""
        return replace(self, seconds=seconds)

    @property
    def block_efficiency(self) -> float:
        """Tokens a target call and row, recovered and bonus tokens included; plain decoding has 1."""
        return self.tokens / self.row_steps if self.row_steps else 0.0

    @property
    def alpha(self) -> float | None:
        """Acceptance rate E(beta): kept draft tokens over judged ones (those up to the first rejection)."""
        judged = self.accepted + self.rejected
        return self.accepted / judged if judged else None

    @property
    def tokens_per_second(self) -> float:
        """New tokens of all rows a second of wall time."""
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def draft_seconds_per_call(self) -> float | None:
        """Seconds to draft one token (of every row): the drafter's part of c (Definition 3.7)."""
        return self.draft_seconds / self.draft_calls if self.draft_calls else None

    @property
    def verify_seconds_per_call(self) -> float | None:
        """Seconds of one target call; of a plain run, the target's part of c (Definition 3.7)."""
        return self.verify_seconds / self.target_calls if self.target_calls else None


@dataclass(frozen=True)
class BatchResult:
    """The result of one call.

    Attributes:
        rows: The sequences, in the order of the prompts.
        metrics: Counts and times.
        failures: Plugins that were switched off on the way.
    """

    rows: tuple[Generation, ...]
    metrics: Metrics
    failures: tuple[PluginFailure, ...] = ()
