"""The session of a study that runs or is replayed: finished repeats, failures, and the journal of both.

The journal is `repeats.jsonl`: the study's provenance, then each finished repeat. Every finished repeat is on disk
before the next begins, so that a stopped study resumes. `specdec_core.study.report.result_files` writes
`results.jsonl` from the finished study.
"""

import hashlib
import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter

from specdec_core.interface import ConfigError, Progress, SpecdecError
from specdec_core.interface.errors import PluginWarning, differences, exception_text, raised_text, without_home
from specdec_core.interface.files import append_to
from specdec_core.study.config.study import BASELINE, Run, Study, Task, with_task
from specdec_core.study.run.finished_repeats import Repeat, RepeatKey, Repeats, RunKey
from specdec_core.study.run.folder import JOURNAL, RESUMED, StorageError, cannot_store, make_folder, when_stopped

_REPEAT = TypeAdapter(Repeat)


class Journal:
    """The file `repeats.jsonl` in a folder of results.

    A repeat in which a plugin failed is not finished, and neither is one of a run whose plugins have changed.

    Attributes:
        path: Its path.
        finished: The finished repeats.
    """

    def __init__(self, folder: Path, provenance: Mapping[str, Any], *, fresh: bool = False) -> None:
        """Open the journal and read the finished repeats.

        A last line that was cut off when the study was stopped is removed: its repeat is timed again.

        Args:
            folder: Created if it does not exist.
            provenance: Everything that must be equal for results to belong together: settings, versions, device;
                and `plugins`, the code that each run uses now.
            fresh: Discard what an earlier study left in the folder.

        Raises:
            ConfigError: If the folder holds the repeats of another study or another version of specdec, or the
                journal has a line that is not a repeat.
            StorageError: If the folder cannot be written.
        """
        self.path = folder / JOURNAL
        self.finished = Repeats()
        self._plugins = provenance.get("plugins", {})
        provenance = {key: value for key, value in provenance.items() if key != "plugins"}
        make_folder(folder)
        try:
            content = b"" if fresh or not self.path.exists() else self.path.read_bytes()
            whole = content[: content.rfind(b"\n") + 1]
            if whole:
                self._read(whole.splitlines(), provenance)
            with self.path.open("ab") as file:
                file.truncate(len(whole))
        except OSError as error:
            raise cannot_store(folder, error) from error
        if not whole:
            self._append({"fingerprint": _fingerprint(provenance), "study": provenance})

    def add(self, repeat: Repeat) -> None:
        """Record a finished repeat; it is on disk when this returns."""
        self._append({**asdict(repeat), "plugins": self._plugins.get(repeat.run, {})})
        self.finished.add(repeat)

    def _read(self, lines: list[bytes], provenance: Mapping[str, Any]) -> None:
        again: dict[RepeatKey, str] = {}
        for number, line in enumerate(lines, start=1):
            try:
                entry = json.loads(line)
                if number > 1:
                    changes = differences(entry.pop("plugins"), self._plugins.get(entry["run"], {}))
                    repeat = _REPEAT.validate_python(entry)
                    if changes:
                        again[repeat.key] = f"the code of its plugins has changed ({'; '.join(changes)})"
                    elif repeat.failures:
                        again[repeat.key] = "a plugin failed"
                    else:
                        self.finished.add(repeat)
                    continue
                found, there = entry["fingerprint"], entry["study"]
            except (KeyError, TypeError, ValueError) as error:
                raise ConfigError(
                    f"{self.path}:{number}: not a line of this version's journal ({exception_text(error)}). "
                    "Remove the line, choose another --output, or pass --fresh to start over there."
                ) from error
            if found != _fingerprint(provenance):
                changes = differences(there, json.loads(json.dumps(provenance)))[:3]
                raise ConfigError(
                    f"{self.path.parent} holds the results of another study ({'; '.join(changes)}). "
                    "Choose another --output, or pass --fresh to start over there."
                )
        left = {(key[1], why) for key, why in again.items() if key not in self.finished}
        for run, why in sorted(left):
            warnings.warn(f"{self.path.parent}: run again: {run!r}, as {why}.", RuntimeWarning, stacklevel=2)

    def _append(self, entry: Mapping[str, Any]) -> None:
        try:
            append_to(self.path, json.dumps(entry).encode() + b"\n")
        except OSError as error:
            raise StorageError(
                f"{self.path}: cannot be written: {error.strerror or error}. {len(self.finished)} finished "
                "repeat(s) are stored there. Make room, and run the same command again to resume."
            ) from error


