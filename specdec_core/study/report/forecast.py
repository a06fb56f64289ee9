"""The block efficiency to expect of a run that an engine decodes: that of the same drafts. Imports no torch."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdec_core.interface.errors import ConfigError, reading
from specdec_core.study.run.folder import RESULTS

if TYPE_CHECKING:
    from specdec_core.study.report.summary import RunSummary

_OF_RUN = ("drafter", "gamma", "lenience", "rule", "draft_sampling")
_OF_TASK = ("target", "prompts", "sampling", "generation")
"""Settings that the block efficiency depends on."""


@dataclass(frozen=True)
class Forecast:
    """The block efficiency of the drafts that a server was started with.

    Attributes:
        block_efficiency: Of the same drafter and gamma on the same prompts.
        low: Lower end of its 95% confidence interval over texts of other prompts; None where it was measured.
        high: Its upper end.
        source: The run that decoded here, or the folder of a replay.
    """

    block_efficiency: float
    low: float | None
    high: float | None
    source: str


def with_forecasts(summaries: "Sequence[RunSummary]", folder: Path | None = None) -> "Iterator[RunSummary]":
    """Yield the summaries, those of engines with a forecast where it is known.

    Args:
        summaries: The summaries of the runs of a study.
        folder: Results of a replay, or of another study; they are preferred to the runs that decoded here.

    Raises:
        ConfigError: The folder holds no results.
    """
    here = [one.flat() for one in summaries if "engine" not in one.config["run"]]
    sources = [(row, row["name"]) for row in here]
    if folder is not None:
        sources = [*((row, str(folder)) for row in read_results(folder).values()), *sources]
    known = {_key(row["config"]): (row, source) for row, source in reversed(sources) if _usable(row)}
    for one in summaries:
        row, source = known.get(_key(one.config), (None, ""))
        if row is None or one.replayed is not None or "engine" not in one.config["run"]:
            yield one
            continue
        on = row.get("replayed") or {}
        yield replace(one, forecast=Forecast(row["block_efficiency"], on.get("low"), on.get("high"), source))


def read_results(path: Path) -> dict[tuple[str | None, str], dict[str, Any]]:
    """Return the lines of the results of a study by task and run.

    Args:
        path: The folder that `specdec compare --output` wrote, or its `results.jsonl`.

    Raises:
        ConfigError: It holds no results.
    """
    path = path / RESULTS if path.is_dir() else path
    found: dict[tuple[str | None, str], dict[str, Any]] = {}
    with reading(path, ConfigError, "results of a study"), path.open(encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                row = json.loads(line)
                found[row["task"], row["name"]] = row
            except (ValueError, KeyError, TypeError) as error:
                raise ConfigError(f"{path}:{number}: not a line of {RESULTS}: {error!r}.") from error
    if not found:
        raise ConfigError(f"{path} holds no runs: `specdec compare STUDY --output FOLDER` writes them.")
    return found


def _usable(row: Mapping[str, Any]) -> bool:
    drafts = row["config"]["run"].get("drafter") is not None and row["status"] == "ok"
    return drafts and row["block_efficiency"] is not None


def _key(config: Mapping[str, Any]) -> str:
    """Return what tells runs apart that accept differently."""
    plain = {name: config["run"].get(name) for name in _OF_RUN} | {name: config[name] for name in _OF_TASK}
    return json.dumps(plain, sort_keys=True)
