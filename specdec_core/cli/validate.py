"""`specdec validate`: what a study says, and whether it may."""

from rich.table import Table
from rich.text import Text

from specdec_core.cli.console import output_console
from specdec_core.cli.options import Settings, StudyFile
from specdec_core.study import Run, Study, Task, load_study


def validate(
    study: StudyFile,
    settings: Settings = None,
) -> None:
    """Check a study without loading a model, and show its runs with grids written out.

    What is wrong is reported as file:line:column, all of it at once, with exit code 2.

    For example:

    ```
    specdec validate examples/quickstart.yaml
    specdec validate study.yaml --set batch_size=4 --set runs.0.gamma=2
    ```
    """
    loaded = load_study(study, settings or ())
    console = output_console()
    for line in _headlines(loaded):
        console.print(line, markup=False, soft_wrap=True)
    table = Table(header_style="bold")
    for heading in ("run", "drafter", "gamma", "lenience", "draft sampling"):
        table.add_column(heading)
    for run in loaded.runs:
        table.add_row(*(Text(cell) for cell in _cells(run)))
    console.print(table)


def _headlines(study: Study) -> list[str]:
    turns = f"{study.config.repeats} repeat(s), batch size {study.config.batch_size}"
    if study.config.tasks is None:
        return [f"{study.path}: {_describe(study.tasks[0])}, {turns}."]
    tasks = [task.titled(f"{_describe(task)}.") for task in study.tasks]
    return [f"{study.path}: {len(tasks)} tasks, {turns}.", *tasks]


def _describe(task: Task) -> str:
    scored = " with references" if task.prompts[0].references else ""
    return (
        f"{len(task.runs)} runs of {len(task.prompts)} prompt(s){scored} on {task.target.model}, "
        f"temperature {task.sampling.temperature:g}, at most {task.generation.max_new_tokens} new tokens, "
        f"seed {task.generation.seed}"
    )


def _cells(run: Run) -> list[str]:
    if run.drafter is None:
        return [run.name, "none: the target alone", "–", "–", "–"]
    settings = run.resolved()
    spelled = [_spell(settings[key]) for key in ("drafter", "gamma")]
    lenience = "1 (lossless)" if run.lenience is None else _spell(settings["lenience"])
    sampling = "as the target" if run.draft_sampling is None else _spell(settings["draft_sampling"])
    return [run.name, *spelled, lenience, sampling]


def _spell(settings: dict[str, object]) -> str:
    said = ", ".join(
        f"{key}={_value(value)}" for key, value in settings.items() if key != "name" and value is not None
    )
    name = str(settings.get("name", ""))
    return f"{name}({said})" if name else said


def _value(value: object) -> str:
    """Return a setting as text; plugins that stand in it are spelled like the one they stand in."""
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    return _spell(value) if isinstance(value, dict) and "name" in value else str(value)
