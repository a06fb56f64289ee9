"""Counts of drafts from any source, and the profile that follows from them. Importing this imports no torch."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import fsum
from statistics import fmean
from typing import Any

from specdec_core.interface.errors import ConfigError
from specdec_core.offline.profile.format import TOLERANCE, SpeculationProfile, validate
from specdec_core.theory.intervals import ratio_interval

_NO_RATES = (
    "block verification accepts a draft as a whole, so its accepted tokens are not a longest-prefix distribution."
)


@dataclass(frozen=True)
class DraftCounts:
    """The drafts of one request with one gamma; expected numbers in a replay.

    Attributes:
        steps: Number of steps with a draft.
        accepted: Accepted draft tokens of these steps.
        accepted_at: `[gamma]`, how many of them accepted the first 1, 2, ... tokens.
        prompt: Identifies the prompt or the conversation: requests of one resemble each other. None if the counts
            are those of several requests.
        category: Category of the prompt; None without one.
    """

    steps: float
    accepted: float
    accepted_at: tuple[float, ...]
    prompt: Hashable = None
    category: str | None = None


@dataclass(frozen=True)
class Measured:
    """The drafts of a drafter, and where they come from.

    Attributes:
        by_gamma: The counts of each request, by gamma.
        method: Name of the drafter.
        draft_model: Its model; None without one, or if it is not known.
        target: The target.
        prefix: Whether a draft of n tokens is the beginning of one of n + 1, as the drafter declares.
        block: Whether drafts were verified as a whole.
        conditions: What else decides on the numbers.
    """

    by_gamma: Mapping[int, Sequence[DraftCounts]]
    method: str | None = None
    draft_model: str | None = None
    target: str | None = None
    prefix: bool = False
    block: bool = False
    conditions: Mapping[str, Any] = field(default_factory=dict)


def counts_of_figures(
    figures: Mapping[str, Any], prompt: Hashable = None, category: str | None = None
) -> DraftCounts:
    """Return the counts of a request from the figures that vLLM has for it: see `RequestMetrics.to_plain`.

    Raises:
        ValueError: The histogram is not one of these steps and tokens.
        KeyError: A field is missing.
    """
    histogram, gamma = [int(one) for one in figures["acceptance_histogram"]], int(figures["num_spec_tokens"])
    steps, accepted = int(figures["num_spec_steps"]), int(figures["num_accepted_draft_tokens"])
    if len(histogram) != gamma + 1 or sum(histogram) != steps:
        raise ValueError(f"acceptance_histogram has {len(histogram)} entries for {gamma} tokens and {steps} steps")
    at = tuple(float(sum(histogram[position:])) for position in range(1, gamma + 1))
    return DraftCounts(float(steps), float(accepted), at, prompt, category)


def speculation_profile(measured: Measured) -> SpeculationProfile:
    """Return the profile of a drafter, with the rates at the largest gamma.

    That drafts are prefixes of longer ones does not make the rates those of every gamma: with a larger gamma, more
    steps begin behind a rejection, where the next token is rejected more often, too. So `accept_length_model` is
    `chain_analytic` only if the rates give the length of every gamma that was measured, within `TOLERANCE`.

    Raises:
        ConfigError: Nothing was drafted.
    """
    known = {gamma: each for gamma, each in measured.by_gamma.items() if fsum(one.steps for one in each)}
    if not known:
        raise ConfigError("nothing was drafted, so there is no acceptance to profile.")
    k = max(known)
    requests = [one for one in known[k] if one.steps]
    told_apart = all(one.prompt is not None for one in requests)
    figures = _figures(requests, k)
    rates = figures["marginal_accept_rates"]
    lengths = {gamma: _mean(known[gamma]) for gamma in sorted(known)}
    error = max(abs(1 + fsum(rates[:gamma]) - length) for gamma, length in lengths.items())
    chain = measured.prefix and not measured.block and error <= TOLERANCE
    return SpeculationProfile(
        method=measured.method,
        draft_checkpoint=checkpoint_id(measured.draft_model),
        target_model=checkpoint_id(measured.target),
        num_speculative_tokens=k,
        max_supported_k=k,
        verification_method="block" if measured.block else "longest_prefix",
        conditional_accept_rates=None if measured.block else figures["conditional_accept_rates"],
        marginal_accept_rates=None if measured.block else rates,
        mean_accept_length=figures["mean_accept_length"],
        mean_accept_length_per_request=_per_request(requests) if told_apart else None,
        accept_length_model="chain_analytic" if chain else "measured_per_k",
        accept_length_by_k={str(gamma): length for gamma, length in lengths.items()},
        acceptance_length_histogram=_histogram(requests, k),
        per_category=_per_category(requests, k),
        measurement_conditions={
            **measured.conditions,
            "requests": len(requests) if told_apart else None,
            "steps_with_a_draft": round(fsum(one.steps for one in requests), 6),
            "drafts_are_prefixes": measured.prefix,
            "largest_analytic_error": None if measured.block else round(error, 6),
            "accept_length_intervals_by_k": {str(gamma): _interval(known[gamma]) for gamma in sorted(known)},
        },
        validation=None if measured.block else validate(figures["mean_accept_length"], rates),
        vectors_unavailable_reason=_NO_RATES if measured.block else None,
    )


def checkpoint_id(path: str | None) -> str | None:
    """Return the last two components of a path or of a name on the hub: a profile holds no absolute paths."""
    parts = [part for part in (path or "").replace("\\", "/").split("/") if part]
    return "/".join(parts[-2:]) or None


def _figures(requests: Sequence[DraftCounts], k: int) -> dict[str, Any]:
    steps = fsum(one.steps for one in requests)
    accepted_at = [fsum(one.accepted_at[i] for one in requests if i < len(one.accepted_at)) for i in range(k)]
    marginal = tuple(round(min(one / steps, 1.0), 6) for one in accepted_at)
    reached = [steps, *accepted_at]
    conditional = tuple(round(min(own / before, 1.0), 6) if before else 0.0 for before, own in pairwise(reached))
    return {
        "mean_accept_length": _mean(requests),
        "marginal_accept_rates": marginal,
        "conditional_accept_rates": conditional,
    }


def _mean(requests: Sequence[DraftCounts]) -> float:
    return round(1 + fsum(one.accepted for one in requests) / fsum(one.steps for one in requests), 6)


def _per_request(requests: Sequence[DraftCounts]) -> float:
    return round(1 + fmean(one.accepted / one.steps for one in requests), 6)


def _interval(requests: Sequence[DraftCounts]) -> tuple[float, float] | None:
    """Return the 95% confidence interval of the mean acceptance length over other prompts like these."""
    if any(one.prompt is None for one in requests):
        return None
    tokens = [one.steps + one.accepted for one in requests]
    found = ratio_interval(tokens, [one.steps for one in requests], [one.prompt for one in requests])
    return None if found is None else (round(found[0], 6), round(found[1], 6))


def _histogram(requests: Sequence[DraftCounts], k: int) -> dict[str, float]:
    """Return the steps by their acceptance length, from 1."""
    reached = [fsum(one.steps for one in requests)]
    reached += [fsum(one.accepted_at[i] for one in requests if i < len(one.accepted_at)) for i in range(k)]
    ended = [before - after for before, after in pairwise([*reached, 0.0])]
    return {str(length): round(max(steps, 0.0), 6) for length, steps in enumerate(ended, start=1)}


def _per_category(requests: Sequence[DraftCounts], k: int) -> dict[str, dict[str, Any]] | None:
    categories = sorted({one.category for one in requests if one.category is not None})
    found = {}
    for category in categories:
        own = [one for one in requests if one.category == category]
        figures = {"num_requests": len(own), "num_steps": round(fsum(one.steps for one in own), 6)}
        found[category] = {**_figures(own, k), **figures}
    return found or None
