"""`specdec record`: keep what a target says, with the probability of each token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Argument, Option

from specdec_core.cli.common import (
    MinP,
    Quiet,
    Ray,
    Settings,
    TopK,
    TopP,
    option_of,
    output_console,
    quieten_libraries,
    shown_progress,
    validated,
)
from specdec_core.cli.inputs import PROMPTS_HELP, TARGET_HELP, Device, Dtype, read_prompts_option, read_target
from specdec_core.cluster import pooled
from specdec_core.interface.errors import ConfigError, unknown_name
from specdec_core.interface.settings import GenerationSettings, SamplingSettings
from specdec_core.models.resolve import model_folder
from specdec_core.study import BASELINE, Run, Study, Task, load_study
from specdec_core.study.config.prompts import read_chat_template, read_prompts
from specdec_core.study.config.schema import PromptsConfig
from specdec_core.study.run.folder import check_free

if TYPE_CHECKING:
    from specdec_core.interface.target import TargetConfig
    from specdec_core.offline.record import Record
    from specdec_core.offline.record.study import RecordOptions


def record(
    study: Annotated[
        Path | None, Argument(help="YAML file of a study: its target is recorded on the prompts of each task.")
    ] = None,
    output: Annotated[
        Path | None, Option("--output", "-o", help="Folder of the record; a stopped recording resumes from it.")
    ] = None,
    target: Annotated[
        str | None, Option("--target", "--model", help=f"{TARGET_HELP}  [default: builtin:target]")
    ] = None,
    device: Device = None,
    dtype: Dtype = None,
    prompts: Annotated[
        str | None, Option(help=f"{PROMPTS_HELP}  [default: built-in ones]", metavar="FILE|YAML")
    ] = None,
    temperature: Annotated[
        list[float] | None, Option(help="Sampling temperature, 0 is greedy; may be repeated.  [default: 0 and 1]")
    ] = None,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    repetition_penalty: Annotated[
        float | None, Option(help="Values above 1 discourage repetition.  [default: 1]")
    ] = None,
    max_new_tokens: Annotated[
        int | None, Option(help="Maximum number of tokens per text.  [default: 128]")
    ] = None,
    stop: Annotated[list[str] | None, Option(help="End a text at this string; may be repeated.")] = None,
    ignore_eos: Annotated[
        bool, Option("--ignore-eos", help="Continue after an end of sequence, up to --max-new-tokens.")
    ] = False,
    seed: Annotated[int | None, Option(help="Seed of the texts.  [default: 0]")] = None,
    samples: Annotated[
        int | None,
        Option(
            min=1,
            help="Texts of each prompt where the target samples; at temperature 0 there is one.  [default: 1]",
        ),
    ] = None,
    rows: Annotated[
        int | None,
        Option(min=1, help="Texts decoded together; they are stored together, as one shard.  [default: 8]"),
    ] = None,
    hidden: Annotated[
        bool,
        Option("--hidden", help="Store the hidden states, which drafters such as heads read, and embeddings."),
    ] = False,
    hidden_dtype: Annotated[
        Literal["float32", "float16"] | None,
        Option(help="Number format of the hidden states.  [default: float32 for a float32 target, else float16]"),
    ] = None,
    keep_top: Annotated[
        int, Option(min=0, help="Store the K most probable tokens at each position, too.", metavar="K")
    ] = 0,
    timings: Annotated[
        bool,
        Option(
            "--timings",
            help="Time the target, too: T(k) of this machine. With a finished record and nothing else, add it.",
        ),
    ] = False,
    gamma: Annotated[
        int | None,
        Option(min=1, help="With --timings: the longest draft whose verification is timed.  [default: 8]"),
    ] = None,
    import_file: Annotated[
        Path | None,
        Option(
            "--import",
            help="Read texts generated elsewhere, as JSON lines: of the OpenAI API, of vLLM, or in our own form.",
            metavar="FILE",
        ),
    ] = None,
    logprobs: Annotated[
        Literal["raw", "processed"] | None,
        Option(
            help="With --import: whether log-probabilities are those of the model (vLLM's raw_logprobs, its "
            "default) or after the sampling settings (processed_logprobs).  [default: raw]"
        ),
    ] = None,
    settings: Settings = None,
    task: Annotated[
        list[str] | None, Option(help="Task of the study to record; may be repeated.  [default: all]")
    ] = None,
    fresh: Annotated[bool, Option("--fresh", help="Discard the record that is in the folder.")] = False,
    ray: Ray = None,
    quiet: Quiet = False,
) -> None:
    r"""Record what a target says: its texts, with the probability of each token.

    The target decodes the prompts alone, once. From then on `specdec replay` computes what any drafter would have
    done on these texts, without the target and on any machine. Texts are stored in shards, and the same command
    resumes where it was stopped.

    The texts are those of the baseline of `specdec compare`. With --samples, each prompt has several where the
    target samples, which narrows every interval of a replay.

    --import reads texts that a server generated. Its log-probabilities must be those of the distribution that was
    sampled from; the page Record says which settings give them.

    For example:

    ```
    specdec record --output records/code
    specdec record --target builtin:t5-target --temperature 1 --samples 4 \
        --prompts "{builtin: translation}" --output records/translation
    specdec record examples/quickstart.yaml --output records/quickstart
    specdec record --output records/code --timings
    specdec record --import log.jsonl --temperature 1 \
        --target meta-llama/Llama-3.1-70B-Instruct --output records/llama
    ```
    """
    given = {name: value for name, value in locals().items() if value is not None}
    if output is None:
        raise ConfigError("--output: name the folder that receives the record.")
    _check_together(given)
    from_options = [name for name in _TASK_OPTIONS if name in given] + ["ignore_eos"] * ignore_eos
    if import_file is not None:
        found = _imported(import_file, output, given, fresh, quiet)
    elif timings and study is None and not fresh and _adds_times(output, given, from_options):
        if ray is not None:
            raise ConfigError(
                "--ray: T(k) that is added to a finished record is that of this machine; leave it out."
            )
        found = _timed(output, gamma or _GAMMA, None if target is None else read_target(target), quiet)
    else:
        tasks, folder = (
            _of_study(study, given, from_options) if study is not None else (_of_options(given), Path())
        )
        found = _recorded(tasks, folder, output, given, fresh, quiet)
    _show(found, output, study)


_GAMMA = 8
"""The longest draft that is timed by default."""
_TASK_OPTIONS = (
    *("target", "device", "dtype", "prompts", "temperature", "top_k", "top_p", "min_p", "repetition_penalty"),
    *("max_new_tokens", "stop", "seed"),
)
"""Options that a study sets."""
_OF_RECORDING = ("rows", "samples", "hidden", "keep_top")
"""Options that say how texts are recorded."""


def _check_together(given: Mapping[str, Any]) -> None:
    """Refuse options that have a meaning with another one only."""
    for name, needed in (("hidden_dtype", "hidden"), ("gamma", "timings"), ("logprobs", "import_file")):
        if name in given and not given.get(needed):
            other = "--import" if needed == "import_file" else option_of((needed,))
            raise ConfigError(f"{option_of((name,))}: requires {other}.")
    to_record = any(name in given for name in ("study", *_TASK_OPTIONS)) or given["ignore_eos"] or given["fresh"]
    if given["timings"] and not to_record and (given["output"] / "record.json").is_file():
        for name in _OF_RECORDING:
            if given.get(name):
                raise ConfigError(
                    f"{option_of((name,))}: there is a record in {given['output']}, to which --timings alone adds "
                    "T(k). To record anew, pass --fresh."
                )


def _of_study(path: Path, given: Mapping[str, Any], refused: list[str]) -> tuple[list[Task], Path]:
    """Return the tasks of a study."""
    for name in refused:
        raise ConfigError(
            f"{option_of((name,))}: the study sets this; change it there or with --set, or omit the study."
        )
    study: Study = load_study(path, given.get("settings", ()))
    names = [task.name for task in study.tasks if task.name is not None]
    for name in given.get("task", ()):
        if name not in names:
            raise ConfigError(f"--task: {unknown_name('task', name, names)}")
    chosen = [task for task in study.tasks if "task" not in given or task.name in given["task"]]
    return chosen, study.folder


def _of_options(given: Mapping[str, Any]) -> list[Task]:
    """Return a task for each temperature."""
    _require_study(given)
    config = read_prompts_option(given["prompts"]) if "prompts" in given else PromptsConfig(builtin="heldout")
    target = read_target(given.get("target", "builtin:target"), given.get("device"), given.get("dtype"))
    model_folder(target.model)  # a missing model is reported before torch is loaded
    prompts, template = read_prompts(config, Path()), read_chat_template(config, Path())
    temperatures = list(dict.fromkeys(given.get("temperature", (0.0, 1.0))))
    generation = _generation(given)
    return [
        Task(
            name=None if len(temperatures) == 1 else f"temperature-{temperature:g}",
            target=target,
            prompts_config=config,
            prompts=prompts,
            chat_template=template,
            sampling=_sampling(given, temperature),
            generation=generation,
            runs=(Run(BASELINE),),
        )
        for temperature in temperatures
    ]


def _require_study(given: Mapping[str, Any]) -> None:
    for name, option in (("settings", "--set"), ("task", "--task")):
        if name in given:
            raise ConfigError(f"{option}: requires a study.")


def _sampling(given: Mapping[str, Any], temperature: float) -> SamplingSettings:
    others = ("top_k", "top_p", "min_p", "repetition_penalty")
    return validated(
        SamplingSettings, {"temperature": temperature, **{name: given[name] for name in others if name in given}}
    )


def _generation(given: Mapping[str, Any]) -> GenerationSettings:
    names = ("max_new_tokens", "stop", "ignore_eos", "seed")
    return validated(GenerationSettings, {name: given[name] for name in names if name in given})


def _recorded(
    tasks: list[Task], folder: Path, output: Path, given: Mapping[str, Any], fresh: bool, quiet: bool
) -> Record:
    from specdec_core.offline.record.writer import check_folder

    check_folder(output)
    check_free(output, "recording")
    with shown_progress(quiet=quiet) as progress:
        progress.stage("loading torch and transformers")
        from specdec_core.offline.record.study import record_tasks

        quieten_libraries()
        with pooled(given.get("ray"), progress) as pool:
            return record_tasks(tasks, output, progress, _options(given), folder=folder, fresh=fresh, pool=pool)


def _options(given: Mapping[str, Any]) -> RecordOptions:
    from specdec_core.offline.record.study import RecordOptions

    return RecordOptions(
        rows=given.get("rows", 8),
        samples=given.get("samples", 1),
        hidden=given["hidden"],
        hidden_type=given.get("hidden_dtype"),
        top_k=given["keep_top"],
        gamma=given.get("gamma", _GAMMA) if given["timings"] else None,
    )


def _adds_times(output: Path, given: Mapping[str, Any], of_task: Sequence[str]) -> bool:
    """Whether --timings is about the record in a folder: nothing else is given, or --target and it is finished."""
    if not (output / "record.json").is_file():
        return False
    if of_task != ["target"] or any(given.get(name) for name in _OF_RECORDING):
        return not of_task
    from specdec_core.offline.record import read_record

    return all(len(part) == part.header.texts for part in read_record(output).parts)


def _timed(output: Path, gamma: int, named: TargetConfig | None, quiet: bool) -> Record:
    """Add T(k) to a record."""
    check_free(output, "recording")
    with shown_progress(quiet=quiet) as progress:
        progress.stage("loading torch and transformers")
        from specdec_core.offline.record.study import time_record

        quieten_libraries()
        return time_record(output, progress, gamma, named=named)


def _imported(source: Path, output: Path, given: Mapping[str, Any], fresh: bool, quiet: bool) -> Record:
    """Import what another program logged."""
    _require_study(given)
    for name in ("study", "device", "dtype", "seed", "prompts", "rows", "samples"):
        if name in given:
            option = "the study" if name == "study" else option_of((name,))
            raise ConfigError(f"{option}: not with --import, which reads prompts and texts from its file.")
    for name in ("hidden", "keep_top", "timings", "ray"):
        if given.get(name):
            raise ConfigError(f"{option_of((name,))}: not with --import, as the target is not loaded.")
    temperatures = given.get("temperature", ())
    if len(temperatures) != 1:
        raise ConfigError("--temperature: with --import, say the temperature that the texts were sampled with.")
    if "target" not in given:
        raise ConfigError("--target: with --import, name the model that generated the texts.")
    target = read_target(given["target"])
    sampling = _sampling(given, temperatures[0])
    model_folder(target.model)
    with shown_progress(quiet=quiet) as progress:
        progress.stage("loading transformers")
        from specdec_core.offline.record.import_log import ImportOptions, import_record

        quieten_libraries()
        options = ImportOptions(
            target=target,
            sampling=sampling,
            max_new_tokens=given.get("max_new_tokens"),
            stop=tuple(given.get("stop", ())),
            ignore_eos=given["ignore_eos"],
            logprobs=given.get("logprobs", "raw"),
        )
        return import_record(source, output, progress, options, fresh=fresh)


def _show(found: Record, output: Path, study: Path | None) -> None:
    """Print what the record holds, and the command that uses it."""
    from specdec_core.offline.record.reader import StoredPart

    console = output_console()
    for part in found.parts:
        header = part.header
        name = "" if header.task is None else f"{header.task}: "
        texts, prompts = _count(len(part), "text"), _count(header.prompts.count, "prompt")
        missing = "" if len(part) == header.texts else f" ({header.texts:,} when it is finished)"
        tokens = _count(part.tokens, "token") if isinstance(part, StoredPart) else ""
        console.print(
            f"{name}{texts} of {prompts}{missing}, {tokens}, temperature {header.sampling.temperature:g}",
            soft_wrap=True,
        )
    if (times := found.header.times) is not None:
        noise = times.machine.target.noise
        known = "" if noise is None else f", known to ±{noise:.1%}"
        console.print(f"T(k) of {times.device}{known}", soft_wrap=True)
    size = sum(file.stat().st_size for file in found.path.rglob("*") if file.is_file())
    console.print(f"written: {output} ({_size(size)})", soft_wrap=True)
    console.print(
        f"\nWhat drafters would do on it:\n\n    specdec replay {output} {study or 'DRAFTER'}", soft_wrap=True
    )


def _count(count: int, what: str) -> str:
    return f"{count:,} {what}" + "s" * (count != 1)


def _size(count: int) -> str:
    return f"{count / 1e6:,.1f} MB" if count >= 1e6 else f"{count / 1e3:,.0f} kB"
