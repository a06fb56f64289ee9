"""`specdec measure`: measure alpha, c and T(k) of drafters, without decoding speculatively."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from pydantic import BaseModel, create_model
from typer import Argument, Option

from specdec_core.cli.common import (
    MinP,
    PluginTimeout,
    Quiet,
    Settings,
    TopK,
    TopP,
    Wide,
    error_console,
    option_of,
    output_console,
    quieten_libraries,
    shown_progress,
    validated,
)
from specdec_core.cli.inputs import PROMPTS_HELP, TARGET_HELP, Device, Dtype, read_prompts_option, read_target
from specdec_core.interface.errors import ConfigError, unknown_name
from specdec_core.interface.files import check_output
from specdec_core.interface.inputs import input_path
from specdec_core.interface.settings import SamplingSettings
from specdec_core.interface.target import TargetConfig
from specdec_core.measurement.file import (
    DrafterEntry,
    Measurement,
    MeasureSettings,
    read_measurement,
    write_measurement,
)
from specdec_core.models.requirements import unmet_requirements
from specdec_core.models.resolve import has_encoder, model_folder
from specdec_core.models.vocabulary import local_vocabulary
from specdec_core.registry import default_registry
from specdec_core.study import Study, Task, load_study, run_model
from specdec_core.study.config.prompts import PromptText, read_chat_template, read_prompts
from specdec_core.study.config.schema import PromptsConfig, RunConfig
from specdec_core.study.config.study import drafter_label
from specdec_core.study.config.yaml_source import parse_value
from specdec_core.study.run.folder import exclusive_output

if TYPE_CHECKING:
    from specdec_core.measurement.measure import MeasureContext

_Model = TypeVar("_Model", bound=BaseModel)


@dataclass(frozen=True)
class _Options:
    """The validated options.

    Attributes:
        target: Settings of the target.
        folder: Base for relative paths.
        prompts: Prompts to continue.
        chat_template: Replaces the tokenizer's chat template; None uses the tokenizer's own.
        sampling: Sampling settings of the target, except the temperature.
        entries: The drafters.
        settings: What to measure, and how.
        plugin_timeout: Seconds that one call into a plugin may take.
    """

    target: TargetConfig
    folder: Path
    prompts: tuple[PromptText, ...]
    chat_template: str | None
    sampling: SamplingSettings
    entries: tuple[DrafterEntry, ...]
    settings: MeasureSettings
    plugin_timeout: float | None = None


def measure(
    study: Annotated[
        Path | None, Argument(help="YAML file of a study; its target, prompts and drafters are measured.")
    ] = None,
    drafter: Annotated[
        list[str] | None, Option(help="A drafter to measure: a name, or YAML with its settings; may be repeated.")
    ] = None,
    target: Annotated[
        str | None,
        Option("--target", "--model", help=f"{TARGET_HELP}  [default: builtin:target]"),
    ] = None,
    device: Device = None,
    dtype: Dtype = None,
    prompts: Annotated[
        str | None, Option(help=f"{PROMPTS_HELP}  [default: built-in ones]", metavar="FILE|YAML")
    ] = None,
    tokens: Annotated[
        int | None, Option(help="Target tokens at which drafts are verified.  [default: 10000]")
    ] = None,
    temperature: Annotated[
        list[float] | None, Option(help="Sampling temperature, 0 is greedy; may be repeated.  [default: 0 and 1]")
    ] = None,
    lenience: Annotated[
        list[float] | None, Option(help="Lenience l in (0, 1], 1 is lossless; may be repeated.  [default: 1]")
    ] = None,
    gamma: Annotated[int | None, Option(help="Tokens per draft at most.  [default: 8]")] = None,
    ranks: Annotated[
        int | None,
        Option(help="Siblings to draft at each depth of a tree, for `optimal-tree`; 0 for none.  [default: 0]"),
    ] = None,
    batch_size: Annotated[
        int | None, Option(help="Prompts decoded together while steps are timed.  [default: 1]")
    ] = None,
    rows: Annotated[
        int | None, Option(help="Prompts decoded together while acceptance is measured.  [default: 8]")
    ] = None,
    timings: Annotated[int | None, Option(help="Number of timings of each draft length.  [default: 20]")] = None,
    max_new_tokens: Annotated[
        int | None, Option(help="Maximum number of tokens per text.  [default: 128]")
    ] = None,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    seed: Annotated[int | None, Option(help="Seed of the texts.  [default: 0]")] = None,
    output: Annotated[
        Path | None, Option("--output", "-o", help="JSON file for the result.", metavar="FILE")
    ] = None,
    overwrite: Annotated[bool, Option("--overwrite", help="Replace an existing file.")] = False,
    settings: Settings = None,
    task: Annotated[str | None, Option(help="Task of the study to measure, if it has several.")] = None,
    plugin_timeout: PluginTimeout = None,
    wide: Wide = False,
    quiet: Quiet = False,
) -> None:
    r"""Measure the acceptance rate, c and T(k) of drafters, and predict the speed-up and the best gamma.

    The target generates text, and at each of its tokens the drafter proposes a draft, of which nothing is
    accepted. The acceptance rate alpha is the mean of sum min(p, q) over these tokens (section 4.2), with a 95%
    confidence interval, and likewise at each position of the draft. Then steps with drafts of every length are
    timed. With --ranks, text is also decoded with a tree, to count which of several siblings is accepted.

    Controllers and `specdec theory speed` read the file of --output. It is written after each drafter, and the
    same command resumes an unfinished one.

    For example:

    ```
    specdec measure --tokens 2000 \
        --drafter "{name: transformer, model: builtin:drafter}"
    specdec measure --drafter prompt-copy --lenience 1 --lenience 0.5
    specdec measure examples/quickstart.yaml --task temperature-1 \
        --output results/measured.json
    ```
    """
    given = {name: value for name, value in locals().items() if value is not None}
    options = _of_study(study, given) if study is not None else _of_options(given)
    options = replace(options, plugin_timeout=plugin_timeout)
    if output is None:
        _measure(options, None, None, quiet, wide)
        return
    with exclusive_output(output, "measurement"):
        unfinished = None if overwrite else _unfinished(output)
        check_output(output, overwrite or unfinished is not None)
        _measure(options, output, unfinished, quiet, wide)


_SET_BY_STUDY = ("drafter", "target", "device", "dtype", "prompts", "top_k", "top_p", "min_p")


def _of_study(path: Path, given: Mapping[str, Any]) -> _Options:
    """Return the options for a study; command-line options override its settings."""
    for name in _SET_BY_STUDY:
        if name in given:
            raise ConfigError(
                f"{option_of((name,))}: the study sets this; change it there or with --set, or omit the study."
            )
    study = load_study(path, given.get("settings", ()))
    task = _task(study, given.get("task"))
    if task.generation.constraint is not None:
        raise ConfigError(
            task.with_task("constraint: `measure` decodes without one; remove it, or use `specdec compare`.")
        )
    chosen = [pair for pair in zip(study.config.runs, study.runs[1:], strict=True) if pair[1] in task.runs]
    defaults = {
        "batch_size": study.config.batch_size,
        "max_new_tokens": task.generation.max_new_tokens,
        "ignore_eos": task.generation.ignore_eos,
        "seed": task.generation.seed,
        "lenience": _leniences(task),
    }
    return _Options(
        target=task.target,
        folder=study.folder,
        prompts=task.prompts,
        chat_template=task.chat_template,
        sampling=task.sampling,
        entries=_entries([config for config, _ in chosen], [run.name for _, run in chosen]),
        settings=_settings({**defaults, **given}),
    )


def _task(study: Study, name: str | None) -> Task:
    """Return the only task of a study, or the named one."""
    names = [task.name for task in study.tasks if task.name is not None]
    if name is None and len(study.tasks) > 1:
        raise ConfigError(f"{study.path} has {len(names)} tasks; choose one with --task: {', '.join(names)}.")
    if name is None:
        return study.tasks[0]
    if name not in names:
        raise ConfigError(
            f"--task: {unknown_name('task', name, names) if names else 'this study has no `tasks`.'}"
        )
    return study.tasks[names.index(name)]


def _leniences(task: Task) -> list[float]:
    """Return 1 and every constant lenience of a task's runs, in descending order."""
    labels = [run.labels.lenience for run in task.runs]
    numbers = {float(label) for label in labels if isinstance(label, (int, float))}
    return sorted({1.0, *(value for value in numbers if 0 < value <= 1)}, reverse=True)


