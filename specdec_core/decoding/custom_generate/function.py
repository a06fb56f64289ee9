"""`generate_with`: a callable for `model.generate(..., custom_generate=...)`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from threading import Lock
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteriaList, StopStringCriteria
from transformers.generation import GenerateDecoderOnlyOutput, GenerateEncoderDecoderOutput

from specdec_core.decoding.arguments import (
    DrafterLike,
    GammaLike,
    LenienceLike,
    RuleLike,
    make_controller,
    make_drafter,
    require,
    run_settings,
    settings_or_default,
)
from specdec_core.decoding.batch_loop import finished, steps_of
from specdec_core.decoding.counts import Metrics, RequestMetrics
from specdec_core.decoding.custom_generate.call import Call, hidden_arguments, of_prompts, read_call
from specdec_core.decoding.custom_generate.columns import Columns
from specdec_core.decoding.custom_generate.processors import PreparedProcessors
from specdec_core.decoding.guard import PluginGuard
from specdec_core.decoding.opening import LoopContext, max_gamma_of, open_batch, session_info
from specdec_core.decoding.rows import Row, StopRule
from specdec_core.decoding.step import Batch
from specdec_core.interface import ConfigError, Drafter, ModelError, SessionInfo
from specdec_core.interface.settings import SamplingSettings
from specdec_core.models import LoadedModel, wrap_model
from specdec_core.models.load.probe import prompt_difference
from specdec_core.models.loaded import vocab_size_of
from specdec_core.models.run.prompt_inputs import PromptInputs
from specdec_core.sampling.generators import RowGenerators
from specdec_core.sampling.logits import LogitsToProbs, with_token_ids
from specdec_core.verification import SpeculativeSampling


class GenerateWith:
    """A callable for `model.generate(..., custom_generate=...)` that decodes with a drafter.

    `generate` prepares everything as ever: its `generation_config`, the logits processors, stopping criteria and
    attention masks. Then this decodes with the distribution of plain `generate`, in fewer forward passes. A model
    is wrapped, and a drafter loaded for it, in the first call; its weights are not copied.

    Args:
        drafter: Proposes tokens; see `Decoder`. None decodes one token a step.
        gamma: The number of tokens drafted in a step, or a gamma controller. Required with a drafter.
        lenience: How strictly drafts are verified; None for l = 1, which is lossless.
        rule: The acceptance rule; None for Algorithm 1.
        draft_sampling: The drafter's sampling settings; None for the processors that `generate` has prepared.
        tokenizer: The model's tokenizer, for drafters that read text and for `stop_strings`.
        strict: Raise when a plugin fails instead of continuing without it.

    Raises:
        ArgumentError: An argument is of a type that is not taken.
        ConfigError: A drafter was given without gamma, or gamma without a drafter, a name is unknown, or a setting
            is invalid. Whether drafter and rule suit the model is checked in the first call.
        PluginError: A plugin that was named cannot be loaded.

    Attributes:
        metrics: Counts and times of all calls so far, added up.
    """

    def __init__(
        self,
        drafter: DrafterLike | None = None,
        *,
        gamma: GammaLike | None = None,
        lenience: LenienceLike | None = None,
        rule: RuleLike | None = None,
        draft_sampling: SamplingSettings | None = None,
        tokenizer: Any = None,
        strict: bool = False,
    ) -> None:
        if draft_sampling is not None:
            settings_or_default(SamplingSettings, draft_sampling, "draft_sampling")
        self._drafter = drafter
        self._tokenizer = tokenizer
        self._draft_sampling = draft_sampling
        self._gamma = make_controller("gamma", gamma)
        self._lenience = make_controller("lenience", lenience)
        self._rule = make_controller("rule", rule)
        self._run = run_settings(drafter, self._gamma, self._lenience, self._rule, draft_sampling)
        require(self._run.problems(greedy=True))
        self._strict = strict
        self._lock = Lock()
        self._known: dict[tuple[Any, ...], tuple[LoadedModel, Drafter | None]] = {}
        self._proved: set[tuple[int, frozenset[str]]] = set()
        self.metrics = Metrics()

    def __repr__(self) -> str:
        return f"<generate_with: drafter={self._drafter!r}, {self.metrics}>"

    def __deepcopy__(self, memo: dict[int, Any]) -> GenerateWith:
        # Libraries copy the keyword arguments of `generate`; weights and figures stay the same.
        return self

    # transformers reads this signature: it passes `inputs_tensor` and `stop_strings` because they are named here.
    def __call__(
        self,
        model: Any,
        input_ids: Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        synced_gpus: bool = False,
        streamer: Any = None,
        inputs_tensor: Tensor | None = None,
        stop_strings: str | Sequence[str] | None = None,
        **model_kwargs: Any,
    ) -> Any:
        """Decode; `generate` calls this.

        Returns:
            What `generate` returns: ids `[B, L + n]`, or with `return_dict_in_generate` an output of transformers,
            which has the figures of this call as `metrics`, and those of each sequence as `request_metrics`.

        Raises:
            ConfigError: `generate` was asked for what this does not do.
            ModelError: The model cannot be decoded exactly, or is in training mode.
        """
        loaded, drafter = self._loaded(model, input_ids)
        hidden = hidden_arguments()
        if synced_gpus:
            hidden = {**hidden, "synced_gpus": True}
        call = read_call(
            loaded,
            input_ids,
            logits_processor,
            self._with_stop_strings(stopping_criteria, stop_strings),
            generation_config,
            streamer=streamer,
            inputs=inputs_tensor,
            arguments=model_kwargs,
            hidden=hidden,
        )
        if call.prompt is not None:
            self._prove(loaded, call.prompt, call.rows)
        columns, metrics, requests = self._decode(loaded, drafter, call)
        with self._lock:
            self.metrics += metrics
        if call.streamer is not None:
            call.streamer.end()
        return _output(call, columns, metrics, requests, encoder_decoder=loaded.encoder_decoder)

    def _loaded(self, model: Any, ids: Tensor) -> tuple[LoadedModel, Drafter | None]:
        if getattr(model, "training", False):
            raise ModelError(
                "generate_with: the model is in training mode, in which dropout changes its output; call eval()."
            )
        # A model whose embeddings were resized since the last call is another one.
        size = vocab_size_of(model.get_output_embeddings(), model.config.get_text_config(decoder=True))
        key = id(model), model.device, size
        with self._lock:
            if key not in self._known:
                # With an encoder, `generate` has put its decoder_start_token_id first.
                start = int(ids[0, 0]) if model.config.is_encoder_decoder else None
                loaded = wrap_model(model, self._tokenizer, start_id=start)
                drafter = None if self._drafter is None else make_drafter(loaded, self._drafter)
                self._known[key] = loaded, drafter
            return self._known[key]

    def _prove(self, loaded: LoadedModel, prompt: PromptInputs, rows: Sequence[Sequence[int]]) -> None:
        """Reject inputs that the model reads in later passes, too, in the first call that has them."""
        names = of_prompts(prompt.arguments) or ["position_ids"]
        key = id(loaded), frozenset(names)
        if key not in self._proved and (reason := prompt_difference(loaded, prompt, rows)) is not None:
            raise ConfigError(
                f"generate_with: {', '.join(names)} was given, which is read with the prompt only, but then the "
                f"logits of {loaded.name} after it are not those of plain `generate` ({reason}), so decoding "
                "would not be exact. Leave it out, or use plain `generate`."
            )
        self._proved.add(key)

    def _decode(
        self, target: LoadedModel, drafter: Drafter | None, call: Call
    ) -> tuple[Columns, Metrics, tuple[RequestMetrics, ...]]:
        """Decode what a call asks for; return the columns, the figures, and those of each sequence."""
        config, count = call.config, len(call.rows)
        sampled, dictionary = bool(config.do_sample), bool(config.return_dict_in_generate)
        scores, logits = (dictionary and bool(one) for one in (config.output_scores, config.output_logits))
        prepared = call.processors, call.padding, call.ids.device
        to_probs = PreparedProcessors(*prepared, do_sample=sampled, prove=True, keep=scores or logits)
        drafts = (
            PreparedProcessors(*prepared, do_sample=sampled)
            if self._draft_sampling is None
            else LogitsToProbs(with_token_ids(self._draft_sampling, target.tokenizer, target.vocab_size))
        )
        drafts = drafts.for_batch([len(row) for row in call.rows])
        require(self._run.problems(greedy=not sampled))
        # Greedy decoding leaves torch's generator alone, as plain `generate` does.
        seeds = torch.randint(2**62, (count,)).tolist() if sampled else range(count)
        rows = [Row(list(row), len(row), len(row) + call.max_new_tokens, "length") for row in call.rows]

        def open_steps(guard: PluginGuard) -> tuple[SessionInfo, Batch]:
            gamma = max_gamma_of(drafter, self._gamma, guard)
            info = session_info(target, rows, call.sources, gamma, encoded=call.encoded)
            return info, open_batch(
                LoopContext(drafts, RowGenerators(seeds), guard),
                target,
                rows,
                info,
                drafter,
                self._gamma,
                self._lenience,
                to_probs=to_probs,
                stops=StopRule(call.eos_ids),
                rule=self._rule or SpeculativeSampling(),
                prompt=call.prompt,
            )

        pad_id = call.padding.pad_id if call.pads else None
        columns = Columns(call.ids, call.criteria, pad_id, call.streamer, to_probs, scores=scores, logits=logits)
        began = perf_counter()
        steps = steps_of(open_steps, call.rows, (), began, strict=self._strict)
        _, _, tally = finished(steps, partial(columns.add, rows))
        metrics = replace(tally.metrics.with_seconds(perf_counter() - began), tokens=columns.tokens)
        return columns, metrics, tally.requests

    def _with_stop_strings(
        self, criteria: StoppingCriteriaList, strings: str | Sequence[str] | None
    ) -> StoppingCriteriaList:
        if strings is None:
            return criteria
        if self._tokenizer is None:
            raise ConfigError(
                f"generate_with: stop_strings={strings!r} was given; transformers does not pass its tokenizer on: "
                "pass it here: generate_with(..., tokenizer=tokenizer)."
            )
        given = [strings] if isinstance(strings, str) else list(strings)
        return StoppingCriteriaList([*criteria, StopStringCriteria(self._tokenizer, given)])


generate_with = GenerateWith
"""The name under which a call reads as one."""


def _output(
    call: Call,
    columns: Columns,
    metrics: Metrics,
    requests: tuple[RequestMetrics, ...],
    *,
    encoder_decoder: bool,
) -> Any:
    """Return the result of `generate`."""
    if not call.config.return_dict_in_generate:
        return columns.ids
    kind = GenerateEncoderDecoderOutput if encoder_decoder else GenerateDecoderOnlyOutput
    output = kind(
        sequences=columns.ids,
        scores=None if columns.scores is None else tuple(columns.scores),
        logits=None if columns.logits is None else tuple(columns.logits),
    )
    # Attributes, not keys: what iterates over the output finds what it knows.
    output.metrics = metrics
    output.request_metrics = requests
    return output
