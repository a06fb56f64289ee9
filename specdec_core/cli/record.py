"""`specdec record`: keep a target's texts, with the probability of each token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Argument, Option

from specdec_core.cli.options.input_options import read_target
from specdec_core.cli.options.shared_options import (
    Quiet,
    Ray,
    Settings,
    option_of,
    output_console,
    quieten_libraries,
    shown_progress,
)
from specdec_core.cli.options.study_options import TextOptions, given, grouped, study_of
from specdec_core.cluster import pooled
from specdec_core.interface.errors import ConfigError
from specdec_core.study import Study, Task
from specdec_core.study.run.folder import check_free

if TYPE_CHECKING:
    from specdec_core.interface.settings import TargetConfig
    from specdec_core.offline.record import Record


@dataclass(frozen=True, kw_only=True)
class _RecordOptions:
    """The content of a recording, and its settings."""

    samples: Annotated[
        int | None,
        Option(
            min=1,
            help="Texts of each prompt where the target samples.  [default: 1]",
        ),
    ] = None
    rows: Annotated[
        int | None,
        Option(min=1, help="Texts decoded together, and stored as one shard.  [default: 8]"),
    ] = None
    hidden: Annotated[
        bool,
        Option("--hidden", help="Store hidden states and embeddings, for drafters that read them."),
    ] = False
    keep_top: Annotated[
        int | None, Option(min=0, help="Store the K most probable tokens at each position, too.", metavar="K")
    ] = None
    hidden_dtype: Annotated[
        Literal["float32", "float16"] | None,
        Option(help="Dtype of the hidden states.  [default: float32 for a float32 target, else float16]"),
    ] = None
    timings: Annotated[
        bool,
        Option(
            "--timings",
            help="Time the target, too: T(k) of this machine. Alone, add it to a finished record.",
        ),
    ] = False
    gamma: Annotated[
        int | None,
        Option(min=1, help="With --timings: the longest draft whose verification is timed.  [default: 8]"),
    ] = None
    import_file: Annotated[
        Path | None,
        Option(
            "--import",
            help="Read texts generated elsewhere, as JSON lines: of the OpenAI API, vLLM or specdec.",
            metavar="FILE",
        ),
    ] = None
    logprobs: Annotated[
        Literal["raw", "processed"] | None,
        Option(
            help="With --import: log-probabilities are the model's (vLLM's raw_logprobs) or those after the "
            "sampling settings (processed_logprobs).  [default: raw]"
        ),
    ] = None


@grouped
def record(
    *,
    study: Annotated[
        Path | None, Argument(help="YAML file of a study: its target is recorded on the prompts of each task.")
    ] = None,
    output: Annotated[
        Path | None, Option("--output", "-o", help="Folder of the record; a stopped recording resumes from it.")
    ] = None,
    options: TextOptions,
    temperature: Annotated[
        list[float] | None, Option(help="Sampling temperature, 0 is greedy; may be repeated.  [default: 0 and 1]")
    ] = None,
    how: _RecordOptions,
    settings: Settings = None,
    task: Annotated[
        list[str] | None, Option(help="Only this task of the study; may be repeated.  [default: all]")
    ] = None,
    fresh: Annotated[bool, Option("--fresh", help="Discard what the folder of --output has.")] = False,
    ray: Ray = None,
    quiet: Quiet = False,
) -> None:
    r"""Record what a target says: its texts, with the probability of each token.

    The target decodes the prompts once, as in the baseline of `specdec compare`. `specdec replay` then computes
    how any drafter would have done on these texts. The same command resumes where it was stopped.

    --import reads texts that a server generated, with the log-probabilities of the distribution that was sampled
    from.

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
    if output is None:
        raise ConfigError("--output: name the folder that receives the record.")
    of_task = [*options.given(), *(["temperature"] if temperature else [])]
    adds = how.timings and study is None and not fresh and _adds_times(output, of_task, how)
    _check_together(how)
    if how.import_file is not None:
        _check_import(how, [*of_task, *(["study"] if study else []), *(["ray"] if ray else [])])
        imported = study_of(None, options, settings=settings, task=task or (), temperature=temperature)
        found = _imported(how.import_file, output, imported.tasks[0], how, options.max_new_tokens, fresh, quiet)
    elif adds:
        if ray is not None:
            raise ConfigError(
                "--ray: T(k) that is added to a finished record is that of this machine; leave it out."
            )
        named = None if options.target is None else read_target(options.target)
        found = _timed(output, how.gamma or _GAMMA, named, quiet)
    else:
        if study is None and not temperature:
            temperature = [0.0, 1.0]
        loaded = study_of(study, options, settings=settings, task=task or (), temperature=temperature)
        found = _recorded(loaded, loaded.chosen(task or ()), output, how, ray, fresh, quiet)
    _show(found, output, study)


_GAMMA = 8
"""The longest draft that is timed by default."""
_OF_RECORDING = ("rows", "samples", "hidden", "keep_top")
"""Options that say how texts are recorded."""


