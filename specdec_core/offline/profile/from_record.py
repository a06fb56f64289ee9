"""The acceptance of a drafter along the texts of a record, at every gamma."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from specdec_core.interface import ConfigError, Progress
from specdec_core.offline.profile.counts import DraftCounts, Measured
from specdec_core.offline.record import Record
from specdec_core.offline.record.format import conversation_of
from specdec_core.offline.replay import DrafterReplay
from specdec_core.offline.replay.expected_counts import expected_counts
from specdec_core.registry import Registry, default_registry, plugin_settings
from specdec_core.study.config.grouping import group_label


def measured_on_record(
    record: Record,
    drafter: Any,
    *,
    max_gamma: int,
    task: str | None = None,
    registry: Registry | None = None,
    folder: Path = Path(),
    progress: Progress | None = None,
) -> Measured:
    """Ask a drafter for drafts along the texts of a record, and return what is expected with each gamma.

    Args:
        record: The record.
        drafter: Its name, or a mapping with `name` and settings.
        max_gamma: The largest gamma, K. All gammas up to K follow from one pass.
        task: The task; None if the record has one.
        registry: Where plugins come from; by default the installed ones.
        folder: Base for relative paths in the drafter's settings.
        progress: Where progress is reported.

    Raises:
        ConfigError: The record has several tasks and none was chosen, or the drafter does not suit it.
        PluginError: The drafter cannot be loaded, or fails.
    """
    names = [part.header.task for part in record.parts]
    if task is None and len(names) > 1:
        raise ConfigError(f"the record has several tasks; choose one with --task: {', '.join(map(str, names))}.")
    if task is not None and task not in names:
        raise ConfigError(f"the record has no task {task!r}; it has: {', '.join(map(str, names))}.")
    part = record.parts[0 if task is None else names.index(task)]
    registry = registry or default_registry()
    config = plugin_settings(registry, "drafter", drafter)
    replay = DrafterReplay(
        record, part, config, max_gamma=max_gamma, registry=registry, folder=folder, progress=progress
    )
    acceptance = replay.acceptance()
    categories = [group_label(one.group) if one.group else None for one in part.columns]
    prompt_of = conversation_of(part)
    by_gamma: dict[int, list[DraftCounts]] = {}
    for gamma in range(1, max_gamma + 1):
        found = expected_counts([text.drafted(gamma) for text in acceptance], gamma)
        rows = zip(acceptance, found.verified_at[:, 0], found.accepted, found.accepted_at, strict=True)
        by_gamma[gamma] = [
            DraftCounts(
                *(float(steps), float(accepted), tuple(map(float, at)), prompt_of(text.number)),
                category=categories[text.number] if categories else None,
            )
            for text, steps, accepted, at in rows
        ]
    return Measured(
        by_gamma,
        method=getattr(config, "name", None),
        draft_model=getattr(config, "model", None),
        target=record.header.target.model,
        prefix=not replay.drafter.drafts_by_budget,
        conditions={
            "source": "replay",
            "sampling": part.header.sampling.model_dump(mode="json"),
            "lenience": 1.0,
            "rule": "token",
            "notes": list(replay.notes),
        },
    )
