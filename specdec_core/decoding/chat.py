"""Conversations: each turn follows the answers that the target gave in the turns before it."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias, Unpack

from specdec_core.decoding.arguments import Metadata, generation_settings, metadata_of_each
from specdec_core.decoding.batch_loop import finished
from specdec_core.decoding.counts import Metrics, RequestMetrics
from specdec_core.decoding.observers import Observer
from specdec_core.decoding.prompt_ids import Prompt, encode_prompt, leaves_room
from specdec_core.decoding.result import BatchResult, Generation
from specdec_core.interface import ConfigError, StepReport
from specdec_core.interface.settings import GenerationOptions, GenerationSettings
from specdec_core.models import LoadedModel
from specdec_core.models.chat_template import Message, Turn, render_chat
from specdec_core.models.prefix_cache import PrefixCache
from specdec_core.sampling.generators import row_seed

if TYPE_CHECKING:
    from specdec_core.decoding.decoder import Decoder


MARKS = (("<think>", "</think>"), ("[THINK]", "[/THINK]"), ("<seed:think>", "</seed:think>"))
"""The tokens that open and close a thinking part: of most models, of Mistral's and of Seed's."""

Marks: TypeAlias = tuple[int, int]
"""Token ids of the two marks."""


class Conversations:
    """Conversations side by side: their turns are decoded together, with the target's cache kept in between.

    The cache keeps what the next prompt has in common with the last text, token by token. Where a template renders
    earlier turns in another way, such as without their thoughts, the rest is read again. A drafter's session is
    that of one turn: it begins with the whole conversation. Beam search keeps no cache.

    Args:
        decoder: Decodes the answers.
        count: Number of conversations.
        metadata: That of each conversation, for all of its turns; see `Decoder.generate`.

    Attributes:
        histories: The messages of each conversation, its answers included.
        cache: The target's cache.
    """

    def __init__(self, decoder: Decoder, count: int, metadata: Metadata = None) -> None:
        self._decoder = decoder
        self._metadata = metadata_of_each(metadata, count)
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
        """Decode the next answer of each conversation; the generator's return value is the `BatchResult`.

        A turn that fails, or a loop that is left early, leaves the conversations as they were.

        Args:
            turns: The next turn of each; None for those that have ended, which the result leaves out. A prompt is
                decoded as it is, and nothing follows it.
            settings: How long to decode.
            observers: Called after every step.
            seeds: One for each turn that is not None.

        Raises:
            SpecdecError: As for `Decoder.generate`, or the template rejects a conversation.
        """
        # The messages of each conversation up to its next answer.
        said = {n: (*self.histories[n], *turn.messages) for n, turn in enumerate(turns) if isinstance(turn, Turn)}
        prompts, cache = self._prompts(turns, said, settings)
        told = [one for one, turn in zip(self._metadata, turns, strict=True) if turn is not None]
        result = yield from self._decoder.stream(prompts, settings, observers, seeds, cache=cache, metadata=told)
        self._keep(turns, said, result, settings)
        return result

    def fits(self, number: int, turn: Prompt | Turn) -> bool:
        """Return whether a conversation still fits into the target's context with its next turn."""
        if not isinstance(turn, Turn):
            return True
        prompt = self._rendered((*self.histories[number], *turn.messages), turn)
        return leaves_room(self._decoder.target, len(prompt))

    def close(self) -> None:
        """Free the cache."""
        self.cache.close()

    def _prompts(
        self,
        turns: Sequence[Prompt | Turn | None],
        said: Mapping[int, Sequence[Message]],
        settings: GenerationSettings,
    ) -> tuple[list[Prompt], PrefixCache | None]:
        """Return the prompts of the next answers, and the cache if they continue anything."""
        prompts: list[Prompt] = []
        for number, turn in enumerate(turns):
            if isinstance(turn, Turn):
                prompts.append(encode_prompt(self._decoder.target, self._rendered(said[number], turn), turn.name))
            elif turn is not None:
                prompts.append(turn)
        return prompts, self.cache if said and settings.beams == 1 else None

    def _rendered(self, messages: Sequence[Message], turn: Turn) -> list[int]:
        """Return the messages up to a turn as token ids."""
        target = self._decoder.target
        check_converses(target)
        return render_chat(messages, target.tokenizer, name=turn.name, model=target.name, template=turn.template)

    def _keep(
        self,
        turns: Sequence[Prompt | Turn | None],
        said: Mapping[int, tuple[Message, ...]],
        result: BatchResult,
        settings: GenerationSettings,
    ) -> None:
        """Add what was said, and the best answer."""
        going = [number for number, turn in enumerate(turns) if turn is not None]
        for number, best in zip(going, result.sequences[:: settings.num_return_sequences], strict=True):
            if number in said:
                self.histories[number] = (*said[number], {"role": "assistant", "content": best.text})


