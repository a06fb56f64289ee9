"""`specdec generate`: generate text from a prompt and stream it."""

import sys
import warnings
from collections.abc import Callable, Generator, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer
from rich.console import Console
from rich.text import Text
from typer import Argument, Option

from specdec_core.cli.options.shared_options import Quiet, option_of, plugin_output
from specdec_core.cli.options.study_options import (
    PROMPTS_HELP,
    TextOptions,
    given,
    grouped,
    prompts_settings,
    settings_options,
    study_of_options,
)
from specdec_core.cli.terminal.console import error_console, output_console, write_text
from specdec_core.interface import StepReport
from specdec_core.interface.errors import ConfigError, PluginWarning, PromptError, reading
from specdec_core.interface.files import check_output, write_text_file
from specdec_core.interface.outcome import TokenOrigin
from specdec_core.registry.registry import default_registry
from specdec_core.study import Run, Task
from specdec_core.study.progress import TerminalProgress, quieten_libraries
from specdec_core.study.report.formats import visible
from specdec_core.trace.figure import FATES, shown, speller, trace_page

if TYPE_CHECKING:
    from specdec_core.decoding.result import BatchResult
    from specdec_core.models import LoadedModel


@dataclass(frozen=True, kw_only=True)
@settings_options(drafter=str, lenience=str, rule=str, draft_beams=int)
class _RunOptions:
    """The drafter."""

    gamma: Annotated[
        str | None, Option(help="Tokens drafted per step: a number, or YAML of a controller.  [default: 4]")
    ] = None


@dataclass(frozen=True, kw_only=True)
@settings_options(
    presence_penalty=float,
    frequency_penalty=float,
    logit_bias=str,
    min_new_tokens=int,
    beams=int,
    length_penalty=float,
    early_stopping=str,
    num_return_sequences=int,
)
class _TextOptions(TextOptions):
    """The prompts, and the settings of decoding."""

    prompts: Annotated[str | None, Option(help=PROMPTS_HELP, metavar="FILE|YAML")] = None
    bad_words: Annotated[list[str] | None, Option(help="A word that is not generated; may be repeated.")] = None
    constraint: Annotated[
        str | None,
        Option(help="Constrain the text: YAML with json_schema, regex or grammar. Needs specdec-core[grammar]."),
    ] = None


@dataclass(frozen=True, kw_only=True)
class _PromptOptions:
    """Where the prompts come from."""

    file: Annotated[Path | None, Option(help="A file whose whole text is the prompt.", metavar="FILE")] = None
    chat: Annotated[bool, Option("--chat", help="Treat the prompt as a user message.")] = False
    system: Annotated[
        str | None, Option(help="System message before the prompt; requires --chat.", metavar="TEXT")
    ] = None
    chat_template: Annotated[
        Path | None, Option(help="A Jinja file that replaces the model's chat template.", metavar="FILE")
    ] = None


@dataclass(frozen=True, kw_only=True)
class _Decoding:
    """How the text is decoded and shown."""

    trace: Annotated[
        str | None,
        Option(
            "--trace",
            help="Show each step; with a file, in an interactive figure.",
            metavar="[FILE.html]",
        ),
    ] = None
    strict: Annotated[bool, Option("--strict", help="Stop if a plugin fails.")] = False
    quiet: Quiet = False

    @property
    def trace_file(self) -> Path | None:
        """The file of the trace; None where the terminal shows it, or nothing."""
        return None if self.trace in (None, "-") else Path(self.trace)


@grouped
def generate(
    *,
    prompt: Annotated[str | None, Argument(help="The prompt; - reads it from standard input.")] = None,
    drafting: _RunOptions,
    temperature: Annotated[float, Option(help="Sampling temperature; 0 is greedy.")] = 1.0,
    text: _TextOptions,
    source: _PromptOptions,
    how: _Decoding,
) -> None:
    r"""Generate text from a prompt: a continuation, or the output of an encoder-decoder model.

    Without --drafter the target decodes autoregressively. A plugin that fails costs no token, but is reported, and
    the exit code is 1.

    With --trace, each line is one forward pass of the target: accepted tokens are green, rejected ones red,
    recovered ones blue, bonus tokens cyan ([+ ] [- ] [! ] [* ] without colors). With --trace FILE.html, the file
    shows p, q and the random number of each draft token.

    For example:

    ```
    specdec generate "def main():" --temperature 0
    specdec generate "def main():" --drafter prompt-copy --gamma 8
    specdec generate "import os" --trace \
        --drafter "{name: transformer, model: builtin:drafter}"
    specdec generate "def main():" --temperature 0 --beams 4 \
        --drafter "{name: transformer, model: builtin:drafter}"
    specdec generate "x = " --constraint "{regex: '[0-9]+ [*] [0-9]+'}"
    specdec generate - < prompt.txt
    specdec generate "import os" --device cpu \
        --target "{model: builtin:target, attn_implementation: eager}"
    specdec generate \
        --prompts "{file: examples/prompts/functions.csv, column: name}"
    specdec generate "What is a prime?" --model owner/name-instruct \
        --chat --system "Answer in one sentence."
    ```
    """
    runs = _runs(drafting)
    prompts = _prompts(prompt, text.prompts, source)
    task = study_of_options(text, temperature=[temperature], runs=runs, prompts=prompts).tasks[0]
    if how.trace and task.generation.beams > 1:
        raise ConfigError("--trace: shows how one text grows, and beams are several; remove it, or --beams.")
    if how.trace_file is not None:
        if how.trace_file.suffix not in (".html", ".htm"):
            raise ConfigError(f"--trace: {how.trace} was given; name a file that ends in .html, or none.")
        check_output(how.trace_file, overwrite=True)
    _decode(task, task.runs[-1], how)


