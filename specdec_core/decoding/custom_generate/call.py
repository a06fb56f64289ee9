"""What `generate` hands to a custom decoding loop: checked, and in the form that our loop works with."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import (
    EosTokenCriteria,
    GenerationConfig,
    GenerationMixin,
    LogitsProcessorList,
    StoppingCriteriaList,
)
from transformers.generation import GenerationMode

from specdec_core.decoding.custom_generate.processors import Padding
from specdec_core.interface import ConfigError
from specdec_core.models import Encoded, LoadedModel

# What `generate` itself adds to the arguments of the model, or what makes no difference to a token.
_UNUSED = {"use_cache", "logits_to_keep", "num_logits_to_keep", "return_dict", "cache_position"}
_READ = {"attention_mask", "position_ids", "encoder_outputs", "decoder_attention_mask", "past_key_values"}
_MODES = (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE)


@dataclass(frozen=True)
class Call:
    """One call of `generate`.

    Attributes:
        ids: `[B, L]`, the prompts, padded on the left; with an encoder, what the decoder begins with.
        rows: The same without padding.
        sources: With an encoder, what it reads, without padding.
        encoded: With an encoder, what it gave.
        padding: Of `ids`.
        config: The generation config, completed.
        processors: The logits processors, completed.
        criteria: The stopping criteria, completed.
        streamer: The streamer, or None.
    """

    ids: Tensor
    rows: list[list[int]]
    sources: list[list[int]] | None
    encoded: Encoded | None
    padding: Padding
    config: GenerationConfig
    processors: LogitsProcessorList
    criteria: StoppingCriteriaList
    streamer: Any

    @property
    def max_new_tokens(self) -> int:
        """The most tokens that are added to a row."""
        return int(self.config.max_length) - self.ids.shape[1]

    @property
    def eos_ids(self) -> frozenset[int]:
        """The ids that end a row."""
        found = [one for one in self.criteria if isinstance(one, EosTokenCriteria)]
        return frozenset(int(token) for one in found for token in one.eos_token_id.tolist())

    @property
    def pads(self) -> bool:
        """Whether padding follows the end of a row: with an end-of-sequence id, as in plain `generate`."""
        return any(hasattr(one, "eos_token_id") for one in self.criteria)


def hidden_arguments() -> Mapping[str, Any]:
    """Return the arguments of the `generate` that is running, which has not passed all of them on.

    transformers (5.17 to 5.23) drops `streamer`, `assistant_model` and `synced_gpus` where `custom_generate` is a
    callable: a streamer would get the prompt, nothing else, and wait forever. They are read where they still are.
    """
    code = GenerationMixin.generate.__wrapped__.__code__  # torch.no_grad wraps it
    frame = sys._getframe(1)
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back  # type: ignore[assignment]
    return {} if frame is None else frame.f_locals


def read_call(
    loaded: LoadedModel,
    ids: Tensor,
    processors: LogitsProcessorList,
    criteria: StoppingCriteriaList,
    config: GenerationConfig,
    *,
    streamer: Any,
    inputs: Tensor | None,
    arguments: Mapping[str, Any],
    hidden: Mapping[str, Any],
) -> Call:
    """Return a call, checked.

    Args:
        loaded: The model.
        ids: `[B, L]`, the prompts, padded on the left.
        processors: The logits processors.
        criteria: The stopping criteria.
        config: The generation config.
        streamer: The streamer, or None.
        inputs: With an encoder, `[B', S]`, what it reads, before rows are repeated.
        arguments: What `generate` would pass to the model.
        hidden: See `hidden_arguments`.

    Raises:
        ConfigError: Something was asked for that this loop does not do.
    """
    problems = [*_config_problems(config, hidden), *_argument_problems(loaded, arguments)]
    if problems:
        raise ConfigError("\n".join(f"generate_with: {problem}" for problem in problems))
    mask = arguments.get("decoder_attention_mask" if loaded.encoder_decoder else "attention_mask")
    rows = _unpadded(ids, mask, "attention_mask")
    _check_positions(ids, mask, arguments.get("position_ids"))
    pad = config._pad_token_tensor
    left = [row[: ids.shape[1] - len(text)] for row, text in zip(ids.tolist(), rows, strict=True)]
    sources = encoded = None
    if loaded.encoder_decoder:
        sources, encoded = _read_encoder(ids, inputs, arguments)
    call = Call(
        ids=ids,
        rows=rows,
        sources=sources,
        encoded=encoded,
        padding=Padding(left, 0 if pad is None else int(pad)),
        config=config,
        processors=processors,
        criteria=criteria,
        streamer=streamer if streamer is not None else hidden.get("streamer"),
    )
    _check_length(loaded, call)
    return call


def _config_problems(config: GenerationConfig, hidden: Mapping[str, Any]) -> Iterator[str]:
    if hidden.get("assistant_model") is not None:
        yield "assistant_model was given; name the drafter once: generate_with(drafter=...) or assistant_model."
    elif (config.num_beams or 1) > 1:
        yield (
            f"num_beams={config.num_beams} was given; it samples or decodes greedily, with num_beams=1. "
            f"`Decoder.generate(..., beams={config.num_beams})` is beam search with a drafter."
        )
    elif (mode := config.get_generation_mode()) not in _MODES:
        yield f"the generation config asks for {mode.value}; it takes greedy_search and sample."
    if hidden.get("synced_gpus"):
        yield "synced_gpus=True was given; a model that is sharded by FSDP or ZeRO 3 is not decoded."
    for name in ("output_attentions", "output_hidden_states"):
        if getattr(config, name):
            yield f"{name}=True was given; it returns output_scores and output_logits only."
    if config.guidance_scale is not None and config.guidance_scale != 1:
        yield f"guidance_scale={config.guidance_scale} was given; its processor keeps a cache of its own."
    if "quantized" in str(config.cache_implementation) or "offload" in str(config.cache_implementation):
        yield (
            f"cache_implementation={config.cache_implementation!r} was given; it has a cache of its own, in the "
            "model's dtype and on its device."
        )
    if config.prefill_chunk_size is not None:
        yield f"prefill_chunk_size={config.prefill_chunk_size} was given; it reads a prompt in one forward pass."
    if config.max_length is None:
        yield "there is no max_length; pass max_new_tokens."


def _argument_problems(loaded: LoadedModel, arguments: Mapping[str, Any]) -> Iterator[str]:
    for name, value in arguments.items():
        if value is None or name in _UNUSED or name in _READ:
            continue
        if name in ("output_attentions", "output_hidden_states") and not value:
            continue
        takes = "input_ids and attention_mask"
        if loaded.encoder_decoder:
            takes = "input_ids, attention_mask, encoder_outputs and decoder_input_ids"
        yield f"{name} was given; it passes {takes} to the model, and nothing else."
    cache = arguments.get("past_key_values")
    # transformers 5.23 marks a cache that it has not made itself.
    if cache is not None and (cache.get_seq_length() > 0 or getattr(cache, "_is_user_defined", False)):
        yield "past_key_values was given; it reads the prompt itself, into a cache that can be rolled back."


def _unpadded(ids: Tensor, mask: Tensor | None, name: str, *, right: bool = False) -> list[list[int]]:
    """Return the rows of a batch without padding.

    Args:
        ids: `[B, L]`.
        mask: `[B, L]`, 0 for padding; None without any.
        name: What the mask is called.
        right: Whether padding may be anywhere, as an encoder takes it.

    Raises:
        ConfigError: A row has no tokens, or padding where it may not be.
    """
    if mask is None:
        return [list(map(int, row)) for row in ids.tolist()]
    rows = []
    for number, (row, kept) in enumerate(zip(ids.tolist(), mask.bool().tolist(), strict=True)):
        if not any(kept):
            raise ConfigError(f"generate_with: {name} of row {number} is all zeros; a row needs a token.")
        if not right and not all(kept[kept.index(True) :]):
            raise ConfigError(
                f"generate_with: {name} of row {number} has a 0 after a 1; padding goes on the left: "
                "tokenizer.padding_side = 'left'."
            )
        rows.append([token for token, real in zip(row, kept, strict=True) if real])
    return rows


def _check_positions(ids: Tensor, mask: Tensor | None, positions: Tensor | None) -> None:
    """Refuse positions that do not count the tokens of a row."""
    if positions is None:
        return
    real = torch.ones_like(ids) if mask is None else mask.to(ids.device).long()
    counted = real.cumsum(dim=1) - 1
    if positions.shape[-1] == ids.shape[1] and positions.ndim == 2:
        wrong = (positions.to(ids.device) != counted) & real.bool()
        if not wrong.any():
            return
    raise ConfigError(
        "generate_with: position_ids was given; positions count the tokens of a row from 0. Remove it."
    )


def _read_encoder(
    ids: Tensor, inputs: Tensor | None, arguments: Mapping[str, Any]
) -> tuple[list[list[int]], Encoded]:
    """Return what the encoder reads, and what it gave."""
    if inputs is None or inputs.ndim != 2 or inputs.is_floating_point() or bool((inputs < 0).any()):
        raise ConfigError(
            "generate_with: the encoder's input is no tensor of token ids; pass input_ids, and encoder_outputs "
            "beside them if the encoder has run."
        )
    inputs = inputs.repeat_interleave(len(ids) // len(inputs), dim=0)
    mask = arguments.get("attention_mask")
    states = arguments["encoder_outputs"][0]
    sources = _unpadded(inputs, mask, "attention_mask", right=True)
    return sources, (states, None if mask is None or mask.bool().all() else mask)


def _check_length(loaded: LoadedModel, call: Call) -> None:
    """Refuse to go on past the last position that a model has."""
    prompt = max(map(len, call.rows))
    longest = loaded.max_length(prompt)
    if longest is not None and prompt + call.max_new_tokens > longest:
        raise ConfigError(
            f"generate_with: max_new_tokens is {call.max_new_tokens} after a prompt of {prompt} tokens; "
            f"{loaded.name} takes {longest} in all. Pass max_new_tokens of at most {max(longest - prompt, 0)}."
        )
