"""`specdec measure`: alpha, c and T(k) of drafters, without decoding speculatively."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from pydantic import BaseModel, create_model
from typer import Argument, Option

from specdec_core.cli.console import error_console, output_console, quieten_libraries
from specdec_core.cli.options import Settings, option_of, validated
from specdec_core.cli.stages import StageProgress
from specdec_core.errors import ConfigError, unknown_name
from specdec_core.measurement.file import Measurement, read_measurement, write_measurement
from specdec_core.measurement.settings import MeasureSettings, Subject
from specdec_core.model_folder import has_encoder, model_folder
from specdec_core.output import check_output
from specdec_core.registry import default_registry, unmet_needs
from specdec_core.settings import SamplingSettings
from specdec_core.study import Study, Task, load_study, run_model
from specdec_core.study.config import PromptsConfig, RunConfig, TargetConfig
from specdec_core.study.prompts import PromptText, read_prompts
from specdec_core.study.source import parse_value
from specdec_core.study.study import drafter_label

if TYPE_CHECKING:
    from specdec_core.measurement.measure import Bench

_Model = TypeVar("_Model", bound=BaseModel)


@dataclass(frozen=True)
class _Wish:
    """What the options say, validated.

    Attributes:
        target: The target and how it is loaded.
        folder: Where relative paths are meant from.
        prompts: What it goes on from.
        chat_template: What writes chats out in the place of the tokenizer's own template; None for that.
        sampling: Its settings, but for the temperature.
        subjects: The drafters.
        settings: How much is measured, and how.
    """

    target: TargetConfig
    folder: Path
    prompts: tuple[PromptText, ...]
    chat_template: str | None
    sampling: SamplingSettings
    subjects: tuple[Subject, ...]
    settings: MeasureSettings


def measure(
    study: Annotated[
        Path | None, Argument(help="YAML file of a study, whose target, prompts and drafters are taken.")
    ] = None,
    drafter: Annotated[
        list[str] | None, Option(help="A drafter: a name, or YAML with its settings; may be repeated.")
    ] = None,
    target: Annotated[
        str | None,
        Option("--target", "--model", help="A folder, a hub name, or builtin:target, which is the default."),
    ] = None,
    prompts: Annotated[
        Path | None, Option(help="JSONL file, a prompt a line; else those that ship.", metavar="FILE")
    ] = None,
    tokens: Annotated[
        int | None, Option(help="Tokens of the target to judge drafts at.  [default: 10000]")
    ] = None,
    temperature: Annotated[
        list[float] | None, Option(help="0 is argmax; may be repeated.  [default: 0 and 1]")
    ] = None,
    lenience: Annotated[
        list[float] | None, Option(help="l in (0, 1], 1 is strict; may be repeated.  [default: 1]")
    ] = None,
    gamma: Annotated[int | None, Option(help="The longest draft.  [default: 8]")] = None,
    batch_size: Annotated[
        int | None, Option(help="Prompts decoded together when steps are timed.  [default: 1]")
    ] = None,
    rows: Annotated[
        int | None, Option(help="Prompts decoded together when acceptance is measured.  [default: 8]")
    ] = None,
    timings: Annotated[int | None, Option(help="How often each length of draft is timed.  [default: 20]")] = None,
    max_new_tokens: Annotated[int | None, Option(help="The longest text.  [default: 128]")] = None,
    top_k: Annotated[int | None, Option(help="Keep the k most probable tokens.")] = None,
    top_p: Annotated[float | None, Option(help="Keep the fewest tokens with this probability.")] = None,
    min_p: Annotated[float | None, Option(help="Keep tokens this probable, relative to the best.")] = None,
    seed: Annotated[int | None, Option(help="Same seed, same texts.  [default: 0]")] = None,
    output: Annotated[
        Path | None, Option("--output", "-o", help="JSON file for the result.", metavar="FILE")
    ] = None,
    overwrite: Annotated[bool, Option("--overwrite", help="Replace what is there.")] = False,
    settings: Settings = None,
    task: Annotated[str | None, Option(help="The task of the study, where it has several.")] = None,
    quiet: Annotated[bool, Option("--quiet", "-q", help="Show no progress.")] = False,
) -> None:
    """Measure alpha, c and T(k), and say what to expect of a drafter and with which gamma.

    The target writes, and at each of its tokens a drafter is asked for a draft, of which nothing is kept: alpha is
    the mean of sum min(p, q) over the target's own tokens (section 4.2), with a 95% confidence interval, and the
    same is done for every position of the draft. Then steps with drafts of all lengths are timed in turns.

    The file of --output is what controllers and `specdec theory` read. It is written after each drafter: the same
    command goes on from a file that is not finished.

    For example:

    ```
    specdec measure --drafter "{name: transformer, model: builtin:drafter}" --tokens 2000
    specdec measure --drafter prompt-copy --temperature 1 --lenience 1 --lenience 0.5
    specdec measure examples/quickstart.yaml --output results/measured.json
    ```
    """
    given = {name: value for name, value in locals().items() if value is not None}
    wish = _of_study(study, given) if study is not None else _of_options(given)
    unfinished = None
    if output is not None:
        unfinished = None if overwrite else _unfinished(output)
        check_output(output, overwrite or unfinished is not None)
    _measure(wish, output, unfinished, quiet)


_OF_A_STUDY = ("drafter", "target", "prompts", "top_k", "top_p", "min_p")


def _of_study(path: Path, given: Mapping[str, Any]) -> _Wish:
    """Return what a study says, with the options that replace part of it."""
    for name in _OF_A_STUDY:
        if name in given:
            raise ConfigError(
                f"{option_of((name,))}: the study says that; change it there or with --set, or give no study."
            )
    study = load_study(path, given.get("settings", ()))
    task = _task(study, given.get("task"))
    chosen = [pair for pair in zip(study.config.runs, study.runs[1:], strict=True) if pair[1] in task.runs]
    defaults = {
        "batch_size": study.config.batch_size,
        "max_new_tokens": task.generation.max_new_tokens,
        "ignore_eos": task.generation.ignore_eos,
        "seed": task.generation.seed,
        "lenience": _leniences(task),
    }
    return _Wish(
        target=task.target,
        folder=study.folder,
        prompts=task.prompts,
        chat_template=task.chat_template,
        sampling=task.sampling,
        subjects=_subjects([config for config, _ in chosen], [run.name for _, run in chosen]),
        settings=_settings({**defaults, **given}),
    )


def _task(study: Study, name: str | None) -> Task:
    """Return the task that is to be measured: the only one, or the one that is named."""
    names = [task.name for task in study.tasks if task.name is not None]
    if name is None and len(study.tasks) > 1:
        raise ConfigError(f"{study.path} has {len(names)} tasks; choose one with --task: {', '.join(names)}.")
    if name is None:
        return study.tasks[0]
    if name not in names:
        raise ConfigError(
            f"--task: {unknown_name('task', name, names) if names else 'this study names no tasks.'}"
        )
    return study.tasks[names.index(name)]


def _leniences(task: Task) -> list[float]:
    """Return l = 1, and every constant lenience of a task's runs, the strictest first."""
    numbers = {float(run.labels[2]) for run in task.runs if isinstance(run.labels[2], (int, float))}
    return sorted({1.0, *(value for value in numbers if 0 < value <= 1)}, reverse=True)