def _runs(drafting: _RunOptions) -> list[dict[str, str | int]]:
    """Return the run with a drafter, if there is one; options about drafts have a meaning with one only."""
    options = given(drafting)
    if options and "drafter" not in options:
        raise ConfigError(
            f"{', '.join(option_of([name]) for name in options)}: given without --drafter, so nothing is drafted; "
            "add one, such as --drafter prompt-copy (`specdec plugins` lists them), or leave it out."
        )
    return [{"gamma": "4", **options}] if options else []


def _prompts(prompt: str | None, prompts: str | None, source: _PromptOptions) -> dict[str, Any]:
    """Return where the prompts come from, as a study names it."""
    named = [
        name
        for name, value in (("a prompt", prompt), ("--file", source.file), ("--prompts", prompts))
        if value is not None
    ]
    if len(named) != 1:
        found = f"; given {' and '.join(named)}, not both" if named else ""
        raise PromptError(f"give a prompt or --prompts or --file{found}; - reads the prompt from standard input.")
    if source.system is not None and not source.chat:
        raise PromptError("--system: requires --chat, which treats the prompt as a user message.")
    if source.chat_template is not None and prompts is None and not source.chat:
        raise PromptError("--chat-template: no prompt is a chat; add --chat, or use prompts with `messages`.")
    settings = {"texts": [_text_of(prompt or "", source.file)]} if prompts is None else prompts_settings(prompts)
    chat = {name: value for name, value in given(source).items() if name != "file"}
    return {**settings, **chat}


def _text_of(prompt: str, file: Path | None) -> str:
    """Return the text of a single prompt: that of the file, of standard input, or the prompt itself."""
    if file is not None and file.suffix == ".jsonl":
        raise PromptError(f"--file: {file} holds several prompts; read it with --prompts.")
    if file is not None:
        with reading(file, PromptError, "a prompt"), file.open(encoding="utf-8-sig") as opened:
            text = opened.read()
    else:
        text = _standard_input() if prompt == "-" else prompt
    if not text.strip():
        raise PromptError("the prompt is empty: write at least one word.")
    return text


def _standard_input() -> str:
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise PromptError(f"standard input is not text: byte {error.start} is not {error.encoding}.") from error


def _decode(task: Task, run: Run, how: _Decoding) -> None:
    errors = error_console()
    shown = errors.is_terminal and not how.quiet
    with errors.status("loading torch and the model") if shown else nullcontext(), plugin_output():
        from specdec_core.decoding.chat import Conversations
        from specdec_core.decoding.observers import TraceObserver
        from specdec_core.models import load_as_set
        from specdec_core.sampling.generators import row_seed
        from specdec_core.study.run.factory import make_decoder, ready_prompts

        quieten_libraries()
        target = load_as_set(task.target)
        prompts = ready_prompts(target, task.prompts, task.chat_template)
        decoder = make_decoder(
            target,
            run,
            registry=default_registry(),
            sampling=task.sampling,
            strict=how.strict,
        )
    failed = False
    traces: list[dict[str, Any]] = []
    # Text that goes elsewhere is not seen to grow.
    unseen = shown and not sys.stdout.isatty()
    conversation = Conversations(decoder, 0)
    for number, (written, prompt) in enumerate(zip(task.prompts, prompts, strict=True), start=1):
        if written.turn == 1:
            conversation.close()
            conversation = Conversations(decoder, 1, written.metadata)
        if len(prompts) > 1:
            output_console().print(f"--- prompt {written.id}", soft_wrap=True)
        with TerminalProgress(errors, quiet=not unseen) as progress, warnings.catch_warnings():
            warnings.simplefilter("ignore", PluginWarning)  # they are printed below
            progress.stage(f"prompt {number} of {len(prompts)}", task.generation.max_new_tokens)
            # The first turn has the seed of a prompt alone.
            seed = row_seed(task.generation.seed, written.turn - 1)
            observers = [TraceObserver(probabilities=True)] if how.trace_file is not None else []
            steps = conversation.stream([prompt], task.generation, observers, seeds=[seed])
            result = _show_steps(steps, target, task, progress, trace=how.trace == "-")
            traces += [one for observer in observers for one in observer.traces()]
        if len(prompts) > 1:
            for reference in written.references:
                write_text(f"--- reference\n{reference}\n")
        for note in result.notes:
            errors.print(f"Note: {note}", style="yellow", soft_wrap=True)
        for failure in result.failures:
            errors.print(f"{failure}. No token was lost.", style="yellow", soft_wrap=True)
            failed = True
    if how.trace_file is not None:
        write_text_file(how.trace_file, trace_page(traces, "Trace of a decoding"))
    if failed:
        raise typer.Exit(1)


