"""`specdec generate`: generate text from a prompt and stream it."""

import sys
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from pydantic import BaseModel
from typer import Argument, Option

from specdec_core.cli.common import (
    MinP,
    PluginTimeout,
    Quiet,
    TopK,
    TopP,
    error_console,
    option_of,
    output_console,
    plugin_output,
    quieten_libraries,
    validated,
)
from specdec_core.cli.console import write_text
from specdec_core.cli.inputs import PROMPTS_HELP, TARGET_HELP, Device, Dtype, read_prompts_option, read_target
from specdec_core.cli.trace import TraceView, speller
from specdec_core.interface.errors import ConfigError, PluginWarning, PromptError, reading
from specdec_core.interface.inputs import open_text
from specdec_core.interface.settings import GenerationSettings, SamplingSettings
from specdec_core.interface.target import TargetConfig
from specdec_core.registry import default_registry, rule_problems
from specdec_core.study import BASELINE, Run, run_model
from specdec_core.study.config.prompts import (
    PromptText,
    as_chat,
    read_chat_template,
    read_prompts,
    read_template,
)
from specdec_core.study.config.yaml_source import parse_value
from specdec_core.study.progress import TerminalProgress

if TYPE_CHECKING:
    from specdec_core.decoding import BatchResult, Decoder, Prompt
    from specdec_core.models import LoadedModel


_Model = TypeVar("_Model", bound=BaseModel)
_MAX_PROMPT = 100_000_000
"""The most bytes of a prompt from a file."""


@dataclass(frozen=True)
class _Prompts:
    """Prompts to continue, and the chat template from the command line."""

    prompts: tuple[PromptText, ...]
    template: str | None


@dataclass(frozen=True)
class _Options:
    """The validated options."""

    run: Run
    sampling: SamplingSettings
    generation: GenerationSettings
    trace: bool
    strict: bool
    plugin_timeout: float | None
    quiet: bool