def _of_options(given: Mapping[str, Any]) -> _Wish:
    """Return what the options say without a study."""
    if "settings" in given:
        raise ConfigError("--set: it changes a study, and none was given.")
    if "task" in given:
        raise ConfigError("--task: it chooses from a study, and none was given.")
    if "drafter" not in given:
        raise ConfigError(
            "no drafter was given: name one with --drafter (`specdec plugins` lists them), or give a study."
        )
    runs = [_drafter(text) for text in given["drafter"]]
    prompts = PromptsConfig(file=given["prompts"]) if "prompts" in given else PromptsConfig(builtin="heldout")
    model = given.get("target", "builtin:target")
    model_folder(model)  # what is not there is found before torch is loaded
    settings = _settings(given)
    for run in runs:
        for _, error in unmet_needs(
            default_registry(), run.drafter, encoder_decoder=has_encoder(model), batch_size=settings.batch_size
        ):
            raise error
    return _Wish(
        target=TargetConfig(model=model),
        folder=Path(),
        prompts=read_prompts(prompts, Path()),
        chat_template=None,
        sampling=_validated(SamplingSettings, given),
        subjects=_subjects(runs, [None] * len(runs)),
        settings=settings,
    )


def _drafter(text: str) -> RunConfig:
    """Return a run with this drafter, read as a study's would be, and nothing else."""
    # No part of a run but the drafter is asked for here. The model is made at run time, out of a checker's reach.
    field: Any = run_model(default_registry()).model_fields["drafter"]
    model: Any = create_model("Measured", drafter=(field.annotation, field))
    read: Any = _validated(model, {"drafter": parse_value(text, "--drafter")})
    return RunConfig.model_construct(drafter=read.drafter, gamma=None)


def _settings(given: Mapping[str, Any]) -> MeasureSettings:
    return _validated(MeasureSettings, given)


