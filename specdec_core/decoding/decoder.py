"""The one decoding loop, for every drafter, batch size, model family and setting."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from time import perf_counter

from transformers import LogitsProcessor

from specdec_core.border import (
    BatchInfo,
    Drafter,
    GammaController,
    LenienceController,
    SessionInfo,
    StepReport,
)
from specdec_core.decoding.batch import Batch, Row
from specdec_core.decoding.inner_loop import LoopOpener
from specdec_core.decoding.observers import Observer
from specdec_core.decoding.prompt import Prompt, encode_prompt
from specdec_core.decoding.result import BatchResult, Generation
from specdec_core.decoding.rules import Rule, speculative_sampling
from specdec_core.decoding.speculation import Fence, Speculation
from specdec_core.decoding.stopping import StopRule
from specdec_core.errors import ConfigError, PluginError, PromptError
from specdec_core.models import LoadedModel, ModelSession
from specdec_core.randomness import RowStreams, row_seed
from specdec_core.sampling import Standardiser
from specdec_core.settings import GenerationSettings, SamplingSettings


class Decoder:
    """Decodes prompts with a target and, if there is one, a drafter that guesses for it.

    Args:
        target: The model whose distribution is sampled.
        drafter: Who guesses; None decodes plainly: the same loop with an empty proposal.
        gamma: How many tokens are drafted in a step. Needed with a drafter.
        lenience: How strictly drafts are judged (appendix A.5); None is exactly (l = 1).
        sampling: The target's settings (section 2.2).
        draft_sampling: The drafter's settings where they differ (section 6); the result is lossless all the same.
        processors: Further Hugging Face logits processors, for target and drafter alike.
        strict: Raise when a plugin fails, and do not go on without it.
        rule: What judges the drafts; Algorithm 1 unless said.

    References:
        Leviathan et al. 2023, Algorithm 1 (arXiv 2211.17192).
    """

    def __init__(
        self,
        target: LoadedModel,
        drafter: Drafter | None = None,
        *,
        gamma: GammaController | None = None,
        lenience: LenienceController | None = None,
        sampling: SamplingSettings | None = None,
        draft_sampling: SamplingSettings | None = None,
        processors: Sequence[LogitsProcessor] = (),
        strict: bool = False,
        rule: Rule = speculative_sampling,
    ) -> None:
        if drafter is not None and gamma is None:
            raise ConfigError(
                "a drafter was given without a gamma controller: say how many tokens it shall draft."
            )
        self.target = target
        self.drafter = drafter
        self._gamma = gamma
        self._lenience = lenience
        settings = sampling or SamplingSettings()
        self._standardise = Standardiser(settings, processors)
        self._draft_standardise = Standardiser(draft_sampling or settings, processors)
        self._strict = strict
        self._rule = rule

    def generate(
        self,
        prompts: Sequence[Prompt],
        settings: GenerationSettings | None = None,
        observers: Sequence[Observer] = (),
        seeds: Sequence[int] | None = None,
    ) -> BatchResult:
        """Decode a batch to its end.

        Args:
            prompts: One a row; rows may differ in length.
            settings: How long, and from which seed.
            observers: Told of every step.
            seeds: One for each row; by default made from the settings' seed and the row's number, as
                `row_seed` does.

        Raises:
            PromptError: A prompt is empty, too long, or not of this vocabulary.
            NumericsError: The target's logits are no distribution.
            PluginError: A plugin failed, under `strict`.
        """
        run = self.stream(prompts, settings, observers, seeds)
        while True:
            try:
                next(run)
            except StopIteration as end:
                result: BatchResult = end.value
                return result

    def stream(
        self,
        prompts: Sequence[Prompt],
        settings: GenerationSettings | None = None,
        observers: Sequence[Observer] = (),
        seeds: Sequence[int] | None = None,
    ) -> Generator[StepReport, None, BatchResult]:
        """Decode a batch step by step; the generator's return value is the `BatchResult`.

        Arguments and errors are those of `generate`. Leaving the loop early frees what the batch held.
        """
        settings = settings or GenerationSettings()
        begun = perf_counter()
        ids = [encode_prompt(self.target, prompt, str(index)) for index, prompt in enumerate(prompts)]
        if not ids:
            raise PromptError("no prompt was given.")
        rows = self._rows(ids, settings)
        fence = Fence(strict=self._strict)
        seeds = [row_seed(settings.seed, n) for n in range(len(rows))] if seeds is None else seeds
        if len(seeds) != len(rows):
            raise ConfigError(f"{len(seeds)} seeds were given for {len(rows)} prompts; one each is needed.")
        streams = RowStreams(seeds)
        opener = LoopOpener(self._draft_standardise, streams, fence)
        info = opener.for_session(self._session_info(ids, rows, self._max_gamma(fence)))
        speculation = Speculation(
            self.drafter,
            self._gamma,
            self._lenience,
            self._draft_standardise,
            streams,
            info,
            self._batch_info(rows, info),
            fence,
        )
        session = ModelSession(
            self.target, len(rows), info.capacity, info.sources, keep_hidden=speculation.wants_hidden
        )
        stops = self._stop_rule(settings)
        vocab = self.target.vocab_size
        batch = Batch(rows, session, speculation, self._standardise, streams, stops, fence, vocab, self._rule)
        try:
            for observer in observers:
                observer.on_start(info, ids)
            while not batch.done:
                report = batch.step()
                for observer in observers:
                    observer.on_step(report)
                yield report
        finally:
            speculation.close()
            session.close()
        result = self._result(batch, ids, fence, perf_counter() - begun)
        for observer in observers:
            observer.on_end(result)
        return result

    def _rows(self, ids: Sequence[list[int]], settings: GenerationSettings) -> list[Row]:
        start = self.target.start_id
        longest = self.target.max_positions
        rows = []
        for prompt in ids:
            tokens = list(prompt) if start is None else [start]
            limit = len(tokens) + settings.max_new_tokens
            fits = longest is None or limit <= longest
            rows.append(
                Row(tokens, len(tokens), limit if fits else longest or limit, "length" if fits else "context")
            )
        return rows

    def _max_gamma(self, fence: Fence) -> int:
        gamma = self._gamma
        if gamma is None or self.drafter is None:
            return 0

        def legal() -> int:
            most = gamma.max_gamma
            if not isinstance(most, int) or most < 0:
                raise PluginError(
                    f"max_gamma is {most!r}; it must be a whole number, at least 0. Nothing is drafted."
                )
            return most

        return fence.call(gamma, legal) or 0

    def _session_info(self, ids: Sequence[Sequence[int]], rows: Sequence[Row], max_gamma: int) -> SessionInfo:
        return SessionInfo(
            batch_size=len(rows),
            vocab_size=self.target.vocab_size,
            capacity=max(row.limit for row in rows),
            max_gamma=max_gamma,
            device=self.target.device,
            sources=ids if self.target.encoder_decoder else None,
        )

    def _batch_info(self, rows: Sequence[Row], session: SessionInfo) -> BatchInfo:
        room = tuple(row.limit - len(row.tokens) for row in rows)
        return BatchInfo(len(rows), session.max_gamma, room, self._standardise.argmax)

    def _stop_rule(self, settings: GenerationSettings) -> StopRule:
        if settings.stop and self.target.tokenizer is None:
            raise ConfigError(
                f"stop strings were given, but {self.target.name} has no tokenizer to find them with."
            )
        eos = () if settings.ignore_eos else self.target.eos_ids
        return StopRule(frozenset(eos), settings.stop, self.target.tokenizer)

    def _result(self, batch: Batch, ids: Sequence[Sequence[int]], fence: Fence, seconds: float) -> BatchResult:
        generations = []
        for row, prompt in zip(batch.rows, ids, strict=True):
            tokens = tuple(row.tokens[row.begin :])
            tokenizer = self.target.tokenizer
            text = None if tokenizer is None else tokenizer.decode(tokens, skip_special_tokens=True)
            assert row.reason is not None
            generations.append(Generation(tuple(prompt), tokens, text, row.reason))
        metrics = batch.metrics.with_seconds(seconds)
        return BatchResult(tuple(generations), metrics, fence.failures)
