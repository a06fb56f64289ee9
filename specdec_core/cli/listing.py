"""`specdec plugins`, `specdec validate` and `specdec schema`: commands that run no model."""

from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console

from specdec_core.cli.options.shared_options import AsJson, MaxRuns, Settings, StudyFile, Wide, print_json
from specdec_core.cli.terminal.console import output_console
from specdec_core.interface.errors import ConfigError
from specdec_core.registry.registry import PluginRecord, default_registry
from specdec_core.study import MAX_RUNS, Run, Study, Task, load_study, study_schema
from specdec_core.study.config.grouping import grouping_columns
from specdec_core.study.config.study import with_task
from specdec_core.study.report.formats import number
from specdec_core.study.report.layout import Column, Prose, ReportTable, Row

_SHOWN = 160
"""Characters of the first prompt that are shown."""


def plugins(as_json: AsJson = False, wide: Wide = False) -> None:
    """List the installed plugins: drafters, controllers of gamma and lenience, acceptance rules, trainers, models.

    A plugin that cannot be loaded, or whose name two distributions claim, is listed with the reason. A second name
    is an alias. The environment variable SPECDEC_PLUGINS limits the plugins to a comma-separated list of
    distributions or entry points.

    For example:

    ```
    specdec plugins
    specdec plugins --json
    SPECDEC_PLUGINS=specdec-core specdec plugins
    ```
    """
    records = default_registry().records()
    if as_json:
        print_json([asdict(record) for record in records])
        return
    console = output_console(wide=wide)
    console.print(_plugins_table(records))
    for record in records:
        if record.reason:
            console.print(f"{record.name}: {record.reason}", soft_wrap=True)


def _plugins_table(records: list[PluginRecord]) -> ReportTable:
    columns = (
        Column("kind", numeric=False),
        Column("name", numeric=False),
        Column("distribution", numeric=False, spare=1),
        Column("version", numeric=False, spare=3),
        # Below the table stands why a plugin is not ready.
        Column("state", numeric=False, spare=2 if all(one.state == "ready" for one in records) else 0),
        Column("summary", numeric=False, wraps=True),
    )
    styles = {"ready": "", "off": "dim"}
    rows = [
        Row(
            (
                one.kind or "unknown",
                ", ".join((one.name, *one.aliases)),
                one.distribution,
                one.version,
                one.state,
                one.summary,
            ),
            styles.get(one.state, "red"),
        )
        for one in records
    ]
    return ReportTable(columns, tuple(rows))


def validate(
    study: StudyFile,
    settings: Settings = None,
    max_runs: MaxRuns = MAX_RUNS,
    memory: Annotated[
        bool, typer.Option("--memory", help="Forecast the memory that each run needs, from the models' configs.")
    ] = False,
    wide: Wide = False,
) -> None:
    """Check a study without loading a model, and list its runs with grids expanded.

    All problems are reported at once, as file:line:column, with exit code 2. With --memory, a run that the memory
    of this machine does not hold is a problem, too.

    For example:

    ```
    specdec validate examples/quickstart.yaml
    specdec validate study.yaml --set batch_size=4 --set runs.0.gamma=2
    specdec validate study.yaml --memory
    ```
    """
    loaded = load_study(study, settings or (), max_runs=max_runs)
    console = output_console(wide=wide)
    for line in _headlines(loaded):
        console.print(Prose(line))
    names = ("run", "drafter", "gamma", "lenience", "rule", "draft sampling")
    columns = tuple(Column(name, numeric=False) for name in names)
    table = ReportTable(columns, tuple(Row(_run_cells(run)) for run in loaded.runs))
    ruled = any(run.rule is not None for run in loaded.runs)
    console.print(table if ruled else table.of([n for n, name in enumerate(names) if name != "rule"]))
    if memory:
        _show_memory(loaded, console)


def _show_memory(study: Study, console: Console) -> None:
    from specdec_core.study.memory import memory_needs

    needs = list(memory_needs(study))
    columns = (
        Column("run", numeric=False),
        Column("batch", spare=1),
        Column("tokens", spare=2),
        Column("weights\nGB"),
        Column("caches\nGB"),
        Column("scores\nGB", spare=3),
        Column("total\nGB"),
        Column("free\nGB"),
        Column("", numeric=False),
    )
    rows = []
    for one in needs:
        sizes = (one.weights, one.caches, one.scores, one.total, one.free)
        cells = (number(None if size is None else size / 1e9, 2) for size in sizes)
        name = with_task(one.task, one.run)
        counts = str(one.sequences), str(one.tokens)
        rows.append(Row((name, *counts, *cells, "" if one.fits else "does not fit"), "" if one.fits else "red"))
    console.print(Prose(f"Memory, forecast for {needs[0].device}:"))
    console.print(ReportTable(columns, tuple(rows)))
    if missing := [with_task(one.task, one.run) for one in needs if not one.fits]:
        raise ConfigError(
            f"the memory of {needs[0].device} does not hold {', '.join(missing)}: decode fewer prompts together "
            "(batch_size), or fewer new tokens, or set auto_find_batch_size: true."
        )


