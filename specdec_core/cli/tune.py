"""`specdec tune`: find the fastest drafter, settings and gamma."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from specdec_core.cli.options.input_options import Named, read_target
from specdec_core.cli.options.shared_options import (
    error_console,
    output_console,
    quieten_libraries,
    shown_progress,
)
from specdec_core.cli.options.study_options import StudyOptions, grouped
from specdec_core.interface.errors import ConfigError
from specdec_core.interface.files import check_output
from specdec_core.offline.tune.winning_study import folder_of
from specdec_core.registry import is_shipped, misspelt_reference
from specdec_core.study.config.yaml_source import written_yaml
from specdec_core.study.run.folder import check_free

if TYPE_CHECKING:
    from specdec_core.offline.tune import TuneOptions, Tuning


@dataclass(frozen=True, kw_only=True)
class _RaceOptions:
    """How candidates are raced and timed."""

    finalists: Annotated[int, Option(min=1, help="The most candidates that are timed live.")] = 4
    confirm: Annotated[
        bool, Option("--confirm/--no-confirm", help="Time the finalists live, or trust the replay.")
    ] = True
    live_prompts: Annotated[
        int, Option(min=0, help="The first prompts, on which finalists are timed; 0 for all.")
    ] = 16
    confidence: Annotated[
        float, Option(min=0.5, max=0.999999, help="Probability with which the fastest candidate is not stopped.")
    ] = 0.95
    margin: Annotated[
        float,
        Option(
            min=0.0,
            max=1.0,
            help="Stop no candidate that may be slower by less than this.",
        ),
    ] = 0.02
    samples: Annotated[int, Option(min=1, help="Texts to record of each prompt, where the target samples.")] = 1

    def read(self, *, fresh: bool) -> TuneOptions:
        """Return the settings of `specdec_core.offline.tune`."""
        from specdec_core.offline.tune import RaceSettings, TuneOptions

        race = RaceSettings(error=1 - self.confidence, margin=self.margin, finalists=self.finalists)
        live = self.live_prompts or None
        return TuneOptions(race, confirm=self.confirm, live_prompts=live, samples=self.samples, fresh=fresh)


@grouped
def tune(
    *,
    study: Annotated[
        str | None,
        Argument(
            help="YAML file of a study; or a record, for the installed drafters with gammas 1 to 8.",
            metavar="STUDY|RECORD",
        ),
    ] = None,
    record: Annotated[
        str | None,
        Option(
            help="Record to replay on: a folder, or a built-in one such as builtin:code.  [default: record the "
            "study's prompts]",
            metavar="DIR",
        ),
    ] = None,
    target: Named = None,
    machine: Annotated[
        Path | None,
        Option(
            help="File of `specdec measure --output` with the times of these drafters.  [default: time them here]",
            metavar="FILE",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        Option(
            "--output",
            "-o",
            help="YAML file for the winning study. The same command resumes from the folder beside it, such as "
            "best-tune for best.yaml.",
            metavar="FILE",
        ),
    ] = None,
    overwrite: Annotated[bool, Option("--overwrite", help="Replace an existing file.")] = False,
    fresh: Annotated[bool, Option("--fresh", help="Discard that folder.")] = False,
    race: _RaceOptions,
    task: Annotated[str | None, Option(help="Only this task of the study.  [default: all]")] = None,
    how: StudyOptions,
) -> None:
    r"""Find the fastest run of a study: race its candidates on a record, time the best live, write the winner.

    The runs of a study are the candidates; `grid` makes all combinations of settings. Tuning has four parts:

    1. Record: the target decodes the prompts, unless --record has its texts.
    2. Measure: steps are timed with drafts of each length, unless --machine has the times.
    3. Race: drafters are replayed on more and more prompts. Candidates that are clearly slower than the fastest
       are stopped.
    4. Confirm: the finalists decode live, in turns with the baseline.

    Runs that cannot be replayed (lenience below 1, trees, lossy rules) are left to `specdec compare`.

    For example:

    ```
    specdec tune examples/tune.yaml --output results/best.yaml
    specdec tune examples/tune.yaml --no-confirm \
        --set generation.max_new_tokens=32
    specdec tune builtin:code --task temperature-0 --no-confirm
    ```
    """
    study, record = _study_and_record(study, record)
    loaded = None if study is None else how.load(Path(study))
    if output is not None:
        check_output(output, overwrite)
        check_free(folder_of(output).absolute())
    with shown_progress(quiet=how.quiet) as progress:
        progress.stage("loading torch")
        from specdec_core.offline.tune import tune as find_best

        quieten_libraries()
        found = find_best(
            loaded,
            progress,
            record=record,
            target=None if target is None else read_target(target),
            machine=machine,
            task=task,
            output=output,
            options=race.read(fresh=fresh),
            settings=how.settings or (),
            ray=how.ray,
        )
    _show(found, how)


def _study_and_record(study: str | None, record: str | None) -> tuple[str | None, str | None]:
    """Return the study and the record; the argument may be either."""
    if study is None and record is None:
        raise ConfigError(
            "nothing to tune: pass a study with the candidates, or a record such as builtin:code, on which the "
            "installed drafters are tried."
        )
    if study is None or not (is_shipped(study) or misspelt_reference(study) or Path(study).is_dir()):
        return study, record
    if record is not None:
        raise ConfigError(f"two records are given, {study} and --record {record}; pass one, and a study.")
    return None, study


def _show(found: Tuning, how: StudyOptions) -> None:
    console = output_console(wide=how.wide)
    for part in found.printed(every=how.wide):
        console.print(part)
    if not found.files:
        console.print("\n" + written_yaml(found.best), markup=False, soft_wrap=True)
    elif not how.quiet:
        error_console().print(f"written: {', '.join(map(str, found.files))}", soft_wrap=True)
