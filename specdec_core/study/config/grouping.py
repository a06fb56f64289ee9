"""Groups of prompts by the columns that `group` names, and batches of one group each. Imports no torch."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from specdec_core.study.config.benchmarks import BENCHMARKS
from specdec_core.study.config.prompt_file import PromptText, conversations

if TYPE_CHECKING:
    from specdec_core.study.config.schema import PromptsConfig

Group: TypeAlias = tuple[str | None, ...]
"""A value for each column that groups the prompts; None stands for all values."""


def grouping_columns(config: "PromptsConfig") -> tuple[str, ...]:
    """Return the columns that group the prompts: those that a study states, or those of a benchmark."""
    known = BENCHMARKS.get(config.benchmark or "", {}).get("group")
    return config.group or (() if known is None else (known,))


def groups_of(prompts: Sequence[PromptText]) -> dict[Group, tuple[int, ...]]:
    """Return the numbers of the prompts of each group, from 0; empty if nothing groups them.

    Values are in the order in which they first appear. With two columns, the values of the first are followed by
    their combinations with those of the second, and then come those of the second alone. All prompts come last. Of
    several groups with the same prompts, the first is kept.

    Args:
        prompts: The prompts of a task.
    """
    if not prompts or not prompts[0].group:
        return {}
    columns = [dict.fromkeys(values) for values in zip(*(prompt.group for prompt in prompts), strict=True)]
    keys: list[Group] = [(value,) for value in columns[0]]
    if len(columns) > 1:
        seconds = (*columns[1], None)
        keys = [(value, second) for value in (*columns[0], None) for second in seconds]
    keys.append((None,) * len(columns))
    found: dict[Group, tuple[int, ...]] = {}
    for key in keys:
        members = tuple(number for number, prompt in enumerate(prompts) if belongs(prompt.group, key))
        if members and members not in found.values():
            found[key] = members
    return found


def belongs(group: Group, key: Group) -> bool:
    """Return whether a prompt with some values is in a group."""
    return all(wanted in (None, value) for value, wanted in zip(group, key, strict=True))


def group_label(group: Group) -> str:
    """Return a group as a text of one line."""
    return " / ".join("all" if value is None else value for value in group)


def batches_of(prompts: Sequence[PromptText], size: int) -> list[tuple[range, ...]]:
    """Return the conversations of each batch: their order, but each batch has a single group.

    The time of a batch is then that of its group.

    Args:
        prompts: The prompts of a task.
        size: The most conversations of a batch.

    Returns:
        For each batch, the numbers of the turns of each conversation, from 0. Most have a single turn.
    """
    every = conversations(prompts)
    by_group: dict[tuple[str, ...], list[range]] = {}
    for turns in every:
        by_group.setdefault(prompts[turns.start].group, []).append(turns)
    # One at a time, the order of the prompts stays, so that drafters that remember are as without groups.
    parts = by_group.values() if size > 1 else [every]
    return [tuple(part[start : start + size]) for part in parts for start in range(0, len(part), size)]
