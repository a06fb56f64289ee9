"""How a study goes on, on standard error: a bar on a terminal, a line for each repeat elsewhere."""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


class StudyProgress:
    """Shows progress; counts what is finished, for the message when a study is stopped.

    Args:
        console: Where to.
        quiet: Show failures only.
    """

    def __init__(self, console: Console, *, quiet: bool = False) -> None:
        self._console = console
        self._quiet = quiet
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        shown = console.is_terminal and not quiet
        self._bar = Progress(*columns, console=console, transient=True, disable=not shown)
        self._task = self._bar.add_task("starting", total=None)
        self.repeats = 0
        self.finished = 0

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def began(self, repeats: int, finished: int) -> None:
        """Show how much there is to do."""
        self.repeats, self.finished = repeats, finished
        self._bar.update(self._task, total=repeats, completed=finished)
        if finished:
            self._say(f"{finished} of {repeats} repeats were finished before; going on from there")

    def loading(self, what: str) -> None:
        """Show that something is being loaded."""
        self._show(f"loading {what}")

    def measuring(self, run: str, repeat: int) -> None:
        """Show which run has its turn."""
        self._bar.update(self._task, description=f"{run}, repeat {repeat}")

    def measured(self, run: str, repeat: int, tokens_per_second: float) -> None:
        """Show a finished repeat."""
        self.finished += 1
        self._bar.update(self._task, completed=self.finished)
        if not self._console.is_terminal:
            self._say(f"[{self.finished}/{self.repeats}] {run}, repeat {repeat}: {tokens_per_second:.1f} tokens/s")

    def failed(self, run: str, reason: str) -> None:
        """Show that a run was given up."""
        self._console.print(f"{run} failed: {reason}", style="red", markup=False, soft_wrap=True)

    def _show(self, text: str) -> None:
        self._bar.update(self._task, description=text)
        if not self._console.is_terminal:
            self._say(text)

    def _say(self, text: str) -> None:
        if not self._quiet:
            self._console.print(text, markup=False, soft_wrap=True)
