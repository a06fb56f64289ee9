"""The difference between two results of a study: settings, speeds, acceptance. Importing this imports no torch."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import comb, sqrt
from pathlib import Path
from typing import Any, Literal, TypeAlias

from specdec_core.interface.errors import ConfigError, reading
from specdec_core.interface.files import open_text
from specdec_core.study.config.grouping import group_label
from specdec_core.study.run.folder import RESULTS

Speed: TypeAlias = Literal["speedup", "tokens_per_second"]
"""Which speed is compared: that over the baseline of the same study, or the absolute one."""
Verdict: TypeAlias = Literal["faster", "slower", "same", "unknown"]
Run: TypeAlias = tuple[str | None, str]
"""Task and name of a run."""

_ENDS: dict[Speed, tuple[str, str]] = {
    "speedup": ("speedup_low", "speedup_high"),
    "tokens_per_second": ("tokens_per_second_min", "tokens_per_second_max"),
}
_QUANTILE = 1.96
_IGNORED = ("repeats", "run.name")
"""Settings that decide how often is measured, not what."""


@dataclass(frozen=True)
class GroupChange:
    """A group of prompts of a run in two results.

    Attributes:
        group: Its values of the columns that group the prompts.
        speed: The speed before and after; None where it is not known.
        ratio: After over before.
        verdict: `faster` or `slower` where the intervals of both speeds over prompts do not overlap.
        alpha: The acceptance rate before and after.
        accepts_otherwise: Whether the acceptance rates differ: at temperature 0 at all, else beyond their
            intervals.
    """

    group: str
    speed: tuple[float | None, float | None]
    ratio: float | None
    verdict: Verdict
    alpha: tuple[float | None, float | None]
    accepts_otherwise: bool

    @property
    def changed(self) -> bool:
        """Whether it is faster or slower, or accepts otherwise."""
        return self.verdict in ("faster", "slower") or self.accepts_otherwise


@dataclass(frozen=True)
class RunDifference:
    """A run in two results.

    Attributes:
        task: Name of its task; None if the study has one only.
        name: Its name.
        settings: Settings that differ, by their path: before and after.
        speed: The speed before and after; None where it is not known.
        ratio: After over before.
        verdict: `faster` or `slower` where the intervals of both speeds do not overlap.
        chance: The probability that intervals of so many repeats do not overlap by chance.
        alpha: The acceptance rate before and after.
        accepts_otherwise: Whether the acceptance rates differ beyond chance: at temperature 0, where decoding
            draws nothing, at all; else by two standard errors of the difference.
        status: Before and after: `ok`, `plugin-failure`, `error`; None if the run is missing.
        groups: The groups of prompts that both results have.
    """

    task: str | None
    name: str
    settings: Mapping[str, tuple[Any, Any]]
    speed: tuple[float | None, float | None]
    ratio: float | None
    verdict: Verdict
    chance: float | None
    alpha: tuple[float | None, float | None]
    accepts_otherwise: bool
    status: tuple[str | None, str | None]
    groups: tuple[GroupChange, ...] = ()

    def regressed(self, tolerance: float) -> bool:
        """Return whether the run is slower by more than a share, or does not succeed as it did."""
        failed = self.status[0] == "ok" and self.status[1] != "ok"
        slower = self.verdict == "slower" and self.ratio is not None and self.ratio < 1 - tolerance
        return failed or slower


def read_results(path: Path) -> dict[Run, dict[str, Any]]:
    """Read the results of a study.

    Args:
        path: The folder that `specdec compare --output` wrote, or its `results.jsonl`.

    Raises:
        ConfigError: It holds no results.
    """
    path = path / RESULTS if path.is_dir() else path
    found: dict[Run, dict[str, Any]] = {}
    with reading(path, ConfigError, "results of a study"), open_text(path) as lines:
        for number, line in enumerate(lines, start=1):
            try:
                row = json.loads(line)
                found[row["task"], row["name"]] = row
            except (ValueError, KeyError, TypeError) as error:
                raise ConfigError(f"{path}:{number}: not a line of {RESULTS}: {error!r}.") from error
    if not found:
        raise ConfigError(f"{path} holds no runs: `specdec compare STUDY --output FOLDER` writes them.")
    return found


def differences(
    old: Mapping[Run, Mapping[str, Any]], new: Mapping[Run, Mapping[str, Any]], by: Speed = "speedup"
) -> list[RunDifference]:
    """Return the difference of each run of two results, in the order of the new ones; then those that are gone."""
    runs = [*new, *(run for run in old if run not in new)]
    return [_difference(run, old.get(run), new.get(run), by) for run in runs]


def shared_changes(
    old: Mapping[Run, Mapping[str, Any]], new: Mapping[Run, Mapping[str, Any]]
) -> dict[str, tuple[Any, Any]]:
    """Return how the device and the versions differ."""
    first, second = next(iter(old.values())), next(iter(new.values()))
    facts = ({"device": one["device"], "versions": one["versions"]} for one in (first, second))
    return _changes(*facts)


def _difference(
    run: Run, old: Mapping[str, Any] | None, new: Mapping[str, Any] | None, by: Speed
) -> RunDifference:
    before, after = ({} if one is None else one for one in (old, new))
    speeds, ratio = _speeds(before, after, by)
    verdict = _verdict(before, after, _ENDS[by])
    chance = None
    if verdict != "unknown":
        repeats = before["repeats"], after["repeats"]
        chance = 2 / comb(sum(repeats), repeats[0])
    if run[1] == "baseline" and by == "speedup":
        verdict, chance = "same", None
    return RunDifference(
        *run,
        settings={} if old is None or new is None else _settings(old, new),
        speed=speeds,
        ratio=ratio,
        verdict=verdict,
        chance=chance,
        alpha=(before.get("alpha"), after.get("alpha")),
        accepts_otherwise=old is not None and new is not None and _accepts_otherwise(old, new),
        status=(before.get("status"), after.get("status")),
        groups=tuple(_groups(before, after, by)),
    )


def _speeds(
    before: Mapping[str, Any], after: Mapping[str, Any], by: Speed
) -> tuple[tuple[float | None, float | None], float | None]:
    """Return the speeds before and after, and their ratio."""
    first, second = before.get(by), after.get(by)
    return (first, second), second / first if first and second else None


def _verdict(before: Mapping[str, Any], after: Mapping[str, Any], ends: tuple[str, str]) -> Verdict:
    """Return whether intervals of a speed overlap."""
    found = [one.get(end) for one in (before, after) for end in ends]
    if None in found:
        return "unknown"
    low, high, new_low, new_high = (float(end or 0) for end in found)
    return "slower" if new_high < low else "faster" if new_low > high else "same"


def _groups(before: Mapping[str, Any], after: Mapping[str, Any], by: Speed) -> Iterator[GroupChange]:
    there = {tuple(one["group"]): one for one in before.get("groups", ())}
    for new in after.get("groups", ()):
        old = there.get(tuple(new["group"]))
        if old is None or not any(new["group"]):  # all prompts are the run itself
            continue
        speeds, ratio = _speeds(old, new, by)
        rates = old.get("alpha"), new.get("alpha")
        otherwise = _verdict(old, new, ("alpha_low", "alpha_high")) in ("faster", "slower")
        if after["config"]["sampling"]["temperature"] == 0:
            otherwise = None not in rates and rates[0] != rates[1]
        yield GroupChange(
            group_label(tuple(new["group"])),
            *(speeds, ratio, _verdict(old, new, (f"{by}_low", f"{by}_high"))),
            *(rates, otherwise),
        )


def _settings(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    changed = _changes(old["config"], new["config"])
    return {path: pair for path, pair in changed.items() if not path.startswith(_IGNORED)}


def _changes(old: Any, new: Any) -> dict[str, tuple[Any, Any]]:
    before, after = dict(_flat(old)), dict(_flat(new))
    return {
        path: (before.get(path), after.get(path))
        for path in sorted({*before, *after})
        if before.get(path) != after.get(path)
    }


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the leaves of nested mappings with their paths."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _flat(part, f"{path}.{key}" if path else key)
    else:
        yield path, value


def _accepts_otherwise(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    counts = [(sum(one["verified_by_position"]) / max(one["repeats"], 1), one["alpha"]) for one in (old, new)]
    if any(alpha is None or not count for count, alpha in counts):
        return False
    (n, before), (m, after) = counts
    if old["config"]["sampling"]["temperature"] == 0:
        return bool(before != after)
    share = (n * before + m * after) / (n + m)
    return bool(abs(after - before) > _QUANTILE * sqrt(share * (1 - share) * (1 / n + 1 / m)))
