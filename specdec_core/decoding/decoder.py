"""The decoding loop: one for every drafter, batch size, model family and sampling setting."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any, Unpack

from transformers import LogitsProcessor

from specdec_core.decoding.arguments import (
    ConstraintLike,
    DrafterLike,
    GammaLike,
    LenienceLike,
    Metadata,
    RuleLike,
    constraint_of_each,
    generation_settings,
    make_controller,
    make_drafter,
    metadata_of_each,
    require,
    run_settings,
    settings_or_default,
    with_options,
)
from specdec_core.decoding.batch_loop import finished, steps_of
from specdec_core.decoding.beams.beam_batch import BeamBatch
from specdec_core.decoding.beams.beam_decoder import BeamDecoder
from specdec_core.decoding.chat import Chat
from specdec_core.decoding.counts import Tally
from specdec_core.decoding.guard import PluginGuard
from specdec_core.decoding.observers import Observer
from specdec_core.decoding.opening import LoopContext, first_rows, max_gamma_of, open_batch, session_info
from specdec_core.decoding.prompt_ids import Prompt, as_prompts, check_batch, encode_prompt, read_encoder_outputs
from specdec_core.decoding.result import BatchResult, Generation, generation
from specdec_core.decoding.rows import StopRule
from specdec_core.decoding.step import Batch
from specdec_core.interface import (
    AcceptanceRule,
    ConfigError,
    GammaController,
    LenienceController,
    SessionInfo,
    StepReport,
)
from specdec_core.interface.errors import ArgumentError
from specdec_core.interface.settings import (
    GenerationOptions,
    GenerationSettings,
    SamplingOptions,
    SamplingSettings,
)
from specdec_core.models import LoadedModel
from specdec_core.models.prefix_cache import PrefixCache
from specdec_core.sampling.constraints import open_constraints
from specdec_core.sampling.generators import RowGenerators, row_seed
from specdec_core.sampling.logits import LogitsToProbs, with_token_ids
from specdec_core.verification.acceptance import SpeculativeSampling

_TO_GENERATE = "How long to decode, and the seed, are arguments of generate()."


class Decoder:
    """Decodes prompts with a target and, optionally, a drafter that proposes tokens for it.

    Several threads may call `generate` and `stream` of one decoder, and decoders in several threads may share
    models, drafters and controllers: the state of a batch belongs to the call, and each thread gets the tokens it
    would get alone. What you pass must allow it: `processors` without state, and plugins that keep what changes in
    their sessions. One stream is read by one thread at a time.

    Args:
        target: The model whose distribution is sampled.
        drafter: Proposes tokens: a drafter, the name of an installed one such as "prompt-copy", or a mapping
            with `name` and its settings. None for autoregressive decoding: the same loop with empty proposals.
        gamma: The number of tokens drafted in a step, or the controller that decides it: an object, a name, or a
            mapping. Required with a drafter.
        lenience: How strictly drafts are verified (appendix A.5): the factor l, or a controller as for gamma. None
            for l = 1, which is lossless.
        sampling: The target's sampling settings (section 2.2).
        draft_sampling: The drafter's settings if they differ (section 6); the result is lossless either way.
        processors: Further Hugging Face logits processors, applied to target and drafter. Each must be a function
            of its arguments alone: several prefixes are verified in one step, and tokens are taken back. One that
            gives other scores for the same prefix in its first calls is an error.
        strict: Raise when a plugin fails instead of continuing without it.
        rule: Decides which draft tokens are accepted and which token follows: an acceptance rule, a name such as
            "block", or a mapping. None for Algorithm 1, `token`.
        draft_beams: Where `generate` is asked for beams: u, the number of nodes in each level of the drafter's
            beam search, over all beams of a prompt. Gamma is then the number of levels. None for as many as beams.
        **options: Fields of `SamplingSettings`, such as `temperature=0`; they replace those of `sampling`.

    Raises:
        ArgumentError: An argument is of a type that is not taken, or unknown.
        ConfigError: A drafter was given without gamma, or gamma without a drafter, a name is unknown, or a setting
            is invalid.
        PluginError: A plugin that was named cannot be loaded.

    References:
        Leviathan et al. 2023, Algorithm 1 (arXiv 2211.17192).
    """

    def __init__(
        self,
        target: LoadedModel,
        drafter: DrafterLike | None = None,
        *,
        gamma: GammaLike | None = None,
        lenience: LenienceLike | None = None,
        sampling: SamplingSettings | None = None,
        draft_sampling: SamplingSettings | None = None,
        processors: Sequence[LogitsProcessor] = (),
        strict: bool = False,
        rule: RuleLike | None = None,
        draft_beams: int | None = None,
        **options: Unpack[SamplingOptions],
    ) -> None:
        if not isinstance(target, LoadedModel):
            raise ArgumentError(
                f"target: an object of type {type(target).__name__} was given; pass what load_model(name) or "
                "wrap_model(model, tokenizer) returns."
            )
        settings = with_options(settings_or_default(SamplingSettings, sampling, "sampling"), options, _TO_GENERATE)
        drafts = settings_or_default(SamplingSettings, draft_sampling or settings, "draft_sampling")
        self.target = target
        self.gamma: GammaController | None = make_controller("gamma", gamma)
        self._lenience: LenienceController | None = make_controller("lenience", lenience)
        verifier: AcceptanceRule | None = make_controller("rule", rule)
        self._run = run_settings(drafter, self.gamma, self._lenience, verifier, draft_sampling, draft_beams)
        require(self._run.problems(greedy=settings.greedy))
        settings, drafts = (with_token_ids(one, target.tokenizer, target.vocab_size) for one in (settings, drafts))
        self._to_probs = LogitsToProbs(settings, processors, prove=True)
        self._draft_to_probs = LogitsToProbs(drafts, processors)
        self._strict = strict
        self._rule = verifier or SpeculativeSampling()
        self._sampling = settings
        self.drafter = None if drafter is None else make_drafter(target, drafter)
        self._beams = BeamDecoder(
            target, self.drafter, self.gamma, self._to_probs, self._draft_to_probs, draft_beams
        )

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        settings: GenerationSettings | None = None,
        observers: Sequence[Observer] = (),
        seeds: Sequence[int] | None = None,
        constraints: Sequence[ConstraintLike | None] | None = None,
        cache: PrefixCache | None = None,
        metadata: Metadata = None,
        encoder_outputs: Any = None,
        **options: Unpack[GenerationOptions],
    ) -> BatchResult:
        """Decode a prompt, or a batch of them, to its end.

        Args:
            prompts: A prompt, or one per sequence; lengths may differ.
            settings: How long to decode, and the seed.
            observers: Called after every step.
            seeds: One per sequence; derived from the settings' seed and the sequence's index by default, as
                `row_seed` does.
            constraints: One per sequence, None for a sequence without: a `Constraint`, or a mapping such as
                `{"regex": "[0-9]+"}`. By default that of the settings, `constraint`, for all.
            cache: The target's cache, kept from one call to the next: what a prompt shares with a text of the last
                call is not read again. Not for encoder-decoder targets, and not for beams.
            metadata: What drafters that distinguish requests read in `SessionInfo.metadata`, such as
                `{"user": "ann"}`: a mapping for all sequences, or one per sequence.
            encoder_outputs: For encoder-decoder targets, what the encoder gave, whatever it read: what
                `target.model.get_encoder()` returned, or states `[B, S, D]`. The prompts are then what the decoder
                begins with, in place of the start token.
            **options: Fields of `GenerationSettings`, such as `max_new_tokens=64`; they replace those of
                `settings`.

        Raises:
            PromptError: A prompt is empty, too long, or not of this vocabulary.
            ArgumentError: An argument is of a type that is not taken, or unknown.
            ConfigError: A setting is invalid, or a logits processor keeps state between calls.
            NumericsError: The target's logits are not a distribution.
            PluginError: A plugin failed, under `strict`.

        Warns:
            PluginWarning: A plugin failed and was switched off or overruled; once for each plugin.
        """
        arguments = prompts, settings, observers, seeds, constraints, cache, metadata, encoder_outputs
        return finished(self.stream(*arguments, **options))

    def stream(
        self,
        prompts: Prompt | Sequence[Prompt],
        settings: GenerationSettings | None = None,
        observers: Sequence[Observer] = (),
        seeds: Sequence[int] | None = None,
        constraints: Sequence[ConstraintLike | None] | None = None,
        cache: PrefixCache | None = None,
        metadata: Metadata = None,
        encoder_outputs: Any = None,
        **options: Unpack[GenerationOptions],
    ) -> Generator[StepReport, None, BatchResult]:
        """Decode a prompt or a batch step by step; the generator's return value is the `BatchResult`.

        Arguments, errors and warnings are those of `generate`. Leaving the loop early frees what the batch holds.
        """
        started = perf_counter()
        settings = generation_settings(settings, options)
        require(self._run.generation_problems(self._sampling, settings))
        if cache is not None:
            self._check_cache(settings)
        has_run = encoder_outputs is not None
        given = enumerate(as_prompts(prompts))
        ids = [tuple(encode_prompt(self.target, one, str(n), encoder_has_run=has_run)) for n, one in given]
        check_batch(self.target, ids)
        sources = ids if self.target.encoder_decoder and not has_run else None
        encoded = read_encoder_outputs(self.target, encoder_outputs, len(ids)) if has_run else None
        seeds = [row_seed(settings.seed, n) for n in range(len(ids))] if seeds is None else seeds
        if len(seeds) != len(ids):
            raise ConfigError(f"{len(seeds)} seeds were given for {len(ids)} prompts; one each is needed.")
        generators = _generators(seeds)
        start = self.target.start_id
        begin = ids if sources is None or start is None else [(start,)] * len(ids)
        rows = first_rows(self.target, begin, settings.max_new_tokens)
        told = metadata_of_each(metadata, len(rows))
        each = constraint_of_each(constraints, settings, len(rows))
        begins = [row.begin for row in rows]
        limits = open_constraints(each, begins, self.target)
        stops = self._stop_rule(settings)
        about = begins, limits, settings.min_new_tokens, stops.eos_ids

        def open_steps(guard: PluginGuard) -> tuple[SessionInfo, Batch | BeamBatch]:
            gamma = max_gamma_of(self.drafter, self.gamma, guard)
            info = session_info(self.target, rows, sources, gamma, told, encoded)
            if settings.beams > 1:  # beams do not support constraints
                return info, self._beams.open(info, rows, seeds, guard, settings, stops)
            batch = open_batch(
                LoopContext(self._draft_to_probs.for_batch(*about, drafts=True), generators, guard),
                self.target,
                rows,
                info,
                self.drafter,
                self.gamma,
                self._lenience,
                to_probs=self._to_probs.for_batch(*about),
                stops=stops,
                rule=self._rule,
                constraints=limits,
                cache=cache,
            )
            batch.recording = any(one.probabilities for one in observers)
            return info, batch

        return self._steps(open_steps, ids, settings, observers, cache, started)

    def chat(
        self,
        system: str | None = None,
        *,
        template: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Chat:
        """Begin a conversation with the target; `chat.send(text)` returns its answer.

        Args:
            system: A system message before the first turn.
            template: A Jinja chat template, in place of the tokenizer's.
            metadata: That of each turn; see `generate`.

        Raises:
            ConfigError: The target reads its prompts with an encoder.
        """
        return Chat(self, system, template=template, metadata=metadata)

    def _steps(
        self,
        open_steps: Callable[[PluginGuard], tuple[SessionInfo, Batch | BeamBatch]],
        ids: Sequence[Sequence[int]],
        settings: GenerationSettings,
        observers: Sequence[Observer],
        cache: PrefixCache | None,
        started: float,
    ) -> Generator[StepReport, None, BatchResult]:
        """Yield the steps of a batch, and return its result."""
        run = steps_of(open_steps, ids, observers, started, strict=self._strict)
        batch, guard, tally = yield from run
        if isinstance(batch, BeamBatch):
            sequences = tuple(self._beams.generations(batch, ids, settings.num_return_sequences))
        else:
            if cache is not None:
                cache.hold([row.tokens for row in batch.rows])
            sequences = tuple(self._generations(batch, ids, tally))
        metrics = tally.metrics.with_seconds(perf_counter() - started)
        result = BatchResult(sequences, metrics, guard.failures, guard.notes)
        for observer in observers:
            observer.on_end(result)
        return result

    def _check_cache(self, settings: GenerationSettings) -> None:
        if self.target.encoder_decoder:
            raise ConfigError(
                f"a cache was given, but {self.target.name} reads its prompts with an encoder, which keeps "
                "nothing for the next call; leave it out."
            )
        if settings.beams > 1:
            raise ConfigError("a cache was given, but beams do not keep one; leave it out, or set beams=1.")

    def _stop_rule(self, settings: GenerationSettings) -> StopRule:
        if settings.stop and self.target.tokenizer is None:
            raise ConfigError(
                f"stop strings were given, but {self.target.name} has no tokenizer to find them with."
            )
        eos = () if settings.ignore_eos else self.target.eos_ids
        return StopRule(frozenset(eos), settings.stop, self.target.tokenizer)

    def _generations(self, batch: Batch, ids: Sequence[Sequence[int]], tally: Tally) -> Iterator[Generation]:
        requests = tally.requests
        for number, (row, prompt) in enumerate(zip(batch.rows, ids, strict=True)):
            assert row.reason is not None
            yield replace(
                generation(prompt, row.tokens[row.begin :], row.reason, self.target.tokenizer),
                origins=tuple(tally.origins[number]),
                metrics=requests[number],
                seconds=tally.seconds[number],
            )


def _generators(seeds: Sequence[int]) -> RowGenerators:
    try:
        return RowGenerators(seeds)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"seeds={seeds!r} were given; a seed is a whole number from 0 to 2**64 - 1.") from error