def answers(
    decoder: Decoder,
    conversations: Sequence[Sequence[Prompt | Turn]],
    settings: GenerationSettings,
    observers: Sequence[Observer] = (),
    *,
    seeds: Sequence[Sequence[int]],
    metadata: Metadata = None,
) -> Iterator[tuple[list[int], BatchResult]]:
    """Decode conversations side by side; yield the result of each turn, and whose turn it is.

    A conversation ends at the turn, after the first, with which it no longer fits into the target's context. That
    turn and those after it have an empty answer, whose finish reason is `context`.

    Args:
        decoder: Decodes the answers.
        conversations: The turns of each; a prompt that nothing follows is one of a single turn.
        settings: How long to decode an answer.
        observers: Called after every step.
        seeds: One for each turn of each conversation.
        metadata: That of each conversation.

    Raises:
        SpecdecError: As for `Decoder.generate`, or a template rejects a conversation.
    """
    with closing(Conversations(decoder, len(conversations), metadata)) as talk:
        ended: set[int] = set()
        for turn in range(max(map(len, conversations))):
            going = [number for number, turns in enumerate(conversations) if turn < len(turns)]
            if turn:
                ended |= {n for n in going if n not in ended and not talk.fits(n, conversations[n][turn])}
            left = [number for number in going if number not in ended]
            result = BatchResult((), Metrics())
            if left:
                said = [turns[turn] if number in left else None for number, turns in enumerate(conversations)]
                own = [seeds[number][turn] for number in left]
                result = finished(talk.stream(said, settings, observers, seeds=own))
            yield going, _with_empty_answers(result, [number in ended for number in going], settings)


def _with_empty_answers(result: BatchResult, ended: Sequence[bool], settings: GenerationSettings) -> BatchResult:
    """Return the result of a turn with an empty answer in place of each conversation that has ended."""
    answered = iter(result.sequences)
    empty = Generation((), (), "", "context", metrics=RequestMetrics(0, 0, rejected=0), seconds=0.0)
    each = (empty if out else next(answered) for out in ended for _ in range(settings.num_return_sequences))
    return replace(result, sequences=tuple(each))


class Chat:
    """A conversation with the target of a decoder; made by `Decoder.chat`.

    Greedy answers are those of the model's own `generate` to the same messages. The first answer has the seed
    `row_seed(seed, 0)`, the next `row_seed(seed, 1)`, and so on.

    Args:
        decoder: Decodes the answers.
        system: A system message before the first turn.
        template: A Jinja chat template, in place of the tokenizer's.
        metadata: That of each turn.

    Raises:
        ConfigError: The target reads its prompts with an encoder.
    """

    def __init__(
        self,
        decoder: Decoder,
        system: str | None = None,
        *,
        template: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        check_converses(decoder.target)
        self._conversations = Conversations(decoder, 1, metadata)
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
            PromptError: The tokenizer has no chat template, the template rejects the conversation, or it is too
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
    """Reject a target whose prompts are sources of an encoder.

    Raises:
        ConfigError: It has an encoder.
    """
    if target.encoder_decoder:
        raise ConfigError(
            f"{target.name} is an encoder-decoder model, which answers a source and knows no earlier turns. Use a "
            "decoder-only model, or decode first turns alone: `turns: first`."
        )


def thinking_marks(tokenizer: Any) -> Marks | None:
    """Return the marks that are single tokens of a tokenizer; None if it has neither pair, or there is none."""
    if tokenizer is None:
        return None
    vocabulary = tokenizer.get_vocab()
    pairs = ((vocabulary.get(begin), vocabulary.get(end)) for begin, end in MARKS)
    return next(((begin, end) for begin, end in pairs if begin is not None and end is not None), None)


def thinking_span(prompt: Sequence[int], tokens: Sequence[int], marks: Marks) -> tuple[int, int] | None:
    """Return where the first thinking part of an answer begins and ends, its marks included.

    It begins with its mark, or with the answer, where the prompt opens it, as some chat templates do. It ends
    behind its mark, or with the answer, where that was cut off.

    Args:
        prompt: Token ids of the prompt.
        tokens: The new token ids.
        marks: Token ids of the two marks.

    Returns:
        The index of its first token, and the index behind its last; None if the answer does not think.
    """
    opening, closing = marks
    given = [token for token in prompt if token in marks]
    begin = 0 if given[-1:] == [opening] else _index(tokens, opening)
    if begin is None:
        return None
    end = _index(tokens, closing, begin)
    return begin, len(tokens) if end is None else end + 1


def _index(tokens: Sequence[int], token: int, begin: int = 0) -> int | None:
    return next((index for index in range(begin, len(tokens)) if tokens[index] == token), None)
