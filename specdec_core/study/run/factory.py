"""The objects that a study describes: target, prompts, drafters, controllers, and the decoder of a run."""

from collections.abc import Sequence
from pathlib import Path

from specdec_core.decoding.arguments import make_controller, make_drafter
from specdec_core.decoding.chat import check_converses
from specdec_core.decoding.decoder import Decoder
from specdec_core.decoding.prompt_ids import check_prompts
from specdec_core.interface import Drafter
from specdec_core.interface.settings import SamplingSettings
from specdec_core.models import LoadedModel
from specdec_core.registry.registry import Registry
from specdec_core.study.config.prompt_file import PromptText
from specdec_core.study.config.prompts import ReadyPrompt, encode_prompts, render_prompt
from specdec_core.study.config.study import Run


def ready_prompts(
    target: LoadedModel, prompts: Sequence[PromptText], chat_template: str | None = None
) -> list[ReadyPrompt]:
    """Return prompts in the form that a decoder takes, after checking all of them.

    Of conversations, the first turns are checked; the others follow answers.

    Args:
        target: The loaded target.
        prompts: The prompts as read.
        chat_template: Replaces the tokenizer's chat template; None uses the tokenizer's own.

    Raises:
        PromptError: If a chat has no tokenizer or no template, or the target cannot take some prompts. The message
            then has a line for each of the first of them.
        ConfigError: If a conversation has several turns, and the target is an encoder-decoder model.
    """
    opening = opening_prompts(target, prompts, chat_template)
    if len(opening) == len(prompts):
        return list(opening)
    check_converses(target)
    return encode_prompts(prompts, target.tokenizer, model=target.name, chat_template=chat_template)


def opening_prompts(
    target: LoadedModel, prompts: Sequence[PromptText], chat_template: str | None = None
) -> list[str | list[int]]:
    """Return prompts as `ready_prompts` does; of conversations, only the first turns."""
    first = [prompt for prompt in prompts if prompt.turn == 1]
    rendered = [
        render_prompt(one, target.tokenizer, model=target.name, chat_template=chat_template) for one in first
    ]
    check_prompts(target, rendered, [repr(prompt.id) for prompt in first])
    return rendered


def make_decoder(
    target: LoadedModel,
    run: Run,
    *,
    registry: Registry,
    sampling: SamplingSettings,
    folder: Path = Path(),
    strict: bool = False,
    drafter: Drafter | None = None,
) -> Decoder:
    """Load the drafter and controllers of a run and return its decoder.

    Args:
        target: The loaded target.
        run: Settings of the drafter and controllers.
        registry: Where plugins come from.
        sampling: Sampling settings of the target.
        folder: Base for relative paths.
        strict: Raise when a plugin fails.
        drafter: The drafter, if it is loaded already.

    Raises:
        PluginError: If a plugin cannot be loaded, or the target lacks what it needs.
    """
    if run.drafter is None:
        return Decoder(target, sampling=sampling, strict=strict)
    return Decoder(
        target,
        drafter or make_drafter(target, run.drafter, registry=registry, folder=folder),
        gamma=make_controller("gamma", run.gamma, registry),
        lenience=make_controller("lenience", run.lenience, registry),
        rule=make_controller("rule", run.rule, registry),
        sampling=sampling,
        draft_sampling=run.draft_sampling,
        draft_beams=run.draft_beams,
        strict=strict,
    )