def generate(
    prompt: Annotated[str | None, Argument(help="The prompt; - reads it from standard input.")] = None,
    target: Annotated[str, Option("--target", "--model", help=TARGET_HELP)] = "builtin:target",
    device: Device = None,
    dtype: Dtype = None,
    drafter: Annotated[
        str | None, Option(help="The drafter: a name, or YAML with its settings; none by default.")
    ] = None,
    gamma: Annotated[
        str | None, Option(help="Tokens drafted per step: a number, or YAML of a controller.  [default: 4]")
    ] = None,
    lenience: Annotated[
        str | None,
        Option(help="Lenience l in (0, 1], 1 is lossless: a number, or YAML of a controller.  [default: 1]"),
    ] = None,
    rule: Annotated[
        str | None, Option(help="The acceptance rule: a name, or YAML with its settings.  [default: token]")
    ] = None,
    temperature: Annotated[float, Option(help="Sampling temperature; 0 is greedy.")] = 1.0,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    repetition_penalty: Annotated[float, Option(help="Values above 1 discourage repetition.")] = 1.0,
    max_new_tokens: Annotated[int, Option(help="Maximum number of tokens to generate.")] = 128,
    stop: Annotated[list[str] | None, Option(help="Stop at this text; may be repeated.")] = None,
    seed: Annotated[int, Option(help="Seed of the random generators: the same seed gives the same text.")] = 0,
    constraint: Annotated[
        str | None,
        Option(
            help="What the text must be: YAML with json_schema, regex or grammar. Needs specdec-core[grammar]."
        ),
    ] = None,
    beams: Annotated[int, Option(help="Beam search of this width, at --temperature 0; 1 is none.")] = 1,
    draft_beams: Annotated[
        int | None, Option(help="With beams: nodes in each level of the draft.  [default: as many as beams]")
    ] = None,
    length_penalty: Annotated[
        float, Option(help="With beams: exponent of the length by which log probabilities are divided.")
    ] = 1.0,
    early_stopping: Annotated[
        str, Option(help="With beams: end with enough finished ones: true, false or never.")
    ] = "false",
    num_return_sequences: Annotated[int, Option(help="With beams: how many sequences to show.")] = 1,
    trace: Annotated[bool, Option("--trace", help="Show which draft tokens were accepted, step by step.")] = False,
    prompts: Annotated[str | None, Option(help=PROMPTS_HELP, metavar="FILE|YAML")] = None,
    file: Annotated[
        Path | None, Option(help="Read the prompt from a file: its whole text is one prompt.", metavar="FILE")
    ] = None,
    chat: Annotated[
        bool, Option("--chat", help="Treat the prompt as a user message, not as a text to continue.")
    ] = False,
    system: Annotated[
        str | None, Option(help="System message that precedes the prompt; requires --chat.", metavar="TEXT")
    ] = None,
    chat_template: Annotated[
        Path | None, Option(help="A Jinja file that replaces the model's chat template.", metavar="FILE")
    ] = None,
    strict: Annotated[
        bool, Option("--strict", help="Stop if a plugin fails, instead of continuing without it.")
    ] = False,
    plugin_timeout: PluginTimeout = None,
    quiet: Quiet = False,
) -> None:
    r"""Generate text from a prompt: a continuation, or the output of an encoder-decoder model.

    Without --drafter the target decodes autoregressively. A plugin that fails costs no token, but is reported, and
    the exit code is 1.

    With --trace, each line is one forward pass of the target, as in Figure 1 of the paper: accepted tokens are
    green, rejected ones red, recovered ones blue, bonus tokens cyan ([+ ] [- ] [! ] [* ] without colours).

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
    read = _prompts(prompt, file, prompts, chat, system, chat_template)
    sampling = _picked(SamplingSettings, locals())
    parsed = {"stop": tuple(stop or ()), "early_stopping": parse_value(early_stopping, "--early-stopping")}
    if constraint is not None:
        parsed["constraint"] = parse_value(constraint, "--constraint")
    generation = _picked(GenerationSettings, {**locals(), **parsed})
    run = replace(_run(drafter, gamma, lenience, rule, sampling), draft_beams=draft_beams)
    _check_beams(generation, sampling, run, trace)
    _check_drafter(drafter, gamma=gamma, lenience=lenience, rule=rule, draft_beams=draft_beams)
    options = _Options(run, sampling, generation, trace, strict, plugin_timeout, quiet)
    _decode(read_target(target, device, dtype), read, options)


def _picked(model: type[_Model], options: dict[str, Any]) -> _Model:
    """Return a settings model from the options of the same names."""
    return validated(model, {name: options[name] for name in model.model_fields if name in options})


def _prompts(
    prompt: str | None,
    file: Path | None,
    prompts: str | None,
    chat: bool,
    system: str | None,
    chat_template: Path | None,
) -> _Prompts:
    given = {"a prompt": prompt, "--file": file, "--prompts": prompts}
    named = [name for name, value in given.items() if value is not None]
    if len(named) != 1:
        found = f"; given {' and '.join(named)}, not both" if named else ""
        raise PromptError(f"give a prompt or --prompts or --file{found}; - reads the prompt from standard input.")
    if system is not None and not chat:
        raise PromptError("--system: requires --chat, which treats the prompt as a user message.")
    _checked(system or "", "--system")
    template = None
    if prompts is not None:
        config = read_prompts_option(prompts)
        read, template = read_prompts(config, Path()), read_chat_template(config, Path())
    else:
        read = (PromptText("1", _text_of(prompt or "", file)),)
    if chat:
        read = tuple(as_chat(one, system) for one in read)
    if chat_template is not None:
        if all(one.messages is None for one in read):
            raise PromptError("--chat-template: no prompt is a chat; add --chat, or use prompts with `messages`.")
        template = read_template(chat_template)
    return _Prompts(read, template)


def _text_of(prompt: str, file: Path | None) -> str:
    """Return the text of a single prompt: that of the file, of standard input, or the prompt itself."""
    if file is not None and file.suffix == ".jsonl":
        raise PromptError(f"--file: {file} holds several prompts; read it with --prompts.")
    if file is not None:
        with reading(file, PromptError, "a prompt"), open_text(file, _MAX_PROMPT) as opened:
            text = opened.read()
    else:
        text = _standard_input() if prompt == "-" else _checked(prompt, "the prompt")
    if not text.strip():
        raise PromptError("the prompt is empty: write at least one word.")
    return text


def _standard_input() -> str:
    try:
        text = sys.stdin.read(_MAX_PROMPT + 1)
    except UnicodeDecodeError as error:
        raise PromptError(f"standard input is no text: byte {error.start} is not {error.encoding}.") from error
    if len(text) > _MAX_PROMPT:
        raise PromptError(f"standard input has more than {_MAX_PROMPT:,} characters, the most that is read.")
    return _checked(text, "standard input")


def _checked(text: str, what: str) -> str:
    """Return a text; refuse bytes that are no characters, which Python keeps as halves of surrogate pairs."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise PromptError(f"{what} is no text: character {error.start + 1} is not UTF-8.") from error
    return text


def _check_drafter(drafter: str | None, **given: object) -> None:
    """Check that options about drafts are given with a drafter only."""
    names = [option_of([name]) for name, value in given.items() if value is not None]
    if drafter is None and names:
        raise ConfigError(
            f"{', '.join(names)}: given without --drafter, so nothing is drafted; add one, such as --drafter "
            "prompt-copy (`specdec plugins` lists them), or leave it out."
        )