def _of_options(given: Mapping[str, Any]) -> _Options:
    """Return the options without a study."""
    if "settings" in given:
        raise ConfigError("--set: requires a study, whose values it overrides.")
    if "task" in given:
        raise ConfigError("--task: requires a study, whose task it selects.")
    if "drafter" not in given:
        raise ConfigError("no drafter: name one with --drafter (`specdec plugins` lists them), or pass a study.")
    runs = [_drafter(text) for text in given["drafter"]]
    prompts = read_prompts_option(given["prompts"]) if "prompts" in given else PromptsConfig(builtin="heldout")
    target = read_target(given.get("target", "builtin:target"), given.get("device"), given.get("dtype"))
    model_folder(target.model)  # a missing model is reported before torch is loaded
    settings = _settings(given)
    encoder = has_encoder(target.model, subfolder=target.subfolder)
    vocabulary = local_vocabulary(target.model, subfolder=target.subfolder)
    for run in runs:
        for _, error in unmet_requirements(
            default_registry(),
            run.drafter,
            encoder_decoder=encoder,
            batch_size=settings.batch_size,
            vocabulary=vocabulary,
        ):
            raise error
    return _Options(
        target=target,
        folder=Path(),
        prompts=read_prompts(prompts, Path()),
        chat_template=read_chat_template(prompts, Path()),
        sampling=_validated(SamplingSettings, given),
        entries=_entries(runs, [None] * len(runs)),
        settings=settings,
    )


