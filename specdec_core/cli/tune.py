"""`specdec tune`: find the fastest drafter, settings and gamma."""

from dataclasses import replace
from typing import Annotated

from typer import Option

from specdec_core.cli.compare import show
from specdec_core.cli.options.shared_options import StudyFile, Tasks, shown_progress
from specdec_core.cli.options.study_options import ResultOptions, StudyOptions, grouped
from specdec_core.cli.terminal.console import error_console
from specdec_core.study.config.yaml_source import written_yaml


@grouped
def tune(
    *,
    study: StudyFile,
    best: Annotated[int, Option(min=1, help="The runs of each task to time live.")] = 4,
    task: Tasks = None,
    results: ResultOptions,
    how: StudyOptions,
) -> None:
    r"""Find the fastest run of a study: replay all runs on recorded texts, and time the best of them live.

    The runs of a study are the candidates; `grid` makes all combinations of settings. The target decodes the
    prompts alone and is timed (`specdec record`), all runs are replayed on these texts (`specdec replay`), and
    those with the highest expected speed-up decode live beside the baseline (`specdec compare`). With --output,
    the folder receives `best.yaml`, the study of the fastest run, and what the three steps write.

    Runs that cannot be replayed (lenience below 1, trees, lossy rules) are left to `specdec compare`. A run that
    the verdict does not rank does not win, and is named. The exit codes are those of `specdec compare`.

    For example:

    ```
    specdec tune examples/tune.yaml --output results
    specdec tune examples/tune.yaml --best 2 \
        --set generation.max_new_tokens=32
    ```
    """
    loaded = how.load(study)
    with shown_progress(quiet=how.quiet) as progress:
        from specdec_core.offline.tune import tune as find_best

        found = find_best(
            loaded, progress, best=best, tasks=task or (), output=results.output, fresh=results.fresh, ray=how.ray
        )
    errors = error_console()
    for line in found.replayed.errors:
        errors.print(f"not replayed: {line}", style="yellow", soft_wrap=True)
    show(replace(found.timed, files=found.files), how, None if found.files else written_yaml(found.best))
