"""Replaying a drafter: it is asked for drafts along recorded texts, and its acceptance is read off them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import cache, partial
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Self, TypeVar

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from torch import Tensor

from specdec_core.costs.step_costs import StepCosts, mean_seconds
from specdec_core.decoding.arguments import create_drafter
from specdec_core.interface import ConfigError, ModelError, PluginConfig, Progress, Proposal
from specdec_core.interface.drafter import LAST_HIDDEN, Drafter
from specdec_core.interface.settings import SamplingSettings
from specdec_core.interface.trainer import NoProgress
from specdec_core.models import LoadedModel
from specdec_core.models.device import describe_device, synchronize
from specdec_core.models.load.model_requirements import unmet_requirements
from specdec_core.offline.record.decode import forced_pass
from specdec_core.offline.record.format import Record, RecordedText, RecordPart
from specdec_core.offline.record.recorded_target import load_recorded, target_info
from specdec_core.offline.replay.replayed_metrics import TextAcceptance, Uncached
from specdec_core.offline.replay.text_oracle import ForcedDraft, ForcedText, TextOracle
from specdec_core.registry.registry import Registry, default_registry
from specdec_core.registry.requirements import TargetFacts

BATCH_SIZE = 16
"""Number of texts that a drafter is asked for together. Another one may change the last bits of results."""
Floats = TypeVar("Floats", NDArray[np.float64], NDArray[np.float32])


class DrafterReplay:
    """A drafter along the texts of a part of a record.

    A drafter that remembers earlier requests is reset, and then learns the texts of the part one by one, in their
    order: what is expected of a text is what it would draft after those before it. That holds for some texts of a
    part, too. A drafter that is given as an object forgets what it knew.

    Args:
        record: The record.
        part: The part.
        drafter: The drafter, or its validated settings with its name.
        max_gamma: The longest draft, K. All gammas up to K follow from one pass.
        texts: Numbers of the texts to replay, in ascending order; by default all of the part.
        draft_sampling: The drafter's sampling settings if they differ from the target's (section 6).
        registry: Where plugins come from; by default the installed ones.
        folder: Base for relative paths in the drafter's settings.
        progress: Where progress is reported.
        batch_size: Number of texts asked for together, which only affects the speed.
        target: The target, if it is loaded: for drafters that work on it, and for hidden states that the record
            lacks. It is loaded where it is needed and None is given.
        autoregressive: Whether to ask the drafter once per text, or at every position; None as it declares.

    Raises:
        ConfigError: The record does not suit the drafter, or K is not at least 1.
        PluginError: The drafter cannot be loaded.

    Attributes:
        drafter: The drafter.
        notes: What a reader of the results should know, such as that the target was run for hidden states.
    """

    def __init__(
        self,
        record: Record,
        part: RecordPart,
        drafter: PluginConfig | Drafter,
        *,
        max_gamma: int,
        texts: Sequence[int] | None = None,
        draft_sampling: SamplingSettings | None = None,
        registry: Registry | None = None,
        folder: Path = Path(),
        progress: Progress | None = None,
        batch_size: int = BATCH_SIZE,
        target: LoadedModel | None = None,
        autoregressive: bool | None = None,
    ) -> None:
        for name, value in (("max_gamma", max_gamma), ("batch_size", batch_size)):
            if value < 1:
                raise ConfigError(f"{name} is {value!r}; it must be a whole number, at least 1.")
        self._record, self._part, self._texts = record, part, range(len(part)) if texts is None else texts
        self._name = getattr(drafter, "name", None) or type(drafter).__name__
        self._max_gamma, self._batch_size = max_gamma, batch_size
        self._draft_sampling, self._folder = draft_sampling, folder
        self._progress = progress or NoProgress()
        self._given, self._target = target, cache(partial(_loaded_target, record, folder, target))
        self._notes: list[str] = []
        self.drafter = self._load(registry or default_registry(), drafter)
        vocab = record.header.vocab_size
        if self.drafter.target.vocab_size != vocab:
            raise ConfigError(
                f"{type(self.drafter).__name__} drafts for a target with {self.drafter.target.vocab_size} token "
                f"ids; the recorded one has {vocab}. Load it for the target of the record."
            )
        self._acceptance: tuple[TextAcceptance, ...] | None = None
        self._autoregressive = self.drafter.autoregressive if autoregressive is None else autoregressive
        self._timed: tuple[tuple[float, ...], tuple[float, ...]] | None = None

    def _load(self, registry: Registry, config: PluginConfig | Drafter) -> Drafter:
        if isinstance(config, Drafter):
            return config
        given, folder = self._given, self._folder
        info = target_info(self._record, folder) if given is None else given.info(folder)
        facts = TargetFacts.of(info)
        loaded = facts._replace(has_hidden_states=True, has_model=True)
        unmet, left = (list(unmet_requirements(registry, config, one, folder=folder)) for one in (facts, loaded))
        return create_drafter(registry, config, info if len(unmet) == len(left) else self._target().info(folder))

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for readers of the results."""
        return tuple(self._notes)

    def for_texts(self, texts: Sequence[int], acceptance: Sequence[TextAcceptance] | None = None) -> Self:
        """Return the same drafter along some of the texts; nothing is loaded again.

        Args:
            texts: Numbers of the texts.
            acceptance: The acceptance along each, if it is known.
        """
        other = copy(self)
        other._texts, other._acceptance = texts, None if acceptance is None else tuple(acceptance)
        other._timed = None
        return other

    @property
    def device(self) -> str:
        """Device of the drafter, with its hardware."""
        return describe_device(torch.device(self.drafter.target.device))

    def acceptance(self) -> Sequence[TextAcceptance]:
        """Return the acceptance along each text, in the order of the part. It is computed once.

        Raises:
            PluginError: The drafter fails, draws its tokens itself, or is not what it declares.
            ConfigError: The part holds no texts, or their probabilities are not probabilities.
        """
        if self._acceptance is None:
            self._progress.stage(f"{self._name}: replaying", len(self._texts))
            found = self._remembered() if self.drafter.remembers else self._alone()
            if not found:
                raise ConfigError("this part of the record holds no texts.")
            self._acceptance = tuple(found)
        return self._acceptance

    def _alone(self) -> list[TextAcceptance]:
        """Return the acceptance along each text of a drafter that does not know the others."""
        found: list[TextAcceptance] = []
        for texts in self._batches(self._batch_size):
            found += _by_budget([self._asked(texts, budget) for budget in self._budgets])
            self._progress.advance(len(found))
        return found

    def _remembered(self) -> list[TextAcceptance]:
        """Return the acceptance along each text of a drafter that has learned those before it, and nothing else.

        Of some texts of a part, the texts between them are taught, too: what is expected of a text does not depend
        on which others are replayed. A drafter that is asked with each budget learns anew for each.
        """
        passes = []
        for budget in self._budgets:
            self.drafter.reset()
            found: list[TextAcceptance] = []
            for text, wanted in self._in_order():
                if wanted:
                    found += self._asked([text], budget)
                else:
                    oracle = self._open([text], lambda proposal: [0] * len(proposal.lengths))
                    oracle.teach()
                    oracle.batch.close()
                self._progress.advance(len(found))
            passes.append(found)
        return _by_budget(passes)

    @property
    def _budgets(self) -> Sequence[int]:
        """The numbers of tokens to ask for: all up to K where the drafts depend on it, and else K alone."""
        every = self.drafter.drafts_by_budget and not self._autoregressive
        return range(1 if every else self._max_gamma, self._max_gamma + 1)

    def _asked(self, texts: Sequence[ForcedText], budget: int) -> list[TextAcceptance]:
        """Return the acceptance along some texts, of drafts of `budget` tokens.

        An autoregressive drafter is asked once for each token: all but the last token of a draft are committed as
        accepted, and the last as recovered with the same token, so that the next draft begins after it. Others
        are asked at every position: no token is committed as accepted, not even one that equals the text's.
        """
        chunks, drafts = self._autoregressive, list[ForcedDraft]()

        def follow(proposal: Proposal) -> list[int]:
            drafts[:] = oracle.read(proposal, drawn=chunks)
            return [max(length - 1, 0) if chunks else 0 for length in proposal.lengths]

        oracle = self._open(texts, follow)
        found = [_Found(text, self._max_gamma, chunks=chunks) for text in texts]
        try:
            while not oracle.batch.done:
                each = list(zip(found, texts, oracle.position, strict=True))
                asked = [min(budget, text.room(at), len(text) - at if chunks else budget) for _, text, at in each]
                if chunks and not any(asked) and not self.drafter.remembers:  # else it learns the last tokens too
                    break
                oracle.step(asked)
                for (one, text, at), draft, wanted in zip(each, drafts, asked, strict=True):
                    if at < len(text):
                        one.put(at, draft)
                    if chunks and draft.offered < wanted:
                        oracle.fail(
                            f"it declares `autoregressive`, but drafted fewer tokens than the {wanted} asked for. "
                            "Set `max_length` if texts can get too long for it, and `autoregressive = False` if "
                            "the length of drafts varies."
                        )
        finally:
            oracle.batch.close()
        return [one.acceptance() for one in found]

    def _in_order(self) -> Iterator[tuple[ForcedText, bool]]:
        """Yield each text of the whole part up to the last that is replayed, and whether it is replayed."""
        wanted = set(self._texts)
        for number, text in enumerate(islice(self._part, max(wanted, default=-1) + 1)):
            yield self._forced(text), number in wanted

    def costs(self, target: StepCosts, timings: int = 20) -> StepCosts:
        """Return the costs of steps with this drafter: T(k) and the overhead as given, and D(k).

        D(k) is the mean seconds of a step in the drafter by the length k = 0, 1, ... K of its draft. They are
        measured on this machine, once, with drafts of all lengths in turn along the first texts.

        Args:
            target: The costs of the target's steps.
            timings: Number of timings of each length.
        """
        if self._timed is None:
            self.acceptance()
            self.drafter.reset()  # each text is as new to it as in `acceptance`
            self._timed = self._draft_seconds(timings)
        return target.with_drafter(*self._timed)

    def _draft_seconds(self, timings: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return the mean seconds of `propose` and `commit` by the length k = 0, 1, ... K of the draft.

        Drafts of 1 to K tokens are asked for in turn, in a new random order each time. Each follows the text for
        as many tokens as would be accepted, a number drawn at random, and is free from there on, so that caches
        are rolled back as they are in decoding. The first step, which reads the prompt, is left out. Lengths that
        did not occur are interpolated; a drafter that was asked and drafted nothing counts as k = 0, and D(0) is
        0 where that never happened. `specdec_core.costs.step_costs` says why it is the mean.

        Returns:
            The means, and how well each is known: half its 95% interval over its value.
        """
        generator = np.random.default_rng(0)
        found: dict[int, list[float]] = {}
        turn: list[int] = []
        steps, most = 0, (timings + 1) * self._max_gamma
        for [text], acceptance in zip(self._batches(1), self.acceptance(), strict=True):
            ahead: list[int] = []

            def follow(proposal: Proposal) -> list[int]:
                draft = proposal.tokens[0, : proposal.lengths[0]].tolist()
                same = [drafted == token for drafted, token in zip(draft, ahead[:-1], strict=False)]  # noqa: B023
                return [(*same, False).index(False)]

            oracle = self._open([text], follow, live=True)
            try:
                while not oracle.batch.done and steps < most:
                    turn = turn or (generator.permutation(self._max_gamma) + 1).tolist()
                    at, budget = oracle.position[0], turn.pop()
                    ahead[:] = text.text.tokens[at:].tolist()
                    oracle.sampler.reach = [_accepted(text, acceptance, at, budget, generator)]
                    begun = perf_counter()
                    report = oracle.step([min(budget, text.room(at))])
                    seconds = report.draft_seconds
                    if oracle.device.type != "cpu":  # where launches return before the device is done
                        synchronize(oracle.device)
                        seconds = perf_counter() - begun
                    if at:
                        steps += 1
                        if steps > self._max_gamma:  # the first turn warms up
                            found.setdefault(report.outcome.drafted[0], []).append(seconds)
            finally:
                oracle.batch.close()
            if steps >= most:
                break
        return mean_seconds({0: [0.0], **found}, self._max_gamma)

    def _batches(self, size: int) -> Iterator[Sequence[ForcedText]]:
        """Yield the texts, some at a time."""
        wanted = set(self._texts)
        texts = (text for number, text in enumerate(self._part) if number in wanted)
        while batch := list(islice(texts, size)):
            yield [self._forced(text) for text in batch]

    def _forced(self, text: RecordedText) -> ForcedText:
        """Return a text ready to be drafted along, with hidden states if the drafter sees any.

        Raises:
            ConfigError: Its probabilities are not probabilities.
            ModelError: Hidden states are neither recorded, nor can the target be loaded.
        """
        name = f"text {text.sample} of prompt {text.number}"
        if not len(text.tokens) or len(text.tokens) != len(text.probabilities):
            raise ConfigError(f"{name} has {len(text.tokens)} tokens and {len(text.probabilities)} probabilities.")
        p, header, greedy = text.probabilities, self._record.header, self._part.header.sampling.greedy
        # Greedy texts have their tokens with certainty, whatever is noted.
        if not (greedy or ((p > 0) & (p <= 1 + 1e-4)).all()):
            raise ConfigError(
                f"{name} holds a probability that is not in (0, 1]: {float(p.min()):g} to "
                f"{float(p.max()):g}. Each must be what its token was sampled with."
            )
        begin = text.prompt if header.start_id is None else (header.start_id,)
        last, states = self._hidden(text) if self.drafter.hidden_layers else (None, {})
        limit = self._limit(text, len(begin))
        longest = self.drafter.max_length
        reach = limit - 1 if longest is None else min(limit - 1, longest - len(begin))
        uncached = None if header.most_uncached is None else Uncached(len(begin), header.most_uncached)
        return ForcedText(text, begin, limit, reach, uncached, last, None if greedy else self._all_p(text), states)

    def _all_p(self, text: RecordedText) -> tuple[NDArray[np.int64], NDArray[np.float32]] | None:
        """Return the most probable tokens and their p, if no others have any."""
        tokens, p = text.top_tokens, text.top_probabilities
        if tokens is None or p is None:
            return None
        whole = tokens.shape[1] == self._record.header.vocab_size or not p[:, -1].any()
        return (tokens, p) if whole else None

    def _limit(self, text: RecordedText, begin: int) -> int:
        """Return the most tokens that a text could have had. One that ended by itself could have gone on."""
        length = len(text.tokens)
        if text.finish_reason in ("length", "context"):
            return length
        longest = self._record.header.max_length
        most = self._part.header.generation.max_new_tokens
        return max(length, most if longest is None else min(most, longest - begin))

    def _hidden(self, text: RecordedText) -> tuple[Tensor, Mapping[int, Tensor]]:
        layers = [layer for layer in self.drafter.hidden_layers if layer != LAST_HIDDEN]
        if text.hidden is not None and not layers:
            return torch.from_numpy(np.ascontiguousarray(text.hidden)), {}
        what = "no outputs of single layers" if text.hidden is not None else "no hidden states"
        note = f"The record holds {what}: the target read each text once to compute them."
        if note not in self._notes:
            self._notes.append(note)
        target = self._target()
        if target.features is None:
            raise ModelError(f"{target.name} has no output embedding for hidden states; choose another drafter.")
        found = forced_pass(target, text.prompt, text.tokens.tolist(), layers=layers)
        return found.hidden, found.layers

    def _open(
        self, texts: Sequence[ForcedText], follow: Callable[[Proposal], list[int]], *, live: bool = False
    ) -> TextOracle:
        sampling = self._part.header.sampling
        return TextOracle(self.drafter, texts, self._max_gamma, sampling, self._draft_sampling, follow, live=live)


def _loaded_target(record: Record, folder: Path, given: LoadedModel | None) -> LoadedModel:
    """Return the target that was given, or load that of the record."""
    if given is not None:
        return given
    if record.header.source is not None:
        raise ModelError(
            "this drafter works on the target, or on its hidden states, which an imported record does not "
            "hold. Record the target with `specdec record --hidden`, or choose another drafter."
        )
    return load_recorded(record, folder)


def _by_budget(passes: Sequence[Sequence[TextAcceptance]]) -> list[TextAcceptance]:
    """Return the acceptance along each text, from that of drafts with each budget."""
    if len(passes) == 1:
        return list(passes[0])
    return [replace(rows[-1], by_budget=rows) for rows in zip(*passes, strict=True)]


class _Found:
    """The drafts found along one text.

    Args:
        text: The text.
        width: K, the longest draft.
        chunks: Whether each token is drafted once, instead of a draft at each position.
    """

    def __init__(self, text: ForcedText, width: int, *, chunks: bool) -> None:
        self._text, self._width, self._chunks = text, width, chunks
        shape = (len(text),) if chunks else (len(text), width)
        self._ratio = np.zeros(shape)
        self._least = None if text.all_p is None else np.zeros(shape)
        self._confidence = np.full(shape, np.nan, dtype=np.float32)
        self._offered = np.zeros(len(text), dtype=np.int64)

    def put(self, position: int, draft: ForcedDraft) -> None:
        """Keep what a draft at a position gave to the text's tokens."""
        count = len(draft.ratio)
        at: slice | tuple[int, slice] = (position, slice(count))
        if self._chunks:
            at = slice(position, position + count)
        self._ratio[at], self._confidence[at] = draft.ratio, draft.confidence
        if self._least is not None and draft.least is not None:
            self._least[at] = draft.least
        self._offered[position] = draft.offered

    def acceptance(self) -> TextAcceptance:
        """Return all of it; of tokens that were drafted once, what follows for drafts that begin anywhere."""
        own, offered, width = self._text.text, self._offered, 0
        if self._chunks:
            width = self._width
            offered = np.clip(self._text.reach - np.arange(len(self._text)), 0, width)
        least = None if self._least is None else _windows(self._least, width, 0)
        ratio, confidence = _windows(self._ratio, width, 0), _windows(self._confidence, width, np.nan)
        where = own.tokens, self._text.limit, self._text.reach, self._text.uncached, own.number, own.sample
        return TextAcceptance(ratio, offered, confidence, *where, least=least)


def _windows(values: Floats, width: int, beyond: float) -> Floats:
    """Return the values of the K positions from each one on, `[L, K]`, without a copy; for K = 0, the values."""
    if not width:
        return values
    padded = np.concatenate([values, np.full(width - 1, beyond, dtype=values.dtype)])
    windows: Floats = sliding_window_view(padded, width)
    return windows


def _accepted(
    text: ForcedText, acceptance: TextAcceptance, at: int, budget: int, generator: np.random.Generator
) -> int:
    """Return how many tokens of a draft are accepted, drawn at random."""
    own = acceptance.asked(budget)
    ahead = min(budget, text.room(at), int(own.offered[at]), len(text) - at)
    rejected = generator.random(ahead) >= own.ratio[at, :ahead]
    return int(rejected.argmax()) if rejected.any() else ahead