def _drafter(text: str) -> RunConfig:
    """Return a run with only this drafter, validated like that of a study."""
    # Only the drafter is required. The model is made at run time, beyond the reach of a type checker.
    field: Any = run_model(default_registry()).model_fields["drafter"]
    model: Any = create_model("Measured", drafter=(field.annotation, field))
    read: Any = _validated(model, {"drafter": parse_value(text, "--drafter")})
    return RunConfig.model_construct(drafter=read.drafter, gamma=None)


def _settings(given: Mapping[str, Any]) -> MeasureSettings:
    return _validated(MeasureSettings, given)


def _validated(model: type[_Model], given: Mapping[str, Any]) -> _Model:
    """Return a settings model from the options of the same names."""
    single = ("temperature",) if model is SamplingSettings else ()
    data = {name: given[name] for name in model.model_fields if name in given and name not in single}
    data = {
        name: tuple(dict.fromkeys(value)) if isinstance(value, list) else value for name, value in data.items()
    }
    return validated(model, data)


def _entries(runs: Sequence[RunConfig], names: Sequence[str | None]) -> tuple[DrafterEntry, ...]:
    """Return the distinct drafters of some runs, with unique names.

    A drafter that belongs to a single run with an explicit name gets that name. Otherwise its label is used, with
    the settings that differ if several drafters have the same label.
    """
    found: dict[str, tuple[RunConfig, list[str | None]]] = {}
    for run, name in zip(runs, names, strict=True):
        own = run.draft_sampling
        settings = [run.drafter.model_dump(mode="json"), own and own.model_dump(mode="json")]
        found.setdefault(json.dumps(settings), (run, []))[1].append(name if run.name else None)
    labels = []
    for run, run_names in found.values():
        label = run_names[0] if len(run_names) == 1 and run_names[0] else drafter_label(run.drafter)
        labels.append(label)
    ambiguous = {label for label, count in Counter(labels).items() if count > 1}
    entries = []
    for label, (run, _) in zip(labels, found.values(), strict=True):
        others = [other for name, (other, _) in zip(labels, found.values(), strict=True) if name == label]
        name = f"{label}({_differences(run, others)})" if label in ambiguous else label
        entries.append(DrafterEntry(name, run.drafter, run.draft_sampling))
    return tuple(entries)


