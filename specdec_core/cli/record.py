"""`specdec record`: keep a target's texts, with the probability of each token."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Argument, Option

from specdec_core.cli.options.shared_options import (
    Quiet,
    Ray,
    Settings,
    Tasks,
    Temperatures,
    option_of,
    shown_progress,
)
from specdec_core.cli.options.study_options import ResultOptions, TextOptions, given, grouped, study_of
from specdec_core.cli.terminal.console import output_console
from specdec_core.cluster import pooled
from specdec_core.interface.errors import ConfigError
from specdec_core.study.run.folder import check_free

if TYPE_CHECKING:
    from specdec_core.offline.record.format import Record


@dataclass(frozen=True, kw_only=True)
class _RecordOptions:
    """The content of a recording, and its settings."""

    samples: Annotated[
        int | None,
        Option(min=1, help="Texts of each prompt where the target samples.  [default: 1]"),
    ] = None
    rows: Annotated[
        int | None,
        Option(min=1, help="Texts decoded together.  [default: 8]"),
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
        bool, Option("--timings", help="Time the target, too: T(k) of this machine.  [default: no]")
    ] = False
    gamma: Annotated[
        int | None,
        Option(min=1, help="With --timings: the longest draft whose verification is timed.  [default: 8]"),
    ] = None


@grouped
def record(
    *,
    study: Annotated[
        Path | None, Argument(help="YAML file of a study: its target is recorded on the prompts of each task.")
    ] = None,
    results: ResultOptions,
    options: TextOptions,
    temperature: Temperatures = None,
    how: _RecordOptions,
    settings: Settings = None,
    task: Tasks = None,
    import_file: Annotated[
        Path | None,
        Option(
            "--import",
            help="Texts that the target generated elsewhere: JSON lines of token ids and log-probabilities.",
            metavar="FILE",
        ),
    ] = None,
    ray: Ray = None,
    quiet: Quiet = False,
) -> None:
    r"""Record what a target says: its texts, with the probability of each token.

    The target decodes the prompts once, as in the baseline of `specdec compare`. `specdec replay` then computes
    how any drafter would have done on these texts. The same command resumes where it was stopped; with --timings,
    it also times the target of a finished record.

    For example:

    ```
    specdec record --output records/code
    specdec record examples/quickstart.yaml --output records/quickstart
    specdec record --target builtin:t5-target --temperature 1 --samples 4 \
        --prompts "{builtin: translation}" --output records/translation
    specdec record --import log.jsonl --temperature 1 \
        --target meta-llama/Llama-3.1-70B-Instruct --output records/llama
    ```
    """
    output = results.output
    if output is None:
        raise ConfigError("--output: name the folder that receives the record.")
    for name, needed in (("hidden_dtype", "hidden"), ("gamma", "timings")):
        if name in given(how) and needed not in given(how):
            raise ConfigError(f"{option_of((name,))}: requires {option_of((needed,))}.")
    temperature = temperature or (None if study else [0.0, 1.0])
    loaded = study_of(study, options, settings=settings, task=task or (), temperature=temperature)
    loaded = replace(loaded, tasks=tuple(loaded.chosen(task or ())))
    if import_file is not None and (len(loaded.tasks) > 1 or given(how) or ray):
        raise ConfigError(
            "--import: say the one --temperature that the texts were sampled with, or a --task of a study; the "
            "target is not run, so that options of a recording have no meaning."
        )
    check_free(output, "recording")
    with shown_progress(quiet=quiet) as progress:
        from specdec_core.offline.record.import_texts import import_texts
        from specdec_core.offline.record.recording import RecordOptions, record_study

        if import_file is not None:
            (only,) = loaded.tasks
            found = import_texts(
                import_file, output, only.target, only.sampling, only.generation, fresh=results.fresh
            )
        else:
            asked = given(how)
            if asked.pop("timings", False):
                asked.setdefault("gamma", 8)
            with pooled(ray, progress) as pool:
                recorded = RecordOptions(**asked)
                found = record_study(loaded, output, progress, recorded, fresh=results.fresh, pool=pool)
    _show(found, output, study)


def _show(found: "Record", output: Path, study: Path | None) -> None:
    """Print what the record holds, and the command that uses it."""
    from specdec_core.study.run.finished_repeats import outgrown

    console = output_console()
    for part in found.parts:
        header = part.header
        name = "" if header.task is None else f"{header.task}: "
        texts, prompts = _count(len(part), "text"), _count(header.prompts.count, "prompt")
        missing = "" if part.finished else f" ({header.texts:,} when it is finished)"
        tokens = _count(sum(len(text.tokens) for text in part.texts), "token")
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
