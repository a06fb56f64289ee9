"""The file `speculation_profile.json`, schema 1.0: its fields, and its checks. Importing this imports no torch.

References:
    The schema of NVIDIA's Model-Optimizer, `specdec_bench`. Dynamo's mocker reads the conditional rates, the
    synthetic acceptance of vLLM the marginal ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from specdec_core.interface.errors import ConfigError, reading, shortened
from specdec_core.interface.files import open_text, writing_file

FILE_NAME = "speculation_profile.json"
"""Name of the file, beside a drafter's weights."""
TOLERANCE = 0.02
"""The mean acceptance length may differ so much from the one that follows from the marginal rates."""
_ROUNDING = 1e-6
_MAX_BYTES = 1 << 24

Rate = Annotated[float, Field(ge=0, le=1)]
Length = Annotated[float, Field(ge=1)]


class _Part(BaseModel):
    # Other tools may add fields.
    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)


class MeanConsistency(_Part):
    """The check that the mean acceptance length is 1 + the sum of the marginal rates."""

    implied_mean_accept_length: float
    reported_mean_accept_length: float
    abs_delta: float
    tolerance: float = TOLERANCE
    passed: bool


class MarginalMonotonicity(_Part):
    """The check that the marginal rates never increase, as those of a survival function."""

    passed: bool
    violations: tuple[dict[str, float], ...] = ()


class Validation(_Part):
    """Both checks of a profile."""

    mean_consistency: MeanConsistency
    marginal_monotonicity: MarginalMonotonicity


class SpeculationProfile(_Part):
    """The acceptance of a drafter by position, over the steps with a draft."""

    schema_version: Literal["1.0"] = "1.0"
    """Version of the schema."""
    measured: Literal[True] = True
    """Whether anything was measured: other tools write false into a profile without numbers."""
    method: str | None = None
    """Name of the drafter."""
    draft_checkpoint: Any = None
    """The draft model; paths are cut to their last two components."""
    target_model: Any = None
    """The target, likewise."""
    num_speculative_tokens: Annotated[int, Field(ge=1)]
    """K, the gamma at which the rates were measured."""
    block_size: int | None = None
    """Tokens that a drafter drafts at once; None if that is not known."""
    max_supported_k: int | None = None
    """The largest gamma that was measured."""
    verification_method: Literal["longest_prefix", "block"] = "longest_prefix"
    """`block` for the rule of that name, for which there are no rates by position."""
    conditional_accept_rates: tuple[Rate, ...] | None = None
    """`[K]`, the probability that token i + 1 of a draft is accepted if the first i were."""
    marginal_accept_rates: tuple[Rate, ...] | None = None
    """`[K]`, the probability that the first i + 1 tokens are accepted."""
    mean_accept_length: Length
    """Tokens per step with a draft: 1 + the sum of the marginal rates."""
    mean_accept_length_per_request: Length | None = None
    """The mean over the requests, each with the same weight; None if they were not told apart."""
    accept_length_model: Literal["chain_analytic", "measured_per_k"] = "measured_per_k"
    """`chain_analytic` if a draft of n tokens is the beginning of one of n + 1."""
    accept_length_by_k: dict[str, Length] = {}
    """The mean acceptance length by gamma, as measured."""
    acceptance_length_histogram: dict[str, float] | None = None
    """Steps by their acceptance length, at gamma K; expected ones, in fractions, in a replay."""
    per_category: dict[str, dict[str, Any]] | None = None
    """The same figures by category of the prompts; None without categories."""
    measurement_conditions: dict[str, Any] | None = None
    """What else decides on the numbers."""
    validation: Validation | None = None
    """Both checks."""
    vectors_unavailable_reason: str | None = None
    """Why there are no rates by position."""

    @property
    def alpha(self) -> float | None:
        """Acceptance rate over all verified draft tokens, which follows from the marginal rates."""
        rates = self.marginal_accept_rates
        return None if rates is None else sum(rates) / (1 + sum(rates[:-1]))

    def accept_lengths(self) -> dict[int, float]:
        """Return the tokens per step with a draft by gamma: as measured, else by the rates where these say it."""
        measured = {int(k): length for k, length in self.accept_length_by_k.items()}
        measured.setdefault(self.num_speculative_tokens, self.mean_accept_length)
        if self.accept_length_model == "chain_analytic" and self.marginal_accept_rates is not None:
            by_rates = {
                k: 1 + sum(self.marginal_accept_rates[:k]) for k in range(1, self.num_speculative_tokens + 1)
            }
            measured = by_rates | measured
        return dict(sorted(measured.items()))


