"""The acceptance in the results of a study, live or replayed. Importing this imports no torch."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specdec_core.interface.errors import ConfigError, reading
from specdec_core.interface.files import open_text
from specdec_core.offline.profile.counts import DraftCounts, Measured, counts_of_figures
from specdec_core.registry import default_registry
from specdec_core.study.config.grouping import group_label
from specdec_core.study.report.forecast import read_results
from specdec_core.study.run.folder import OUTPUTS

_SHARED = ("drafter", "draft_sampling", "lenience", "rule")
"""Settings of a run that its acceptance depends on, besides gamma."""


def measured_in_study(folder: Path, run: str | None = None, task: str | None = None) -> Measured:
    """Read the acceptance of a drafter from the results of a study.

    Args:
        folder: The folder of `specdec compare --output` or `specdec replay --output`.
        run: A run; others that differ in gamma alone count, too. None if all runs with a fixed gamma are of one
            drafter.
        task: The task; None if there is one.

    Raises:
        ConfigError: It holds no such results, or several drafters or tasks and none was chosen; lists them.
    """
    rows = [row for row in read_results(folder).values() if _usable(row)]
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    if task is not None and task not in tasks:
        raise ConfigError(f"{folder} has no runs of a task {task!r} to profile; there are: {_list(tasks)}.")
    if task is None and len(tasks) > 1:
        raise ConfigError(f"{folder} has several tasks; choose one with --task: {_list(tasks)}.")
    rows = [row for row in rows if task is None or row["task"] == task]
    names = [row["name"] for row in rows]
    if run is not None and run not in names:
        raise ConfigError(f"{folder} has no run {run!r} to profile; there are: {_list(names)}.")
    if not rows:
        raise ConfigError(
            f"{folder} has no run to profile: it must have finished without a failure, with a fixed gamma, "
            "and without beams."
        )
    chosen = next(row for row in rows if run in (None, row["name"]))
    alike = [row for row in rows if _drafts(row) == _drafts(chosen)]
    if run is None and len(alike) < len(rows):
        raise ConfigError(f"{folder} has several drafters; choose one by a run, with --run: {_list(names)}.")
    return _measured(folder, chosen, alike)


def _usable(row: Mapping[str, Any]) -> bool:
    drafts = isinstance(row["gamma"], int) and row["drafter"] is not None and row["status"] == "ok"
    return drafts and not row.get("beams")


def _drafts(row: Mapping[str, Any]) -> list[Any]:
    return [row["config"]["run"].get(name) for name in _SHARED]


def _list(names: Sequence[str | None]) -> str:
    return ", ".join("one without a name" if name is None else name for name in names) or "none"


def _measured(folder: Path, chosen: Mapping[str, Any], alike: Sequence[Mapping[str, Any]]) -> Measured:
    requests = _requests(folder, chosen["task"])
    by_gamma = {row["gamma"]: requests.get(row["name"]) or [_whole(row)] for row in alike}
    config, drafter = chosen["config"], chosen["config"]["run"]["drafter"]
    return Measured(
        by_gamma,
        method=chosen["drafter"],
        draft_model=drafter.get("model"),
        target=config["target"]["model"],
        prefix=drafts_are_prefixes(drafter["name"]),
        block=chosen.get("rule") == "block",
        conditions={
            "source": "replay" if chosen.get("replayed") else "study",
            "device": chosen["device"],
            "sampling": config["sampling"],
            "lenience": chosen["lenience"],
            "rule": chosen.get("rule") or "token",
            "versions": chosen["versions"],
        },
    )


def drafts_are_prefixes(name: str) -> bool:
    """Return whether a drafter declares that a draft of n tokens is the beginning of one of n + 1.

    It declares so for replays, as `drafts_by_budget`. False if the drafter is not installed, or if that depends on
    its settings.
    """
    registry = default_registry()
    if name not in registry.names("drafter"):
        return False
    return getattr(registry.factory("drafter", name), "drafts_by_budget", None) is False


def _whole(row: Mapping[str, Any]) -> DraftCounts:
    """Return the counts of a run whose requests are not told apart, as those of a replay."""
    verified = [float(one) for one in row["verified_by_position"]]
    pairs = zip(row["alpha_by_position"], verified, strict=True)
    at = [rate * count for rate, count in pairs] + [0.0] * (row["gamma"] - len(verified))
    # Every draft has its first token verified.
    return DraftCounts(verified[0] if verified else 0.0, float(row["accepted"]), tuple(at))


def _requests(folder: Path, task: str | None) -> dict[str, list[DraftCounts]]:
    """Return the counts of each request by run, as far as `outputs.jsonl` has them."""
    path = (folder if folder.is_dir() else folder.parent) / OUTPUTS
    found: dict[str, list[DraftCounts]] = defaultdict(list)
    if not path.exists():
        return found
    with reading(path, ConfigError, "outputs of a study"), open_text(path) as lines:
        for number, line in enumerate(lines, start=1):
            try:
                _add_request(found, json.loads(line), task)
            except (ValueError, KeyError, TypeError) as error:
                raise ConfigError(f"{path}:{number}: not a line of {OUTPUTS}: {error!r}.") from error
    return found


def _add_request(found: dict[str, list[DraftCounts]], line: Mapping[str, Any], task: str | None) -> None:
    figures = line["metrics"]["speculative_decoding"]
    if line["task"] == task and figures is not None:
        group = line.get("group")
        category = None if group is None else group_label(tuple(group))
        # Turns of a conversation resemble each other, as repeats of a prompt do.
        conversation = line["prompt"].removesuffix(f" turn {line['turn']}")
        counts = counts_of_figures(figures, prompt=conversation, category=category)
        found[line["run"]].append(counts)
