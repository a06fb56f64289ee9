"""`specdec theory speed --profile`: the speed to expect of a deployment, from a drafter's profile."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from specdec_core.cli.options.shared_options import output_console, print_json
from specdec_core.costs import step_seconds
from specdec_core.interface.errors import ConfigError
from specdec_core.offline.profile import SpeculationProfile, read_profile
from specdec_core.study.report.formats import number
from specdec_core.study.report.layout import Column, Prose, ReportTable, Row, for_terminal
from specdec_core.theory.ranges import check


@dataclass(frozen=True)
class ProfileForecast:
    """The forecast for one gamma of a profile.

    Attributes:
        gamma: Tokens drafted per step.
        tokens: The acceptance length of the profile: tokens per step.
        improvement: Factor of wall time if a draft is verified in the time of one token, as in Theorem 3.8.
        improvement_at_cost: The same with the times that were given; None without.
    """

    gamma: int
    tokens: float
    improvement: float
    improvement_at_cost: float | None = None

    @property
    def speed(self) -> float:
        """The improvement to rank by."""
        return self.improvement if self.improvement_at_cost is None else self.improvement_at_cost


def show_profile_forecast(
    path: Path, c: float | None, verify: Mapping[int, float] | None, max_gamma: int, *, as_json: bool, wide: bool
) -> None:
    """Print the forecast for each gamma of a profile.

    Args:
        path: The profile.
        c: Cost coefficient.
        verify: T(k) / T(0) for some k; None for 1 everywhere.
        max_gamma: The largest gamma to consider.
        as_json: Print JSON.
        wide: Show all columns.

    Raises:
        ConfigError: The profile does not exist, or c is missing.
        ValueError: c is out of range.
    """
    if c is None:
        raise ConfigError("give --c with --profile: a profile says how much is accepted, and not what it costs.")
    check("c", c)
    profile = read_profile(path)
    found = _forecasts(profile, c, verify, max_gamma)
    best = max(found, key=lambda one: one.speed)
    if as_json:
        print_json({"method": profile.method, "best": best.gamma, "gammas": [asdict(one) for one in found]})
        return
    console = output_console(wide=wide)
    console.print(for_terminal(_table(found, best, profile.method)))
    console.print(Prose(f"With this profile the best gamma is {best.gamma}, for {best.speed:.3f}×."))
    if profile.accept_length_model == "measured_per_k":
        console.print(Prose("Only gammas that the profile was measured with are shown."))


def _forecasts(
    profile: SpeculationProfile, c: float, verify: Mapping[int, float] | None, max_gamma: int
) -> list[ProfileForecast]:
    lengths = {k: tokens for k, tokens in profile.accept_lengths().items() if k <= max_gamma}
    seconds = None if verify is None else step_seconds(c, max(lengths, default=0), verify)
    plain = ProfileForecast(0, 1.0, 1.0, None if seconds is None else 1.0)
    return [
        plain,
        *(
            ProfileForecast(k, tokens, tokens / (k * c + 1), _at_cost(tokens, k, seconds))
            for k, tokens in lengths.items()
        ),
    ]


def _at_cost(tokens: float, k: int, seconds: Sequence[float] | None) -> float | None:
    return None if seconds is None else tokens * seconds[0] / seconds[k]


def _table(found: Sequence[ProfileForecast], best: ProfileForecast, method: str | None) -> ReportTable:
    timed = best.improvement_at_cost is not None
    columns = (
        Column("gamma"),
        Column("tokens/step"),
        Column("speed\n(3.8)"),
        *([Column("speed at\nthese times")] if timed else []),
        Column("", numeric=False),
    )
    rows = []
    for one in found:
        cells = [str(one.gamma), f"{one.tokens:.3f}", number(one.improvement, 3, "×")]
        cells += [number(one.improvement_at_cost, 3, "×")] if timed else []
        rows.append(Row((*cells, "best" if one is best else ""), "bold green" if one is best else ""))
    return ReportTable(columns, tuple(rows), title=method)