def _check_together(how: _RecordOptions) -> None:
    """Reject options that have a meaning with another one only."""
    for name, needed in (("hidden_dtype", "hidden"), ("gamma", "timings"), ("logprobs", "import_file")):
        if name in given(how) and needed not in given(how):
            other = "--import" if needed == "import_file" else option_of((needed,))
            raise ConfigError(f"{option_of((name,))}: requires {other}.")


def _check_import(how: _RecordOptions, others: Sequence[str]) -> None:
    """Reject options that have no meaning with an import, and miss those that it needs."""
    for name in ("study", "device", "dtype", "seed", "prompts", "rows", "samples"):
        if name in others or name in given(how):
            option = "the study" if name == "study" else option_of((name,))
            raise ConfigError(f"{option}: not with --import, which reads prompts and texts from its file.")
    for name in ("hidden", "keep_top", "timings", "ray"):
        if name in others or name in given(how):
            raise ConfigError(f"{option_of((name,))}: not with --import, as the target is not loaded.")
    if "temperature" not in others:
        raise ConfigError("--temperature: with --import, say the temperature that the texts were sampled with.")
    if "target" not in others:
        raise ConfigError("--target: with --import, name the model that generated the texts.")


def _recorded(
    study: Study,
    tasks: Sequence[Task],
    output: Path,
    how: _RecordOptions,
    ray: str | None,
    fresh: bool,
    quiet: bool,
) -> Record:
    from specdec_core.offline.record.writer import check_folder

    check_folder(output)
    check_free(output, "recording")
    with shown_progress(quiet=quiet) as progress:
        progress.stage("loading torch and transformers")
        from specdec_core.offline.record.recording import RecordOptions, record_tasks

        quieten_libraries()
        options = RecordOptions(
            rows=how.rows or 8,
            samples=how.samples or 1,
            hidden=how.hidden,
            hidden_type=how.hidden_dtype,
            top_k=how.keep_top or 0,
            gamma=how.gamma or _GAMMA if how.timings else None,
        )
        with pooled(ray, progress) as pool:
            return record_tasks(tasks, output, progress, options, folder=study.folder, fresh=fresh, pool=pool)


def _adds_times(output: Path, of_task: Sequence[str], how: _RecordOptions) -> bool:
    """Whether --timings is about the record in a folder: nothing else is given, or --target and it is finished.

    Raises:
        ConfigError: An option says how texts are recorded, and there is a record.
    """
    from specdec_core.offline.record.format import HEADER

    if not (output / HEADER).is_file():
        return False
    of_recording = [name for name in _OF_RECORDING if name in given(how)]
    if not of_task:
        for name in of_recording:
            raise ConfigError(
                f"{option_of((name,))}: there is a record in {output}, to which --timings alone adds T(k). To "
                "record anew, pass --fresh."
            )
    if of_task != ["target"] or of_recording:
        return not of_task
    from specdec_core.offline.record import read_record
    from specdec_core.offline.record.format import finished

    return all(map(finished, read_record(output).parts))


def _timed(output: Path, gamma: int, named: TargetConfig | None, quiet: bool) -> Record:
    """Add T(k) to a record."""
    check_free(output, "recording")
    with shown_progress(quiet=quiet) as progress:
        progress.stage("loading torch and transformers")
        from specdec_core.offline.record.recording import time_record

        quieten_libraries()
        return time_record(output, progress, gamma, named=named)


def _imported(
    source: Path,
    output: Path,
    task: Task,
    how: _RecordOptions,
    max_new_tokens: int | None,
    fresh: bool,
    quiet: bool,
) -> Record:
    """Import what another program logged."""
    with shown_progress(quiet=quiet) as progress:
        progress.stage("loading transformers")
        from specdec_core.offline.record.import_log import ImportOptions, import_record

        quieten_libraries()
        options = ImportOptions(
            target=task.target,
            sampling=task.sampling,
            max_new_tokens=max_new_tokens,
            stop=task.generation.stop,
            ignore_eos=task.generation.ignore_eos,
            logprobs=how.logprobs or "raw",
        )
        return import_record(source, output, progress, options, fresh=fresh)


def _show(found: Record, output: Path, study: Path | None) -> None:
    """Print what the record holds, and the command that uses it."""
    from specdec_core.offline.record.format import finished
    from specdec_core.offline.record.reader import StoredPart
    from specdec_core.study.run.repeats import outgrown

    console = output_console()
    for part in found.parts:
        header = part.header
        name = "" if header.task is None else f"{header.task}: "
        texts, prompts = _count(len(part), "text"), _count(header.prompts.count, "prompt")
        missing = "" if finished(part) else f" ({header.texts:,} when it is finished)"
        tokens = _count(part.tokens, "token") if isinstance(part, StoredPart) else ""
        console.print(
            f"{name}{texts} of {prompts}{missing}, {tokens}, temperature {header.sampling.temperature:g}",
            soft_wrap=True,
        )
        for note in outgrown(part.outgrown):
            console.print(note, soft_wrap=True)
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