def validate(mean: float, marginal: Sequence[float]) -> Validation:
    """Return both checks of a mean acceptance length and marginal rates."""
    implied = 1 + sum(marginal)
    delta = abs(implied - mean)
    violations = tuple(
        {"position": position, "value": value, "previous": previous}
        for position, (previous, value) in enumerate(pairwise(marginal), start=1)
        if value > previous + 1e-9
    )
    return Validation(
        mean_consistency=MeanConsistency(
            implied_mean_accept_length=round(implied, 6),
            reported_mean_accept_length=round(mean, 6),
            abs_delta=round(delta, 6),
            passed=delta <= TOLERANCE,
        ),
        marginal_monotonicity=MarginalMonotonicity(passed=not violations, violations=violations),
    )


def write_profile(profile: SpeculationProfile, path: Path) -> None:
    """Write a profile, whole or not at all.

    Raises:
        ConfigError: It cannot be written.
    """
    with writing_file(path) as temporary:
        temporary.write_text(profile.model_dump_json(indent=2) + "\n", encoding="utf-8")


def read_profile(path: Path) -> SpeculationProfile:
    """Read a profile, whichever tool wrote it, and check it again.

    Args:
        path: The file, or the folder of a drafter that it lies in.

    Raises:
        ConfigError: It is not a profile of schema 1.0, holds nothing that was measured, or contradicts itself.
    """
    path = path / FILE_NAME if path.is_dir() else path
    with reading(path, ConfigError, "a speculation profile"), open_text(path, _MAX_BYTES) as file:
        text = file.read()
    try:
        profile = SpeculationProfile.model_validate_json(text)
    except ValidationError as error:
        raise ConfigError(f"{path}: {_problem(error.errors(include_url=False)[0])}") from error
    if (wrong := _contradiction(profile)) is not None:
        raise ConfigError(f"{path}: {wrong} Measure the profile again: `specdec profile` writes one.")
    return profile


def _problem(error: Mapping[str, Any]) -> str:
    where = ".".join(map(str, error["loc"])) or "the file"
    given = shortened(repr(error["input"]), 60)
    if where == "schema_version":
        return f"schema_version is {given}; this version of specdec reads 1.0."
    if where == "measured" and error["input"] is False:
        return "`measured` is false: this profile is a placeholder without numbers. `specdec profile` writes one."
    return f"not a speculation profile of schema 1.0: {where}: {error['msg']}; given {given}."


def _contradiction(profile: SpeculationProfile) -> str | None:
    """Return what is wrong with the numbers of a profile; None if nothing is."""
    marginal, conditional = profile.marginal_accept_rates, profile.conditional_accept_rates
    if marginal is None or conditional is None:
        return None if profile.verification_method == "block" else "the rates by position are missing."
    k = profile.num_speculative_tokens
    if len(marginal) != k or len(conditional) != k:
        return f"num_speculative_tokens is {k}, but there are {len(marginal)} and {len(conditional)} rates."
    checks = validate(profile.mean_accept_length, marginal)
    if not checks.marginal_monotonicity.passed:
        first = checks.marginal_monotonicity.violations[0]
        return (
            f"marginal_accept_rates increase at position {first['position']:.0f}, from {first['previous']:g} to "
            f"{first['value']:g}: the first tokens cannot all be accepted more often than fewer of them."
        )
    if not checks.mean_consistency.passed:
        return (
            f"mean_accept_length is {profile.mean_accept_length:g}, but 1 + the sum of marginal_accept_rates is "
            f"{checks.mean_consistency.implied_mean_accept_length:g}."
        )
    reached = 1.0
    for position, (own, all_) in enumerate(zip(conditional, marginal, strict=True)):
        # A rounded marginal rate near 0 says little about the conditional one.
        if abs(reached * own - all_) > 2 * _ROUNDING:
            return f"conditional_accept_rates and marginal_accept_rates differ at position {position}."
        reached = all_
    return None