def _headlines(study: Study) -> list[str]:
    count = study.repeats
    often = f"{count.min}" if count.min == count.max else f"{count.min} to {count.max}"
    how = "" if study.config.timing else " without timing"
    repeats = f"{often} repeat(s){how}, batch size {study.config.batch_size}"
    if study.config.tasks is None:
        return [f"{study.path}: {_describe(study.tasks[0])}, {repeats}.", _first_prompt(study.tasks[0])]
    tasks = [task.with_task(line) for task in study.tasks for line in (f"{_describe(task)}.", _first_prompt(task))]
    return [f"{study.path}: {len(study.tasks)} tasks, {repeats}.", *tasks]


def _first_prompt(task: Task) -> str:
    """Return the first prompt on one line: a text, the last message of a chat, or token ids."""
    first = task.prompts[0]
    if first.tokens is not None:
        ids = ", ".join(map(str, first.tokens))
        return f"first prompt, token ids: {ids if len(ids) <= _SHOWN else f'{ids[:_SHOWN]} ...'}"
    text = first.text or str((first.messages[-1]["content"] if first.messages else None) or "")
    kind = "first prompt" if first.messages is None else "first chat, last message"
    return f"{kind}: {text if len(text) <= _SHOWN else f'{text[:_SHOWN]} ...'!r}"


def _describe(task: Task) -> str:
    beams = f"{task.generation.beams} beams, " if task.generation.beams > 1 else ""
    constraint = task.generation.constraint
    beams += "" if constraint is None else f"constrained by a {constraint.form}, "
    scored = " with references" if task.prompts[0].references else ""
    groups = len({prompt.group for prompt in task.prompts})
    columns = " and ".join(grouping_columns(task.prompts_config))
    scored += f" in {groups} group(s) by {columns}" if columns else ""
    first = sum(prompt.turn == 1 for prompt in task.prompts)
    turns = "" if first == len(task.prompts) else f" with {len(task.prompts)} turns"
    return (
        f"{len(task.runs)} runs of {first} prompt(s){turns}{scored} on {task.target.model}, "
        f"{beams}temperature {task.sampling.temperature:g}, at most {task.generation.max_new_tokens} new tokens, "
        f"seed {task.generation.seed}"
    )


def _run_cells(run: Run) -> tuple[str, ...]:
    if run.drafter is None:
        who = "none (target alone)" if run.engine is None else f"engine {run.engine.model} at {run.engine.url}"
        return run.name, who, "", "", "", ""
    settings = run.resolved()
    shown = [_settings_text(settings[key]) for key in ("drafter", "gamma")]
    if run.engine is not None:
        shown[0] += f", served by {run.engine.host}"
    lenience = "1 (lossless)" if run.lenience is None else _settings_text(settings["lenience"])
    sampling = "as the target" if run.draft_sampling is None else _settings_text(settings["draft_sampling"])
    rule = "token" if run.rule is None else _settings_text(settings["rule"]).removesuffix("()")
    if run.draft_beams is not None:
        shown[1] += f", draft_beams={run.draft_beams}"
    return run.name, *shown, lenience, rule, sampling


def _settings_text(settings: dict[str, object]) -> str:
    pairs = ((key, value) for key, value in settings.items() if key != "name" and value is not None)
    text = ", ".join(f"{key}={_value_text(value)}" for key, value in pairs)
    name = str(settings.get("name", ""))
    return f"{name}({text})" if name else text


def _value_text(value: object) -> str:
    """Return a setting as text; nested plugins have the form of the outer one."""
    if isinstance(value, list):
        return f"[{', '.join(map(_value_text, value))}]"
    return _settings_text(value) if isinstance(value, dict) and "name" in value else str(value)


def schema() -> None:
    """Print the JSON schema of a study, including the settings of all installed plugins.

    Editors use it to complete and check a study that begins with
    `# yaml-language-server: $schema=specdec.schema.json`.

    For example:

    ```
    specdec schema > specdec.schema.json
    ```
    """
    print_json(study_schema(default_registry()))
