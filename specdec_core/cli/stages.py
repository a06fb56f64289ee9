"""How work of several stages goes on, on standard error: bars on a terminal, a line now and then elsewhere."""

import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column

_EVERY_SECONDS = 10.0


class StageProgress:
    """Shows the stages of a training or a measurement, and the points of a learning curve; a `TrainingObserver`.

    Args:
        console: Where to.
        quiet: Show nothing.
        clock: Seconds that only grow.
    """

    def __init__(
        self, console: Console, *, quiet: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._console = console
        self._quiet = quiet
        self._clock = clock
        self._live = console.is_terminal and not quiet
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn(
                "{task.fields[note]}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis")
            ),
        )
        self._bar = Progress(*columns, console=console, transient=True, disable=not self._live)
        self._task = self._bar.add_task("", visible=False, note="")
        self._stage: str | None = None
        self._total: float | None = None
        self._began = self._said = clock()
        self._first: tuple[float, float] | None = None

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()
        if error is None:
            self._end_stage()

    def stage(self, what: str, total: float | None = None) -> None:
        """End the stage before, and begin one."""
        self._end_stage()
        self._stage, self._total = what, total
        self._began = self._said = self._clock()
        self._first = None
        self._bar.remove_task(self._task)
        self._task = self._bar.add_task(what, total=total, note="")
        if not self._live:
            self._say(f"{what} ...")

    def advance(self, done: float, note: str = "") -> None:
        """Show how much of the stage is done by now."""
        if self._live:
            self._bar.update(self._task, completed=done, note=note)
            return
        now = self._clock()
        # A stage that was resumed begins in its middle; its pace is what came after.
        self._first = self._first or (now, done)
        if now - self._said >= _EVERY_SECONDS:
            self._said = now
            self._say("  ".join(filter(None, [f"{self._stage}: {self._done(done, now)}", note])))

    def measured(self, point: Mapping[str, float]) -> None:
        """Show a point of the learning curve."""
        self._say("  ".join(f"{name.replace('_', ' ')} {value_text(value)}" for name, value in point.items()))

    def _done(self, done: float, now: float) -> str:
        passed = now - self._began
        if not self._total:
            return f"{value_text(done)} done after {duration(passed)}"
        share = f"{min(done / self._total, 1):.0%} after {duration(passed)}"
        since, before = self._first or (now, done)
        if not before < done < self._total:
            return share
        return f"{share}, {duration((now - since) * (self._total - done) / (done - before))} left"

    def _end_stage(self) -> None:
        if self._stage is not None:
            self._say(f"{self._stage}: done in {duration(self._clock() - self._began)}")
            self._stage = None

    def _say(self, text: str) -> None:
        if not self._quiet:
            # Above the bar, where there is one.
            self._console.print(text, markup=False, soft_wrap=True)


def value_text(value: str | float) -> str:
    """Return a value as people read it: four digits of what is no whole number."""
    if isinstance(value, str):
        return value
    number = float(value)
    return str(int(number)) if number.is_integer() else f"{number:.4g}"


def duration(seconds: float) -> str:
    """Return a time in its two largest units: `4 s`, `3 min 20 s`, `2 h 5 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
