"""The acceptance in a log of vLLM's responses, or of an exported server. Importing this imports no torch."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specdec_core.interface.errors import ConfigError, reading
from specdec_core.interface.files import open_text
from specdec_core.offline.profile.counts import DraftCounts, Measured, counts_of_figures
from specdec_core.offline.record.log_lines import LineError, group_of, response_of
from specdec_core.study.config.grouping import group_label

_KEY = "speculative_decoding"


def measured_in_log(path: Path) -> Measured:
    """Read the acceptance of each request from a log.

    A line counts if it is, or ends with, a JSON object that holds `speculative_decoding`, or `metrics` that does:
    a response of vLLM, a line of `outputs.jsonl`, or one of the log of `transformers serve`. Others are skipped.
    The `group` or `category` of a line is the category of its request.

    Args:
        path: The log.

    Raises:
        ConfigError: No line has these figures, one of them is damaged, or they are of several models or runs.
    """
    by_gamma: dict[int, list[DraftCounts]] = defaultdict(list)
    models: set[str] = set()
    runs: set[str] = set()
    with reading(path, ConfigError, "a log of responses"), open_text(path) as lines:
        for number, line in enumerate(lines, start=1):
            try:
                found = _figures(line)
            except LineError as error:
                raise ConfigError(f"{path}:{number}: {error}") from error
            if found is None:
                continue
            response, group, figures = found
            try:
                counts = counts_of_figures(figures, prompt=number, category=group_label(group) if group else None)
            except (KeyError, TypeError, ValueError) as error:
                raise ConfigError(f"{path}:{number}: {_KEY} is damaged: {error!r}.") from error
            by_gamma[len(counts.accepted_at)].append(counts)
            for name, named in (("model", models), ("run", runs)):
                named |= {response[name]} if isinstance(response.get(name), str) else set()
    by_gamma.pop(0, None)
    if not by_gamma:
        raise ConfigError(
            f"{path}: no line holds `{_KEY}`: start vLLM with --per-request-spec-decode-metrics summary, and "
            "write each response into a line."
        )
    if len(models) > 1:
        raise ConfigError(f"{path}: the responses are of several models ({', '.join(sorted(models))}); split it.")
    if len(runs) > 1:
        raise ConfigError(
            f"{path}: the lines are of several runs ({', '.join(sorted(runs))}); name the folder of the results "
            "instead, and one of them with --run."
        )
    return Measured(by_gamma, target=next(iter(models), None), conditions={"source": "log"})


def _figures(line: str) -> tuple[Mapping[str, Any], tuple[str, ...], Mapping[str, Any]] | None:
    """Return the response in a line, the group of its prompt, and the figures; None without.

    Raises:
        LineError: The group is none.
    """
    begin = line.find("{")
    if begin < 0 or _KEY not in line:
        return None
    try:
        found = json.loads(line[begin:])
    except ValueError:
        return None
    if not isinstance(found, dict):
        return None
    response = response_of(found)
    within = response.get("metrics")
    figures = (within if isinstance(within, dict) else response).get(_KEY)
    return (response, group_of(found), figures) if isinstance(figures, dict) else None
