"""Standardized sampling: from logits and sampling settings to the distribution that is sampled.

Greedy decoding, temperature, top-k, top-p and so on all sample from an adjusted distribution. The logits
processors of transformers compute it, for the target and for the drafter.

References:
    Leviathan et al. 2023, section 2.2 (arXiv 2211.17192).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from types import FunctionType
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor
from transformers.generation import logits_process as hf

from specdec_core.interface.errors import ConfigError
from specdec_core.interface.settings import SamplingSettings
from specdec_core.models.device import uploaded

if TYPE_CHECKING:
    from specdec_core.sampling.constraints import Constraints

# Processors that read only the scores; what derives from them may read more. All others are called with the exact
# prefix of each position, one at a time.
_PREFIX_FREE = (
    hf.TemperatureLogitsWarper,
    hf.TopKLogitsWarper,
    hf.TopPLogitsWarper,
    hf.MinPLogitsWarper,
    hf.TypicalLogitsWarper,
    hf.EpsilonLogitsWarper,
    hf.EtaLogitsWarper,
    hf.TopHLogitsWarper,
    hf.SuppressTokensLogitsProcessor,
    hf.InfNanRemoveLogitsProcessor,
    hf.LogitNormalization,
)


@dataclass(frozen=True)
class SequenceBiases:
    """Biases of the last token of sequences of tokens, where the text has those before it."""

    by_sequence: Mapping[tuple[int, ...], float]

    def __call__(self, text: Sequence[int]) -> Iterator[tuple[int, float]]:
        """Yield tokens that may follow a text, with the bias of each."""
        for (*before, last), bias in self.by_sequence.items():
            if before == list(text[len(text) - len(before) :]):
                yield last, bias

    @property
    def filter_value(self) -> float:
        """The largest bias."""
        return max(self.by_sequence.values())


@dataclass(frozen=True)
class NewTokenPenalties:
    """The presence and the frequency penalty of the tokens of a new text."""

    presence: float
    frequency: float

    def __call__(self, new: Sequence[int]) -> Iterator[tuple[int, float]]:
        """Yield its tokens, with the bias of each."""
        for token, count in Counter(new).items():
            yield token, -self.presence - self.frequency * count


@dataclass(frozen=True)
class MinNewTokens:
    """Excludes the ids that end a sequence while a new text is shorter than `least`."""

    least: int
    eos_ids: Collection[int]

    def __call__(self, new: Sequence[int]) -> Iterator[tuple[int, float]]:
        """Yield these ids, with minus infinity."""
        return ((id_, -torch.inf) for id_ in self.eos_ids if len(new) < self.least)


_OF_NEW_TEXT = (NewTokenPenalties, MinNewTokens)
_BIASES = (SequenceBiases, *_OF_NEW_TEXT)
_BY_ID = (*_BIASES, hf.SequenceBiasLogitsProcessor)

# Of log probabilities, which are at most 0, these make none that is above 0. All others might.
_NEVER_POSITIVE = (
    *_PREFIX_FREE,
    MinNewTokens,
    SequenceBiases,
    hf.RepetitionPenaltyLogitsProcessor,
    hf.EncoderRepetitionPenaltyLogitsProcessor,
    hf.NoRepeatNGramLogitsProcessor,
    hf.EncoderNoRepeatNGramLogitsProcessor,
    hf.NoBadWordsLogitsProcessor,
    hf.PrefixConstrainedLogitsProcessor,
    hf.MinLengthLogitsProcessor,
    hf.MinNewTokensLengthLogitsProcessor,
    hf.SuppressTokensAtBeginLogitsProcessor,
    hf.ForcedBOSTokenLogitsProcessor,
    hf.ForcedEOSTokenLogitsProcessor,
)


PREFIX_READERS = "logits processors, biases and constraints may read the text before each position"
"""Why what depends on them is not captured."""
_PROOFS = 8
"""In how many of its first calls a processor that a user gave is asked twice."""
_MOST_ENTRIES = 1000
"""Larger containers count as unchanged while their length is."""


class LogitsToProbs:
    """Turns logits into probabilities according to sampling settings.

    Args:
        settings: Sampling settings, whose bad words are token ids.
        processors: Further transformers logits processors. They run after penalties and bad words and before the
            temperature, as in `generate`.
        prove: Watch the attributes of each of them, ask it twice in its first calls, and reject one that keeps
            state.

    Attributes:
        greedy: Whether every distribution is one-hot.
        constraints: Those of the batch that it is for; None for none.
    """

    def __init__(
        self,
        settings: SamplingSettings,
        processors: Sequence[hf.LogitsProcessor] = (),
        *,
        prove: bool = False,
    ) -> None:
        self.settings = settings
        self._chain: list[Any] = [*_biases(settings), *processors, *_warpers(settings)]
        self.greedy = settings.greedy
        self._processors = bool(processors)
        self._unproved = dict.fromkeys(map(id, processors), _PROOFS) if prove else {}
        self._begins: Sequence[int] = ()
        self.constraints: Constraints | None = None
        self._of_drafts = False

    @property
    def needs_prefix(self) -> bool:
        """Whether the distribution also depends on the preceding tokens."""
        return self.constraints is not None or any(type(one) not in _PREFIX_FREE for one in self._chain)

    @property
    def temperature_only(self) -> bool:
        """Whether only the temperature is applied, or greedy decoding."""
        by_temperature = all(isinstance(one, hf.TemperatureLogitsWarper) for one in self._chain)
        return by_temperature and not self._processors and self.constraints is None

    @property
    def settings_only(self) -> bool:
        """Whether the settings say all of it, and the preceding tokens do not matter."""
        return not self._processors and not self.needs_prefix

    @property
    def never_positive(self) -> bool:
        """Whether the scores of log probabilities are known to be at most 0, too.

        A processor may lift some above 0, as `sequence_bias` does; a normalization after it puts that right.
        """
        known = True
        for one in self._chain:
            lowers = type(one) in _NEVER_POSITIVE and getattr(one, "filter_value", 0) <= 0
            known = type(one) is hf.LogitNormalization or (known and lowers)
        return known

    def for_batch(
        self,
        begins: Sequence[int],
        constraints: Constraints | None = None,
        min_new_tokens: int = 0,
        eos_ids: Collection[int] = (),
        *,
        drafts: bool = False,
    ) -> Self:
        """Return the same for the rows of a batch; the prefixes are then a number of each row, row by row.

        Illegal tokens are excluded before everything else, so that top-k and top-p choose among legal ones, and
        the softmax renormalizes: structured output of vLLM has the same order.

        Args:
            begins: Number of tokens before the new text of each row; none where prefixes are of no such number,
                so that what goes by new tokens is left out.
            constraints: Those of the batch; None for none.
            min_new_tokens: No row ends before it has this many new tokens.
            eos_ids: Ids that end a sequence.
            drafts: Whether this is q, which need not equal p: where the logits leave no legal token, such as those
                of a drafter with a smaller vocabulary, nothing is excluded.
        """
        made = copy(self)
        made._begins, made.constraints, made._of_drafts = begins, constraints, drafts
        if not begins:
            made._chain = [one for one in self._chain if not isinstance(one, _OF_NEW_TEXT)]
        elif min_new_tokens and eos_ids:
            made._chain = [MinNewTokens(min_new_tokens, eos_ids), *self._chain]
        return made

    def in_other_tokens(self) -> Self:
        """Return the same for drafts in another vocabulary, without what goes by token ids."""
        made = copy(self)
        made.constraints = None
        made._chain = [one for one in self._chain if not isinstance(one, _BY_ID)]
        return made

    def legal_only_(self, q: Tensor, prefixes: Callable[[], Sequence[Sequence[int]]]) -> Tensor:
        """Remove illegal tokens from q in place, and renormalize it; leave rows where nothing remains.

        Args:
            q: `[N, V]` float32, probabilities of a draft.
            prefixes: Returns the N prefixes; called where there are constraints.
        """
        if self.constraints is None:
            return q
        kept = q * self.constraints.legal(prefixes(), q.device)
        total = kept.sum(dim=-1, keepdim=True)
        return q.copy_(torch.where(total > 0, kept / total, q))

    def scores(self, logits: Tensor, prefixes: Sequence[Sequence[int]] | None = None) -> Tensor:
        """Apply the processors without the softmax.

        Args:
            logits: `[N, V]`, any float type.
            prefixes: The N prefixes; required if `needs_prefix`.

        Returns:
            Scores `[N, V]` float32; a new tensor if anything changed.
        """
        scores = logits.float()
        if self.constraints is not None:
            scores = self._without_illegal(scores, self.constraints, prefixes)
        for processor in self._chain:
            if type(processor) in _PREFIX_FREE:
                scores = processor(_NO_PREFIX, scores)
            else:
                if prefixes is None:
                    raise ValueError(
                        f"{type(processor).__name__} needs the prefix of each position; pass prefixes"
                    )
                watched = id(processor) in self._unproved
                before, state = scores, _state_of(processor) if watched else {}
                scores = self._with_prefixes(processor, scores, prefixes)
                if watched:
                    self._require_no_state(processor, before, prefixes, scores, state)
        return scores

    def _with_prefixes(
        self, processor: hf.LogitsProcessor, scores: Tensor, prefixes: Sequence[Sequence[int]]
    ) -> Tensor:
        """Apply a processor to scores `[N, V]`, each with its own prefix."""
        if isinstance(processor, _OF_NEW_TEXT):
            each = len(prefixes) // len(self._begins)
            prefixes = [prefix[self._begins[n // each] :] for n, prefix in enumerate(prefixes)]
        if isinstance(processor, _BIASES):
            return _biased(scores, [(n, *one) for n, prefix in enumerate(prefixes) for one in processor(prefix)])
        # One position at a time: prefixes differ in length, and a processor would read padding as text.
        rows = [applied(processor, [prefix], scores[n : n + 1]) for n, prefix in enumerate(prefixes)]
        return torch.cat(rows)

    def _require_no_state(
        self,
        processor: hf.LogitsProcessor,
        scores: Tensor,
        prefixes: Sequence[Sequence[int]],
        before: Tensor,
        state: dict[str, object],
    ) -> None:
        """Reject a processor whose attributes have changed, or that answers otherwise when it is asked again.

        A step verifies several positions, the last of which may be rejected. What a processor remembers of them
        would change the text without a word. What it sets in its first call may be a part of its preparation.

        Raises:
            ConfigError: It keeps state.
        """
        number, now = id(processor), _state_of(processor)
        changed = [name for name in {**state, **now} if state.get(name) != now.get(name)]
        found = ""
        if changed and self._unproved[number] < _PROOFS:
            found = f"changes its attribute {changed[0]!r} when it is called"
        elif self._unproved[number]:
            self._unproved[number] -= 1
            again = self._with_prefixes(processor, scores, prefixes)
            if not torch.equal(again.nan_to_num(), before.nan_to_num()):
                found = "gives other scores when it is asked for the same prefix again"
        if found:
            raise ConfigError(
                f"the logits processor {type(processor).__name__} {found}: it keeps state between calls, or draws "
                "random numbers. A step verifies several prefixes, and tokens are taken back; make it a function "
                "of input_ids and scores alone, which can also count tokens: input_ids has the whole text."
            )

    def _without_illegal(
        self, scores: Tensor, constraints: Constraints, prefixes: Sequence[Sequence[int]] | None
    ) -> Tensor:
        if prefixes is None:
            raise ValueError("a constraint needs the prefix of each position; pass prefixes")
        legal = constraints.legal(prefixes, scores.device)
        if self._of_drafts:
            legal |= ~(legal & (scores > -torch.inf)).any(dim=-1, keepdim=True)
        return scores.masked_fill(~legal, -torch.inf)

    def __call__(
        self, logits: Tensor, prefixes: Sequence[Sequence[int]] | None = None, out: Tensor | None = None
    ) -> Tensor:
        """Return the adjusted distribution.

        Args:
            logits: `[N, V]`, any float type.
            prefixes: The N prefixes; required if `needs_prefix`.
            out: Where to write the result, `[N, V]` float32.

        Returns:
            Probabilities `[N, V]` float32; one-hot if greedy, with the first of equal maxima. If a row's scores
            have a NaN or no finite value, its probabilities are NaN.
        """
        scores = self.scores(logits, prefixes)
        if not self.greedy:
            return torch.softmax(scores, dim=-1) if out is None else torch.softmax(scores, dim=-1, out=out)
        index = argmax(scores)[..., None]
        largest = scores.gather(-1, index)
        result = torch.zeros_like(scores) if out is None else out.zero_()
        # 1 if the maximum is finite; NaN if it is infinite or NaN.
        return result.scatter_(-1, index, largest - largest + 1)


def argmax(scores: Tensor) -> Tensor:
    """Return the index of the largest score, the first of equal ones. NaN counts as the largest.

    Args:
        scores: `[..., V]` float32.

    Returns:
        `[...]` int64.
    """
    if scores.is_cpu:
        # numpy uses vector instructions, torch on a CPU does not: 3 us against 19 us at V = 32,000.
        return torch.from_numpy((scores.detach() if scores.requires_grad else scores).numpy().argmax(axis=-1))
    return scores.argmax(dim=-1)


_NO_PREFIX: Tensor = torch.empty(1, 0, dtype=torch.long)


def with_token_ids(settings: SamplingSettings, tokenizer: Any, vocab_size: int) -> SamplingSettings:
    """Return settings whose bad words are token ids, as vLLM tokenizes them (`SamplingParams.bad_words`).

    Args:
        settings: Sampling settings.
        tokenizer: The target's; None if it has none.
        vocab_size: V.

    Raises:
        ConfigError: There is no tokenizer for a bad word, or a token id is too large.
    """
    words = tuple(ids for word in settings.bad_words for ids in _spellings(word, tokenizer))
    for name, given in (("logit_bias", settings.logit_bias or ()), ("bad_words", set().union(*words))):
        last = max(given, default=0)
        if last >= vocab_size:
            raise ConfigError(f"{name}: token id {last} was given; those of the target are 0 to {vocab_size - 1}.")
    return settings.model_copy(update={"bad_words": words})


def _spellings(word: str | tuple[int, ...], tokenizer: Any) -> Iterator[tuple[int, ...]]:
    if not isinstance(word, str):
        yield word
        return
    if tokenizer is None:
        raise ConfigError(f"bad_words: {word!r} was given, but the target has no tokenizer; give token ids.")
    bare, spaced = (
        tuple(tokenizer.encode(space + (word.lstrip() or word), add_special_tokens=False)) for space in ("", " ")
    )
    if bare:
        yield bare
    # Vocabularies have other tokens for the beginning of a word, and some tokenizers put the space apart.
    if len(spaced) == len(bare) and spaced[:1] != bare[:1]:
        yield spaced


def _biases(settings: SamplingSettings) -> list[Any]:
    """Return what comes before the processors of a user, in the order of vLLM."""
    chain: list[Any] = []
    if settings.logit_bias:
        chain.append(SequenceBiases({(id_,): bias for id_, bias in settings.logit_bias.items()}))
    if settings.repetition_penalty != 1:
        chain.append(hf.RepetitionPenaltyLogitsProcessor(penalty=settings.repetition_penalty))
    if settings.presence_penalty or settings.frequency_penalty:
        chain.append(NewTokenPenalties(settings.presence_penalty, settings.frequency_penalty))
    if settings.bad_words:
        chain.append(SequenceBiases({tuple(map(int, ids)): -torch.inf for ids in settings.bad_words}))
    return chain


def _biased(scores: Tensor, biases: Sequence[tuple[int, int, float]]) -> Tensor:
    """Return scores `[N, V]` with biases added, each given with its row and token."""
    if not biases:
        return scores
    *where, values = zip(*biases, strict=True)
    rows, tokens = uploaded(where, scores.device)
    return scores.index_put((rows, tokens), uploaded(values, scores.device, scores.dtype), accumulate=True)


def _warpers(settings: SamplingSettings) -> list[hf.LogitsProcessor]:
    """Return the warpers in the order of `generate`. None for greedy decoding: they do not change the argmax."""
    chain: list[hf.LogitsProcessor] = []
    if settings.greedy:
        return chain
    if settings.temperature != 1:
        chain.append(hf.TemperatureLogitsWarper(settings.temperature))
    if settings.top_k is not None:
        chain.append(hf.TopKLogitsWarper(settings.top_k))
    if settings.top_p is not None and settings.top_p < 1:
        chain.append(hf.TopPLogitsWarper(settings.top_p))
    if settings.min_p:
        chain.append(hf.MinPLogitsWarper(settings.min_p))
    return chain


def applied(processor: hf.LogitsProcessor, prefixes: Sequence[Sequence[int]], scores: Tensor) -> Tensor:
    """Return the scores of positions with prefixes of one length, `[N, V]`; a processor may write into its own."""
    result: Tensor = processor(uploaded([list(prefix) for prefix in prefixes], scores.device), scores.clone())
    return result


def _state_of(processor: object, depth: int = 3) -> dict[str, object]:
    """Return the attributes of a processor, or the variables that a function encloses, in a form to compare."""
    if isinstance(processor, FunctionType):
        cells = zip(processor.__code__.co_freevars, processor.__closure__ or (), strict=True)
        held = {name: cell.cell_contents for name, cell in cells}
    else:
        held = getattr(processor, "__dict__", {})
    return {name: _comparable(value, type(processor).__module__, depth) for name, value in held.items()}


def _comparable(value: object, module: str, depth: int) -> object:
    """Return what is equal as long as nothing in a value has changed; objects of other modules by identity."""
    if isinstance(value, Tensor):
        # In inference mode, tensors do not count their changes.
        return id(value), value.cpu().numpy().tobytes() if value.is_inference() else value._version
    if isinstance(value, dict | list | tuple | set | frozenset | deque) and depth:
        if len(value) > _MOST_ENTRIES:
            return id(value), len(value)
        parts = value.items() if isinstance(value, dict) else value
        return type(value), [_comparable(part, module, depth - 1) for part in parts]
    if depth and (isinstance(value, FunctionType) or type(value).__module__ == module):
        return id(value), _state_of(value, depth - 1)
    return value if isinstance(value, int | float | str | bytes) else id(value)
