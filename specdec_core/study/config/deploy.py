"""The runs of a study as a server decodes them, to forecast what it does with each drafter. Imports no torch."""

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from specdec_core.interface import ConfigError, DrafterConfig
from specdec_core.interface.controllers import FixedGammaConfig
from specdec_core.interface.rules import TokenRuleConfig
from specdec_core.interface.settings import SamplingSettings
from specdec_core.registry.nesting import dotted
from specdec_core.registry.requirements import beyond_token_ids
from specdec_core.study.config.study import Run, Task, with_task


def as_in_vllm(tasks: Sequence[Task], *, recorded: bool = False) -> tuple[list[Task], tuple[str, ...]]:
    """Return tasks with the runs that vLLM can decode, by its rules.

    vLLM drafts gamma tokens in every step, greedily, except in the one that reads the prompt. It does not shorten
    drafts at `max_new_tokens`, so that the texts are decoded gamma tokens further; steps that begin there are not
    counted.

    Args:
        tasks: The tasks, the baseline first in each.
        recorded: Whether they are replayed: recorded texts go no further.

    Returns:
        The tasks, and a line for each run that is left out, with the reason.

    Raises:
        ConfigError: vLLM can decode none of the runs.
    """
    left_out: dict[str, None] = {}
    served = []
    for task in tasks:
        runs = [task.runs[0]]
        for run in task.runs[1:]:
            reason = None if run.engine is not None else _reason(run, task)
            if reason is not None:
                left_out[with_task(task.name, f"{run.name}: {reason}")] = None
            else:
                runs.append(run if run.engine is not None else _served(run))
        longest = max((run.gamma.gamma for run in runs if isinstance(run.gamma, FixedGammaConfig)), default=0)
        most = task.generation.max_new_tokens
        further = task.generation.model_copy(update={"max_new_tokens": most + (0 if recorded else longest)})
        served.append(replace(task, runs=tuple(runs), generation=further, counted=most))
    if all(len(task.runs) == 1 for task in served):
        raise ConfigError("\n".join(["deploy: vLLM can decode none of these runs:", *left_out]))
    return served, tuple(left_out)


def _served(run: Run) -> Run:
    gamma = cast("FixedGammaConfig", run.gamma).model_copy(update={"skip_first": True})
    return run.model_copy(update={"gamma": gamma, "draft_sampling": SamplingSettings(temperature=0)})


def _reason(run: Run, task: Task) -> str | None:
    """Return why vLLM cannot decode a run; None if it can."""
    drafter = cast("DrafterConfig", run.drafter)
    if task.generation.beams > 1:
        return "vLLM does not draft in beam search."
    if not isinstance(run.gamma, FixedGammaConfig) or not run.gamma.gamma:
        return "vLLM drafts a fixed number of tokens, at least 1; give `gamma` as a number."
    if run.lenient or not isinstance(run.rule, TokenRuleConfig | None):
        return "vLLM verifies drafts by the rule `token`, without lenience."
    if drafter.vllm_method is None:
        for keys, name, needs in beyond_token_ids(drafter):
            where = f" ({dotted(keys)})" if keys else ""
            return f"the drafter {name!r}{where} {needs}, and vLLM passes token ids alone to drafters not its own."
    return None