def _differences(run: RunConfig, others: Sequence[RunConfig]) -> str:
    """Return the settings of a drafter that differ from those of others with the same label."""

    def settings(one: RunConfig) -> dict[str, Any]:
        sampling = {} if one.draft_sampling is None else one.draft_sampling.model_dump(exclude_defaults=True)
        prefixed = {f"draft_sampling.{key}": value for key, value in sampling.items()}
        return {**one.drafter.model_dump(mode="json"), **prefixed}

    own, others_settings = settings(run), [settings(one) for one in others]
    keys = [key for key in own if any(other.get(key) != own[key] for other in others_settings)]
    return ", ".join(f"{key}={own[key]}" for key in keys)


def _unfinished(output: Path) -> Measurement | None:
    """Return the measurement in a file if it lacks a drafter."""
    if not input_path(output.absolute()).is_file():
        return None
    try:
        found = read_measurement(output)
    except ConfigError:
        return None  # not a measurement; `check_output` refuses to replace it
    return None if found.finished else found


def _measure(options: _Options, output: Path | None, before: Measurement | None, quiet: bool, wide: bool) -> None:
    """Measure, write and print what is finished, and report failures."""
    errors = error_console()
    latest: list[Measurement] = []

    def keep(measurement: Measurement) -> None:
        latest[:] = [measurement]
        if output is not None:
            write_measurement(output, measurement)

    try:
        with shown_progress(quiet=quiet) as progress:
            progress.stage("loading torch and the target")
            context = _context(options)
            from specdec_core.measurement.measure import measure as measure_drafters

            _, failed = measure_drafters(context, options.entries, progress, before=before, keep=keep)
    except KeyboardInterrupt as stopped:
        _show(latest, options, wide)
        stopped.args = (_stopped(latest, output),)
        raise
    _show(latest, options, wide)
    if output is not None and latest and not quiet:
        errors.print(f"written: {output}", soft_wrap=True)
    for name, reason in failed.items():
        errors.print(f"{name} failed: {reason}", style="red", soft_wrap=True)
    if failed:
        raise typer.Exit(2)


def _context(options: _Options) -> MeasureContext:
    from specdec_core.measurement.measure import MeasureContext
    from specdec_core.study.run.factory import load_target, ready_prompts

    quieten_libraries()
    target = load_target(options.target, options.folder)
    return MeasureContext(
        target=target,
        prompts=ready_prompts(target, options.prompts, options.chat_template),
        sampling=options.sampling,
        settings=options.settings,
        registry=default_registry(),
        folder=options.folder,
        target_settings=options.target.model_dump(mode="json"),
        plugin_timeout=options.plugin_timeout,
    )


def _show(latest: Sequence[Measurement], options: _Options, wide: bool) -> None:
    from specdec_core.measurement.table import drafter_report

    console = output_console(wide=wide)
    for measurement in latest:
        for one in measurement.drafters:
            console.print(drafter_report(one, measurement.batch_size, options.settings.tokens))


def _stopped(latest: Sequence[Measurement], output: Path | None) -> str:
    done = len(latest[0].drafters) if latest else 0
    if output is None or not done:
        return "stopped." if done else "stopped before a drafter was finished; nothing was stored."
    return f"stopped; {done} drafter(s) are stored in {output}. Run the same command again to resume."