def _validated(model: type[_Model], given: Mapping[str, Any]) -> _Model:
    """Return the settings of a model that are among the options."""
    single = ("temperature",) if model is SamplingSettings else ()
    data = {name: given[name] for name in model.model_fields if name in given and name not in single}
    data = {
        name: tuple(dict.fromkeys(value)) if isinstance(value, list) else value for name, value in data.items()
    }
    return validated(model, data)


def _subjects(runs: Sequence[RunConfig], names: Sequence[str | None]) -> tuple[Subject, ...]:
    """Return the distinct drafters of some runs, each with a name of its own.

    A drafter is called what its run is called, if that was given a name and is its only one; otherwise what tables
    call it, with the settings that tell it from others of the name.
    """
    found: dict[str, tuple[RunConfig, list[str | None]]] = {}
    for run, name in zip(runs, names, strict=True):
        own = run.draft_sampling
        settings = [run.drafter.model_dump(mode="json"), own and own.model_dump(mode="json")]
        found.setdefault(json.dumps(settings), (run, []))[1].append(name if run.name else None)
    labels = []
    for run, called in found.values():
        label = called[0] if len(called) == 1 and called[0] else drafter_label(run.drafter)
        labels.append(label)
    twice = {label for label, count in Counter(labels).items() if count > 1}
    subjects = []
    for label, (run, _) in zip(labels, found.values(), strict=True):
        alike = [other for name, (other, _) in zip(labels, found.values(), strict=True) if name == label]
        name = f"{label}({_differences(run, alike)})" if label in twice else label
        subjects.append(Subject(name, run.drafter, run.draft_sampling))
    return tuple(subjects)


def _differences(run: RunConfig, alike: Sequence[RunConfig]) -> str:
    """Return the settings of a drafter that are not the same in all that are called alike."""

    def settings(one: RunConfig) -> dict[str, Any]:
        own = {} if one.draft_sampling is None else one.draft_sampling.model_dump(exclude_defaults=True)
        return {**one.drafter.model_dump(mode="json"), **{f"draft_sampling.{key}": own[key] for key in own}}

    mine, others = settings(run), [settings(one) for one in alike]
    keys = [key for key in mine if any(other.get(key) != mine[key] for other in others)]
    return ", ".join(f"{key}={mine[key]}" for key in keys)


def _unfinished(output: Path) -> Measurement | None:
    """Return the measurement that stands in a file, if it lacks a drafter."""
    if not output.is_file():
        return None
    try:
        found = read_measurement(output)
    except ConfigError:
        return None  # something else, which is not replaced unasked
    return None if found.finished else found


def _measure(wish: _Wish, output: Path | None, before: Measurement | None, quiet: bool) -> None:
    """Measure, keep what is finished, print it, and say what failed."""
    errors = error_console()
    latest: list[Measurement] = []

    def keep(measurement: Measurement) -> None:
        latest[:] = [measurement]
        if output is not None:
            write_measurement(output, measurement)

    with StageProgress(errors, quiet=quiet) as progress:
        try:
            progress.stage("loading torch and the target")
            bench = _bench(wish)
            from specdec_core.measurement.measure import measure as measure_drafters

            _, failed = measure_drafters(bench, wish.subjects, progress, before=before, keep=keep)
        except KeyboardInterrupt as stopped:
            _show(latest, wish)
            raise KeyboardInterrupt(_kept(latest, output)) from stopped
    _show(latest, wish)
    if output is not None and latest and not quiet:
        errors.print(f"written: {output}", markup=False, soft_wrap=True)
    for name, reason in failed.items():
        errors.print(f"{name} was given up: {reason}", style="red", markup=False, soft_wrap=True)
    if failed:
        raise typer.Exit(2)


def _bench(wish: _Wish) -> Bench:
    from specdec_core.measurement.measure import Bench
    from specdec_core.study.making import load_target, ready_prompts

    quieten_libraries()
    target = load_target(wish.target, wish.folder)
    description = wish.target.model_dump(mode="json")
    prompts = ready_prompts(target, wish.prompts, wish.chat_template)
    return Bench(target, prompts, wish.sampling, wish.settings, default_registry(), wish.folder, description)


def _show(latest: Sequence[Measurement], wish: _Wish) -> None:
    from specdec_core.measurement.table import drafter_report

    console = output_console()
    for measurement in latest:
        for one in measurement.drafters:
            console.print(drafter_report(one, measurement.batch_size, wish.settings.tokens))


def _kept(latest: Sequence[Measurement], output: Path | None) -> str:
    done = len(latest[0].drafters) if latest else 0
    if output is None or not done:
        return "stopped." if done else "stopped before a drafter was finished; nothing was kept."
    return f"stopped; {done} drafter(s) are kept in {output}. Give the same command again to go on from there."