def _run(
    drafter: str | None, gamma: str | None, lenience: str | None, rule: str | None, sampling: SamplingSettings
) -> Run:
    if drafter is None:
        return Run(BASELINE)
    options = {"drafter": drafter, "gamma": gamma or "4", "lenience": lenience, "rule": rule}
    data = {name: parse_value(text, f"--{name}") for name, text in options.items() if text is not None}
    config = validated(run_model(default_registry()), data)
    run = Run(drafter, config.drafter, config.gamma, config.lenience, rule=config.rule)
    if config.rule is not None:
        problems = rule_problems(config.rule, config.rule.name, greedy=sampling.greedy, lenient=run.lenient)
        for _, problem in problems:
            raise ConfigError(f"--rule: {problem}")
    return run


def _check_beams(generation: GenerationSettings, sampling: SamplingSettings, run: Run, trace: bool) -> None:
    given = {
        "draft_beams": run.draft_beams,
        "lenience": run.lenience if run.lenient else None,
        "rule": run.rule,
    }
    for name, problem in generation.beam_problems(sampling, **given):
        raise ConfigError(f"{option_of([name])}: {problem}")
    if trace and generation.beams > 1:
        raise ConfigError("--trace: shows how one text grows, and beams are several; remove it, or --beams.")


def _decode(model: TargetConfig, read: _Prompts, options: _Options) -> None:
    errors = error_console()
    shown = errors.is_terminal and not options.quiet
    with errors.status("loading torch and the model") if shown else nullcontext(), plugin_output():
        from specdec_core.study.run.factory import load_target, make_decoder, ready_prompts

        quieten_libraries()
        target = load_target(model)
        prompts = ready_prompts(target, read.prompts, read.template)
        decoder = make_decoder(
            target,
            options.run,
            registry=default_registry(),
            sampling=options.sampling,
            strict=options.strict,
            plugin_timeout=options.plugin_timeout,
        )
    failed = False
    # Text that goes elsewhere is not seen to grow.
    unseen = shown and not sys.stdout.isatty()
    for number, (written, prompt) in enumerate(zip(read.prompts, prompts, strict=True), start=1):
        if len(prompts) > 1:
            output_console().print(f"--- prompt {written.id}", soft_wrap=True)
        with TerminalProgress(errors, quiet=not unseen) as progress, warnings.catch_warnings():
            warnings.simplefilter("ignore", PluginWarning)  # they are printed below
            progress.stage(f"prompt {number} of {len(prompts)}", options.generation.max_new_tokens)
            result = _stream(decoder, target, prompt, options, progress)
        if len(prompts) > 1:
            for reference in written.references:
                write_text(f"--- reference\n{reference}\n")
        for note in result.notes:
            errors.print(f"Note: {note}", style="yellow", soft_wrap=True)
        for failure in result.failures:
            errors.print(f"{failure}. No token was lost.", style="yellow", soft_wrap=True)
            failed = True
    if failed:
        raise typer.Exit(1)


def _stream(
    decoder: "Decoder", target: "LoadedModel", prompt: "Prompt", options: _Options, progress: TerminalProgress
) -> "BatchResult":
    """Decode a prompt, print the text as it is generated, and return the result."""
    view = TraceView(output_console(), speller(target.tokenizer))
    tokens: list[int] = []
    shown = ""
    steps = decoder.stream([prompt], options.generation)
    while True:
        try:
            with plugin_output():
                report = next(steps)
        except StopIteration as end:
            result: BatchResult = end.value
            break
        tokens += report.outcome.committed[0]
        progress.advance(len(tokens))
        if options.generation.beams > 1:
            continue  # which beam is the best is known at the end
        if options.trace:
            view.step(report)
            continue
        shown = _show(_text(target, tokens), shown)
    if options.generation.beams > 1:
        _show_beams(result)
    elif options.trace:
        view.close(result)
    else:
        write_text(f"{_text(target, tokens)[len(shown) :]}\n")
    return result


def _show_beams(result: "BatchResult") -> None:
    """Print the sequences, each with its score if there are several, and the forward passes."""
    for one in result:
        score = f"[{one.score:.3f}] " if len(result) > 1 else ""
        write_text(f"{score}{one}\n")
    metrics = result.metrics
    error_console().print(
        f"{metrics.target_calls} target forward passes for {metrics.tokens} steps of beam search"
    )


def _show(text: str, shown: str) -> str:
    """Print the new part of a text and return what is printed so far; incomplete characters are held back."""
    whole = text.rstrip("�")
    if len(whole) > len(shown) and whole.startswith(shown):
        write_text(whole[len(shown) :])
        return whole
    return shown


def _text(target: "LoadedModel", tokens: Sequence[int]) -> str:
    if target.tokenizer is None:
        return "".join(f" {token}" for token in tokens)
    text: str = target.tokenizer.decode(list(tokens), skip_special_tokens=True)
    return text
