"""`specdec generate`: text from a prompt, as it is decoded."""

import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from pydantic import BaseModel
from typer import Argument, Option

from specdec_core.cli.console import error_console, output_console, quieten_libraries
from specdec_core.cli.options import validated
from specdec_core.cli.trace import TraceView, speller
from specdec_core.errors import PromptError, reading
from specdec_core.registry import default_registry
from specdec_core.settings import GenerationSettings, SamplingSettings
from specdec_core.study import PLAIN, Run, run_model
from specdec_core.study.config import PromptsConfig
from specdec_core.study.prompts import PromptText, read_prompts, read_template
from specdec_core.study.source import parse_value

if TYPE_CHECKING:
    from specdec_core.decoding import BatchResult, Decoder, Prompt
    from specdec_core.models import LoadedModel


_Model = TypeVar("_Model", bound=BaseModel)


@dataclass(frozen=True)
class _Prompts:
    """What shall be gone on from, and the chat template that was given."""

    prompts: tuple[PromptText, ...]
    template: str | None


@dataclass(frozen=True)
class _Wish:
    """What the options say, validated."""

    run: Run
    sampling: SamplingSettings
    generation: GenerationSettings
    trace: bool
    strict: bool


def generate(
    prompt: Annotated[str | None, Argument(help="The prompt; - reads it from standard input.")] = None,
    model: Annotated[str, Option(help="The target: a folder, a hub name, or builtin:target.")] = "builtin:target",
    drafter: Annotated[
        str | None, Option(help="Who guesses: a name, or YAML with its settings; else nobody.")
    ] = None,
    gamma: Annotated[str, Option(help="Tokens drafted in a step: a number, or YAML of a controller.")] = "4",
    lenience: Annotated[str, Option(help="l in (0, 1], 1 is lossless: a number, or YAML of a controller.")] = "1",
    temperature: Annotated[float, Option(help="0 is argmax.")] = 1.0,
    top_k: Annotated[int | None, Option(help="Keep the k most probable tokens.")] = None,
    top_p: Annotated[float | None, Option(help="Keep the fewest tokens with this probability.")] = None,
    min_p: Annotated[float | None, Option(help="Keep tokens this probable, relative to the best.")] = None,
    repetition_penalty: Annotated[float, Option(help="Above 1 discourages repetition.")] = 1.0,
    max_new_tokens: Annotated[int, Option(help="The most tokens to add.")] = 128,
    stop: Annotated[list[str] | None, Option(help="A text that ends the answer; may be repeated.")] = None,
    seed: Annotated[int, Option(help="Same seed, same text.")] = 0,
    trace: Annotated[bool, Option("--trace", help="Show what became of every drafted token.")] = False,
    prompts: Annotated[
        Path | None,
        Option(
            "--prompts",
            "--file",
            help="Read prompts from a file: .jsonl has one a line, a text or a chat; any other is one prompt.",
            metavar="FILE",
        ),
    ] = None,
    chat: Annotated[
        bool, Option("--chat", help="Take the prompt as a user's message, not as a text to continue.")
    ] = False,
    system: Annotated[
        str | None, Option(help="With --chat: what the model is told before.", metavar="TEXT")
    ] = None,
    chat_template: Annotated[
        Path | None, Option(help="A Jinja file in the place of the model's own chat template.", metavar="FILE")
    ] = None,
    strict: Annotated[bool, Option("--strict", help="Stop when a plugin fails, rather than go on.")] = False,
) -> None:
    """Continue a prompt, or answer it where the target has an encoder; a drafter guesses, if you name one.

    With --trace, each line is one call of the target, as in Figure 1 of the paper: accepted tokens are green,
    rejected ones red, recovered ones blue, bonus tokens cyan ([+ ] [- ] [! ] [* ] where there are no colours).

    For example:

    ```
    specdec generate "def main():" --temperature 0
    specdec generate "def main():" --drafter prompt-copy --gamma 8
    specdec generate "import os" --drafter "{name: transformer, model: builtin:drafter}" --trace
    specdec generate - < prompt.txt
    specdec generate "What is a prime?" --model owner/name-instruct --chat --system "Answer in one sentence."
    ```
    """
    asked = _prompts(prompt, prompts, chat, system, chat_template)
    sampling = _picked(SamplingSettings, locals())
    generation = _picked(GenerationSettings, {**locals(), "stop": tuple(stop or ())})
    _decode(model, asked, _Wish(_run(drafter, gamma, lenience), sampling, generation, trace, strict))