def _show_steps(
    steps: "Generator[StepReport, None, BatchResult]",
    target: "LoadedModel",
    task: Task,
    progress: TerminalProgress,
    *,
    trace: bool,
) -> "BatchResult":
    """Print the text of a prompt as it is generated, and return the result."""
    from specdec_core.decoding.batch_loop import finished
    from specdec_core.decoding.observers import stream_text

    steps = _advancing(steps, progress)
    if task.generation.beams > 1:  # which beam is the best is known at the end
        _show_beams(result := finished(steps))
    elif trace:
        view = TraceView(output_console(), speller(target.tokenizer))
        view.close(result := finished(steps, view.step))
    else:
        result = finished(stream_text(steps, target.tokenizer), write_text)
        write_text("\n")
    return result


def _advancing(
    steps: "Generator[StepReport, None, BatchResult]", progress: TerminalProgress
) -> "Generator[StepReport, None, BatchResult]":
    """Yield the reports of steps, and show the number of tokens."""
    tokens = 0
    while True:
        try:
            with plugin_output():
                report = next(steps)
        except StopIteration as end:
            result: BatchResult = end.value
            return result
        tokens += len(report.outcome.committed[0])
        progress.advance(tokens)
        yield report


def _show_beams(result: "BatchResult") -> None:
    """Print the sequences, each with its score if there are several, and the forward passes."""
    for one in result:
        score = f"[{one.score:.3f}] " if len(result) > 1 else ""
        write_text(f"{score}{one}\n")
    metrics = result.metrics
    error_console().print(
        f"{metrics.target_calls} target forward passes for {metrics.tokens} steps of beam search"
    )


Fate: TypeAlias = TokenOrigin | Literal["rejected"]


_LOOKS: dict[Fate, tuple[str, str]] = {
    "accepted": ("green", "+"),
    "rejected": ("red strike", "-"),
    "recovered": ("blue", "!"),
    "bonus": ("cyan", "*"),
    "forced": ("yellow", "="),
}
"""The style of each token, and its mark where there are no colors."""


def fates(report: StepReport) -> Iterator[tuple[int, Fate]]:
    """Yield the tokens of a step of one sequence in the order of Figure 1, each with its fate.

    Tokens drafted after a rejected one were never verified and are left out. Where a tree is left, all tokens that
    were drafted there are rejected ones.
    """
    for token, origin in zip(report.outcome.committed[0], report.origins[0], strict=True):
        if origin == "recovered":
            yield from ((other, "rejected") for other in report.rejected_tokens[0])
        yield token, origin


class TraceView:
    """Prints the steps, a legend and a summary.

    Args:
        console: Where to print; marks replace colors on a console without them.
        spell: Returns the text of a token.
    """

    def __init__(self, console: Console, spell: Callable[[int], str]) -> None:
        self._console = console
        self._spell = spell
        self._marks = console.color_system is None or console.no_color

    def step(self, report: StepReport) -> None:
        """Print the line of a step: its number, accepted/drafted tokens, and the tokens.

        Of a tree, these are the accepted tokens, the longest path, and the tokens of all paths.
        """
        outcome = report.outcome
        counts = f"{outcome.accepted[0]}/{outcome.depths[0]}"
        if outcome.parents is not None:
            counts += f" of {outcome.drafted[0]}"
        line = Text().append(f"{report.step + 1:4d}  {counts}  ", style="dim")
        for token, fate in fates(report):
            line.append_text(self._token(self._spell(token), fate))
        self._console.print(line, soft_wrap=True)

    def close(self, result: "BatchResult") -> None:
        """Print the legend and a summary."""
        self._console.print()
        for fate in _LOOKS:
            if fate != "forced" or result.metrics.forced:
                self._console.print(self._token(fate, fate), Text(FATES[fate]))
        ended = f"ended by {result.sequences[0].finish_reason}"
        self._console.print(f"\n{result.metrics}, {ended}.", soft_wrap=True)

    def _token(self, text: str, fate: Fate) -> Text:
        style, mark = _LOOKS[fate]
        safe = visible(shown(text))
        return Text(f"[{mark}{safe}]") if self._marks else Text(safe, style=style)