def _fingerprint(provenance: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(provenance, sort_keys=True).encode()).hexdigest()[:16]


_Found = TypeVar("_Found")


@dataclass(frozen=True)
class StudyResult:
    """The measurements of a study.

    Attributes:
        study: The study.
        repeats: Every finished repeat.
        failed: Why each failed run was abandoned.
        provenance: Settings, versions and device, as plain data.
    """

    study: Study
    repeats: Repeats
    failed: Mapping[RunKey, str]
    provenance: Mapping[str, Any]

    def of_run(self, task: Task, run: str) -> dict[int, Repeat]:
        """Return the finished repeats of a run, by number."""
        return dict(sorted(self.repeats.of_run(task.name, run).items()))


class Session:
    """The finished and the failed parts of a study.

    Args:
        journal: Stores finished repeats; None stores nothing.

    Attributes:
        finished: The finished repeats.
        failed: Why each failed run was abandoned.
    """

    def __init__(self, journal: Journal | None) -> None:
        self.finished = Repeats() if journal is None else journal.finished
        self.failed: dict[RunKey, str] = {}
        self._journal = journal

    def done(self, task: Task, run: Run, number: int = 1) -> bool:
        """Return whether a repeat of a run is finished, or the run was abandoned."""
        return (task.name, run.name) in self.failed or (task.name, run.name, number) in self.finished

    def add(self, repeat: Repeat) -> None:
        """Keep a finished repeat; if there is a journal, it is on disk when this returns."""
        if self._journal is not None:
            self._journal.add(repeat)  # to `finished`, too
        else:
            self.finished.add(repeat)

    def attempt(self, tasks: Sequence[Task], run: Run, action: Callable[[], _Found]) -> _Found | None:
        """Do something for a run of some tasks; return None if it fails.

        Whatever its plugins raise, sys.exit too, ends this run only. No plugin takes part in the baseline, and
        without it there is nothing to compare: what it raises ends the study, which resumes.
        """
        try:
            return action()
        except (KeyboardInterrupt, StorageError):
            raise
        except BaseException as error:
            if run.name == BASELINE:
                raise
            why = without_home(str(error)) if isinstance(error, SpecdecError) else raised_text(error)
            self.failed.update({(task.name, run.name): why for task in tasks})
            return None

    def fail(self, tasks: Sequence[Task], runs: Sequence[Run], *, like: Run) -> None:
        """Abandon runs of some tasks for the reason for which another one was."""
        for task in tasks:
            self.failed.update({(task.name, run.name): self.failed[task.name, like.name] for run in runs})

    def stopped(self, total: str) -> str:
        """Return what a signal leaves behind, and the runs that failed before it.

        Args:
            total: How many repeats there are to finish: `12 repeats`.
        """
        left = "nothing was stored. With --output DIR, a stopped study can be resumed."
        if self._journal is not None:
            left = f"{len(self.finished)} of {total} are stored in {self._journal.path.parent}. {RESUMED}"
        failed = [with_task(task, f"{run} failed: {reason}") for (task, run), reason in self.failed.items()]
        return "\n".join([*failed, f"stopped; {left}"])


@contextmanager
def open_session(
    output: Path | None,
    provenance: Callable[[], Mapping[str, Any]],
    progress: Progress,
    *,
    fresh: bool,
    count: int,
    unit: str,
    at_most: bool = False,
) -> Iterator[tuple[Session, Mapping[str, Any]]]:
    """Open the session of a study, or that of one that was stopped; yield it with the provenance.

    Args:
        output: Folder that stores finished repeats, which the caller has locked; None for none.
        provenance: Returns everything that must be equal for repeats to belong together.
        progress: Where progress is reported.
        fresh: Discard what an earlier study left in the folder.
        count: How many repeats there are to finish.
        unit: What they are called.
        at_most: Whether fewer may suffice.

    Raises:
        ConfigError: The folder holds the results of another study.
        StorageError: It cannot be written.
        KeyboardInterrupt: On Ctrl-C; the message says what was stored.
    """
    with warnings.catch_warnings():
        found = provenance()
        session = Session(None if output is None else Journal(output, found, fresh=fresh))
        warnings.simplefilter("ignore", PluginWarning)  # the result reports failures of plugins
        if session.finished:
            progress.measured({unit: count, "finished before": len(session.finished)})
        total = f"{'at most ' if at_most else ''}{count} {unit}"
        with when_stopped(lambda: session.stopped(total)):
            yield session, found