def _picked(model: type[_Model], options: dict[str, Any]) -> _Model:
    """Return the settings of a model that are among the options."""
    return validated(model, {name: options[name] for name in model.model_fields if name in options})


def _prompts(
    prompt: str | None, file: Path | None, chat: bool, system: str | None, chat_template: Path | None
) -> _Prompts:
    if (prompt is None) == (file is None):
        given = "neither" if prompt is None else "both"
        raise PromptError(f"give a prompt or --prompts, not {given}; - reads the prompt from standard input.")
    if system is not None and not chat:
        raise PromptError("--system: it goes before a user's message; add --chat to take the prompt as one.")
    if file is not None and file.suffix == ".jsonl":
        read = read_prompts(PromptsConfig(file=file), Path())
    else:
        text = _read(file) if file is not None else sys.stdin.read() if prompt == "-" else prompt or ""
        if not text.strip():
            raise PromptError("the prompt is empty: give at least one word to continue from.")
        read = (PromptText("1", text),)
    if chat:
        read = tuple(_as_chat(one, system) for one in read)
    if chat_template is not None and all(one.messages is None for one in read):
        raise PromptError("--chat-template: no prompt is a chat; add --chat, or give prompts with `messages`.")
    return _Prompts(read, None if chat_template is None else read_template(chat_template))


def _as_chat(prompt: PromptText, system: str | None) -> PromptText:
    """Return a text as a user's message; what is a chat already stays as it is."""
    if prompt.text is None:
        if system is not None:
            raise PromptError(f"--system: prompt {prompt.id!r} is a chat already; write it into its `messages`.")
        return prompt
    before = [] if system is None else [{"role": "system", "content": system}]
    return replace(prompt, text=None, messages=(*before, {"role": "user", "content": prompt.text}))


def _read(file: Path) -> str:
    with reading(file, PromptError, "a prompt"):
        return file.read_text(encoding="utf-8")


def _run(drafter: str | None, gamma: str, lenience: str) -> Run:
    if drafter is None:
        return Run(PLAIN)
    options = {"drafter": drafter, "gamma": gamma, "lenience": lenience}
    data = {name: parse_value(text, f"--{name}") for name, text in options.items()}
    config = validated(run_model(default_registry()), data)
    return Run(drafter, config.drafter, config.gamma, config.lenience)


def _decode(model: str, asked: _Prompts, wish: _Wish) -> None:
    errors = error_console()
    with errors.status("loading torch and the model") if errors.is_terminal else nullcontext():
        from specdec_core.models import load_model
        from specdec_core.study.making import make_decoder, ready_prompts

        quieten_libraries()
        target = load_model(model)
        prompts = ready_prompts(target, asked.prompts, asked.template)
        decoder = make_decoder(
            target, wish.run, registry=default_registry(), sampling=wish.sampling, strict=wish.strict
        )
    for read, prompt in zip(asked.prompts, prompts, strict=True):
        if len(prompts) > 1:
            typer.echo(f"--- prompt {read.id}")
        result = _stream(decoder, target, prompt, wish)
        if len(prompts) > 1:
            for reference in read.references:
                typer.echo(f"--- reference\n{reference}")
        for failure in result.failures:
            text = f"{failure.plugin} was switched off at step {failure.step}: {failure.message}"
            errors.print(text, style="yellow", markup=False, soft_wrap=True)


def _stream(decoder: "Decoder", target: "LoadedModel", prompt: "Prompt", wish: _Wish) -> "BatchResult":
    """Decode one prompt and show it as it comes; return the result."""
    view = TraceView(output_console(), speller(target.tokenizer))
    tokens: list[int] = []
    shown = ""
    steps = decoder.stream([prompt], wish.generation)
    while True:
        try:
            report = next(steps)
        except StopIteration as end:
            result: BatchResult = end.value
            break
        if wish.trace:
            view.step(report)
            continue
        tokens += report.committed[0]
        shown = _show(_text(target, tokens), shown)
    if wish.trace:
        view.close(result)
    else:
        typer.echo(_text(target, tokens)[len(shown) :])
    return result


def _show(text: str, shown: str) -> str:
    """Print what is new in a text and return what has been printed; half a character is held back."""
    whole = text.rstrip("�")
    if len(whole) > len(shown) and whole.startswith(shown):
        sys.stdout.write(whole[len(shown) :])
        sys.stdout.flush()
        return whole
    return shown


def _text(target: "LoadedModel", tokens: Sequence[int]) -> str:
    if target.tokenizer is None:
        return "".join(f" {token}" for token in tokens)
    text: str = target.tokenizer.decode(list(tokens), skip_special_tokens=True)
    return text
