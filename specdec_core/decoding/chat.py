"""Conversations: each turn follows the answers that the target gave in the turns before it."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Unpack

from specdec_core.decoding.arguments import generation_settings
from specdec_core.decoding.observers import Observer
from specdec_core.decoding.prompt_ids import Prompt, encode_prompt
from specdec_core.decoding.result import BatchResult
from specdec_core.decoding.step_loop import finished
from specdec_core.interface import ConfigError, StepReport
from specdec_core.interface.settings import GenerationOptions, GenerationSettings
from specdec_core.models import LoadedModel, PrefixCache
from specdec_core.models.chat_template import Message, render_chat
from specdec_core.sampling.generators import row_seed

if TYPE_CHECKING:
    from specdec_core.decoding.decoder import Decoder


@dataclass(frozen=True)
class Turn:
    """The messages of a conversation that its next answer follows.

    Attributes:
        messages: What is said after the last answer; in the first turn, from the beginning.
        name: The turn's name in messages of errors.
        template: A Jinja chat template that replaces the tokenizer's.
    """

    messages: tuple[Message, ...]
    name: str
    template: str | None = None


class Conversations:
    """Conversations side by side: their turns are decoded together, with the target's cache kept in between.

    The cache keeps what the next prompt has in common with the last text, token by token. Where a template renders
    earlier turns in another way, such as without their thoughts, the rest is read again. A drafter's session is
    that of one turn: it begins with the whole conversation. Beam search keeps no cache.

    Args:
        decoder: Decodes the answers.
        count: Number of conversations.

    Attributes:
        histories: The messages of each conversation, its answers included.
        cache: The target's cache.
    """

    def __init__(self, decoder: Decoder, count: int) -> None:
        self._decoder = decoder
        self.histories: list[tuple[Message, ...]] = [()] * count
        self.cache = PrefixCache()

    def stream(
        self,
        turns: Sequence[Prompt | Turn | None],
        settings: GenerationSettings,
        observers: Sequence[Observer] = (),
        *,
        seeds: Sequence[int],
    ) -> Generator[StepReport, None, BatchResult]:
        """Decode the next answer of each conversation step by step; the return value is the `BatchResult`.

        A turn that fails, or is left early, leaves the conversations as they were.

        Args:
            turns: The next turn of each; None for those that have ended, which the result leaves out. A prompt is
                decoded as it is, and nothing follows it.
            settings: How long to decode.
            observers: Called after every step.
            seeds: One for each turn that is not None.

        Raises:
            SpecdecError: As for `Decoder.generate`, or the template refuses the conversation.
        """
        rows = [number for number, turn in enumerate(turns) if turn is not None]
        prompts: list[Prompt] = []
        messages: dict[int, tuple[Message, ...]] = {}
        for number, turn in enumerate(turns):
            if isinstance(turn, Turn):
                messages[number] = (*self.histories[number], *turn.messages)
                prompts.append(self._rendered(turn, messages[number]))
            elif turn is not None:
                prompts.append(turn)
        cache = self.cache if messages and settings.beams == 1 else None
        result = yield from self._decoder.stream(prompts, settings, observers, seeds, cache=cache)
        for number, best in zip(rows, result.sequences[:: settings.num_return_sequences], strict=True):
            if number in messages:
                self.histories[number] = (*messages[number], {"role": "assistant", "content": best.text})
        return result

    def close(self) -> None:
        """Free the cache."""
        self.cache.close()

    def _rendered(self, turn: Turn, messages: Sequence[Message]) -> list[int]:
        target = self._decoder.target
        check_converses(target)
        ids = render_chat(messages, target.tokenizer, name=turn.name, model=target.name, template=turn.template)
        return encode_prompt(target, ids, turn.name)


class Chat:
    """A conversation with the target of a decoder; made by `Decoder.chat`.

    Greedy answers are those of the model's own `generate` to the same messages. The first answer has the seed
    `row_seed(seed, 0)`, the next `row_seed(seed, 1)`, and so on.

    Args:
        decoder: Decodes the answers.
        system: A system message before the first turn.
        template: A Jinja chat template, in place of the tokenizer's.

    Raises:
        ConfigError: The target reads its prompts with an encoder.
    """

    def __init__(self, decoder: Decoder, system: str | None = None, *, template: str | None = None) -> None:
        check_converses(decoder.target)
        self._conversations = Conversations(decoder, 1)
        self._template = template
        self._turns = 0
        if system is not None:
            self._conversations.histories = [({"role": "system", "content": system},)]

    @property
    def messages(self) -> tuple[Message, ...]:
        """The messages so far, each with `role` and `content`."""
        return self._conversations.histories[0]

    @property
    def reused(self) -> int:
        """The number of tokens of the last turn's prompt that the target did not read again."""
        return next(iter(self._conversations.cache.reused), 0)

    def send(
        self,
        text: str,
        settings: GenerationSettings | None = None,
        observers: Sequence[Observer] = (),
        **options: Unpack[GenerationOptions],
    ) -> BatchResult:
        """Say something; return the result of decoding the answer, which is `result.text`.

        Args:
            text: The message of the user.
            settings: How long to decode, and the seed.
            observers: Called after every step.
            **options: Fields of `GenerationSettings`, which replace those of `settings`.

        Raises:
            PromptError: The tokenizer has no chat template, the template refuses the conversation, or it is too
                long for the target.
            SpecdecError: As for `Decoder.generate`. The conversation is then as it was before.
        """
        return finished(self.stream(text, settings, observers, **options))

    def stream(
        self,
        text: str,
        settings: GenerationSettings | None = None,
        observers: Sequence[Observer] = (),
        **options: Unpack[GenerationOptions],
    ) -> Generator[StepReport, None, BatchResult]:
        """Say something, and decode the answer step by step; the generator's return value is the `BatchResult`.

        Arguments and errors are those of `send`. Leaving the loop early leaves the conversation as it was.
        """
        settings = generation_settings(settings, options)
        turn = Turn(({"role": "user", "content": text},), f"turn {self._turns + 1} of the chat", self._template)
        seeds = [row_seed(settings.seed, self._turns)]
        result = yield from self._conversations.stream([turn], settings, observers, seeds=seeds)
        self._turns += 1
        return result

    def close(self) -> None:
        """Free the target's cache; the next turn reads the whole conversation."""
        self._conversations.close()


def check_converses(target: LoadedModel) -> None:
    """Refuse a target whose prompts are sources of an encoder.

    Raises:
        ConfigError: It has an encoder.
    """
    if target.encoder_decoder:
        raise ConfigError(
            f"{target.name} is an encoder-decoder model, which answers a source and knows no earlier turns. Use a "
            "decoder-only model, or decode first turns alone: `turns: first`."
        )
