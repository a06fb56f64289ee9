"""Counts of one request: the draft tokens of each step, and the figures that vLLM derives from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_STEPS = ("per_step_accepted", "per_step_drafted")
"""Of `metrics.speculative_decoding` in a detailed response."""
_FIGURES = (
    "mean_acceptance_length",
    "draft_acceptance_rate",
    "acceptance_histogram",
    "acceptance_histogram_by_draft_length",
    "num_spec_steps",
    "num_accepted_draft_tokens",
    "num_draft_tokens",
    "num_spec_tokens",
)


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """Raw counts of one sequence, from which its figures are derived. `Metrics` has the sums over a batch.

    The figures have the names and the meaning of `metrics.speculative_decoding` in a response of vLLM: steps
    without a draft are left out. Draft tokens behind the end of the text count as drafted, not as accepted. The
    nodes of a tree are its draft tokens, and those of the accepted path are accepted. A request without any draft
    has a mean acceptance length of 1 and an acceptance rate of 0.

    Attributes:
        num_spec_tokens: The longest draft that the gamma controller may ask for; 0 without a drafter.
        steps: Forward passes of the target in which the sequence was decoded, with a draft or without.
        per_step_drafted: Draft tokens of each step with a draft, in order.
        per_step_accepted: Accepted draft tokens of the same steps.
        rejected: Drafts cut short by a rejection; None where an engine does not say.
        per_step_begin: The index of the first new token that each of the steps with a draft committed; empty where
            an engine does not say.

    References:
        vLLM's documentation of `--per-request-spec-decode-metrics`.
    """

    num_spec_tokens: int
    steps: int
    per_step_drafted: tuple[int, ...] = ()
    per_step_accepted: tuple[int, ...] = ()
    rejected: int | None = None
    per_step_begin: tuple[int, ...] = ()

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> RequestMetrics:
        """Return the metrics from the result of `dataclasses.asdict`, also after a round trip through JSON."""
        steps = {name: tuple(plain[name]) for name in (*_STEPS, "per_step_begin")}
        return cls(**{**plain, **steps})

    def split(self, begin: int, end: int) -> tuple[RequestMetrics, RequestMetrics]:
        """Return the counts of the steps with a draft that began within some tokens, and of the others.

        Args:
            begin: The index of the first of these tokens among the new ones.
            end: The index behind the last.
        """
        steps = list(zip(self.per_step_begin, self.per_step_drafted, self.per_step_accepted, strict=True))
        inside = [one for one in steps if begin <= one[0] < end]
        outside = [one for one in steps if not begin <= one[0] < end]
        return self._of(inside), self._of(outside)

    def _of(self, steps: Sequence[tuple[int, int, int]]) -> RequestMetrics:
        begins, drafted, accepted = zip(*steps, strict=True) if steps else ((), (), ())
        return RequestMetrics(self.num_spec_tokens, len(steps), drafted, accepted, per_step_begin=begins)

    def to_plain(self, *, detailed: bool = False) -> dict[str, Any]:
        """Return the figures by vLLM's names, as JSON can hold them.

        Args:
            detailed: Add `per_step_accepted` and `per_step_drafted`, which grow with the number of steps.
        """
        plain = {name: getattr(self, name) for name in _FIGURES}
        return plain | ({name: list(getattr(self, name)) for name in _STEPS} if detailed else {})

    @property
    def num_spec_steps(self) -> int:
        """Number of steps with a draft."""
        return len(self.per_step_drafted)

    @property
    def num_draft_tokens(self) -> int:
        """Number of draft tokens."""
        return sum(self.per_step_drafted)

    @property
    def num_accepted_draft_tokens(self) -> int:
        """Number of accepted draft tokens."""
        return sum(self.per_step_accepted)

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens of a step with a draft, with the recovered or bonus token: 1 + accepted / steps."""
        return 1 + self.num_accepted_draft_tokens / (self.num_spec_steps or 1)

    @property
    def draft_acceptance_rate(self) -> float:
        """Accepted over drafted tokens. The acceptance rate alpha leaves out those behind the first rejection."""
        return self.num_accepted_draft_tokens / (self.num_draft_tokens or 1)

    @property
    def acceptance_histogram(self) -> list[int]:
        """The number of steps with a draft that accepted 0, 1, ... `num_spec_tokens` draft tokens."""
        return _histogram(self.per_step_accepted, self.num_spec_tokens)

    @property
    def acceptance_histogram_by_draft_length(self) -> dict[str, list[int]]:
        """The number of steps that accepted 0, 1, ... k draft tokens, by the length k of the draft."""
        pairs = list(zip(self.per_step_drafted, self.per_step_accepted, strict=True))
        return {
            str(length): _histogram([accepted for drafted, accepted in pairs if drafted == length], length)
            for length in sorted(set(self.per_step_drafted))
        }


def _histogram(values: Iterable[int], longest: int) -> list[int]:
    counts = [0] * (longest + 1)
    for value in values:
        counts[value] += 1
    return counts
