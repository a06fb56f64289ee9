"""From the result of a study to the command that serves its best drafter in vLLM, and what to expect there."""

import json
import re
import shlex
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from typing import cast

from specdec_core.interface.errors import SpecdecError
from specdec_core.interface.spec import DrafterConfig
from specdec_core.models.load.resolve import model_folder
from specdec_core.registry.registry import default_registry
from specdec_core.serving.vllm_module import export
from specdec_core.study import Comparison
from specdec_core.study.config.study import Run, Task
from specdec_core.study.report.served import served_counts
from specdec_core.study.report.tables import by_task
from specdec_core.study.report.verdict import fastest


def deployment(result: Comparison, output: Path | None) -> Iterator[str]:
    """Yield for each task how to serve its best drafter in vLLM, and what to look for there.

    Args:
        result: The result of a study with `deploy`.
        output: Its folder, where the drafter is exported to; None to say how to export it.
    """
    tasks = {task.name: task for task in result.study.tasks}
    for rows in by_task(result.rows):
        task = tasks[rows[0].task]
        drafting = [row for row in rows if row.lossless and "engine" not in row.config["run"]]
        best = next((row for row in fastest(drafting) if served_counts(row)), None)
        counts = None if best is None else served_counts(best)
        if best is None or counts is None:
            yield task.with_task("nothing to deploy: no run that vLLM can decode was measured.")
            continue
        run = next(one for one in task.runs if one.name == best.name)
        timed = best.speedup is not None
        why = "the fastest here" if timed else "the most tokens per forward pass; what drafts cost was not timed"
        rates = ", ".join(f"{rate:.2f}" for rate in counts.rates)
        yield task.with_task(f"Deploy {best.name} ({why}):\n\n{_command(result, task, run, output)}")
        yield (
            "After deployment, of requests like these prompts (counters of /metrics, all with the prefix "
            "vllm:spec_decode_num_):\n"
            f"  1 + accepted_tokens_total / drafts_total: {counts.acceptance_length:.2f}\n"
            f"  draft_tokens_total / drafts_total: {counts.draft_tokens / counts.drafts:.2f}\n"
            f"  accepted_tokens_per_pos_total / drafts_total, by position: {rates}\n"
            "Lower: other requests, sampling settings or chat template than here. As expected, but not faster: "
            "the batches are larger than here; compare a smaller gamma."
        )


def _command(result: Comparison, task: Task, run: Run, output: Path | None) -> str:
    """Export a drafter and return the command that serves it; without a folder, the command that exports it."""
    given = run.resolved(defaults=False)["drafter"]
    gamma = run.gamma.gamma  # type: ignore[union-attr]  # `deploy` leaves out all others
    if output is None:
        settings = shlex.quote(json.dumps(given))
        return f"    specdec export --to vllm exported --drafter {settings} --gamma {gamma}"
    folder = output.absolute() / "vllm" / re.sub(r"\W", "_", task.with_task(run.name))
    config = cast("DrafterConfig", run.drafter)
    model = model_folder(task.target.model, result.study.folder) or task.target.model
    try:
        with chdir(result.study.folder):  # where relative paths start
            made = export(default_registry(), folder, given, config, gamma, overwrite=True, target=str(model))
    except SpecdecError as error:
        return f"    it cannot be exported: {error}"
    return f"    {made.command}"
