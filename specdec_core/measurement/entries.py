"""The drafters of some runs, each once and with a separate name. Importing this imports no torch."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from specdec_core.measurement.measurement_file import DrafterEntry
from specdec_core.study.config.study import Run, drafter_key, drafter_label


def entries_of(runs: Sequence[Run], named: Collection[str] = ()) -> dict[str, DrafterEntry]:
    """Return the distinct drafters of some runs, by `drafter_key`.

    A drafter that belongs to a single run with an explicit name gets that name. Otherwise its label is used, with
    the settings that differ if several drafters have the same label.

    Args:
        runs: The runs, without the baseline.
        named: The names of those that were given one.
    """
    same: dict[str, list[Run]] = {}
    for run in runs:
        same.setdefault(drafter_key(run.drafter, run.draft_sampling), []).append(run)
    labels = {key: _label(some, named) for key, some in same.items()}
    entries = {}
    for key, (run, *_) in same.items():
        assert run.drafter is not None, "the baseline drafts nothing"
        others = [same[other][0] for other, label in labels.items() if label == labels[key]]
        name = labels[key] if len(others) == 1 else f"{labels[key]}({_differences(run, others)})"
        entries[key] = DrafterEntry(name, run.drafter, run.draft_sampling)
    return entries


def _label(runs: Sequence[Run], named: Collection[str]) -> str:
    first = runs[0]
    assert first.drafter is not None, "the baseline drafts nothing"
    return first.name if len(runs) == 1 and first.name in named else drafter_label(first.drafter)


def _differences(run: Run, others: Sequence[Run]) -> str:
    """Return the settings of a drafter that differ from those of others with the same label."""
    own, settings = _settings(run), [_settings(one) for one in others]
    return ", ".join(f"{key}={own[key]}" for key in own if any(one.get(key) != own[key] for one in settings))


def _settings(run: Run) -> dict[str, Any]:
    assert run.drafter is not None, "the baseline drafts nothing"
    sampling = {} if run.draft_sampling is None else run.draft_sampling.model_dump(exclude_defaults=True)
    return {**run.drafter.model_dump(mode="json"), **{f"draft_sampling.{key}": sampling[key] for key in sampling}}
