"""The arguments that `generate` hands to a custom decoding loop, checked and in the form of our loop."""

from __future__ import annotations

import inspect
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
from specdec_core.models import LoadedModel
from specdec_core.models.loaded import CACHES
from specdec_core.models.run.encoder import Encoded
from specdec_core.models.run.prompt_inputs import PromptInputs

UNSUPPORTED: Mapping[str, str] = {
    "num_beams": "beam search. `Decoder.generate(..., beams=...)` has it, with a drafter",
    "assistant_model": "it would draft as well. Name the drafter once: `generate_with(drafter=...)`",
    "prompt_lookup_num_tokens": 'it would draft as well. Pass `generate_with(drafter="prompt-copy", gamma=...)`',
    "assistant_early_exit": "it would draft as well. Name the drafter once: `generate_with(drafter=...)`",
    "use_mtp": "it would draft as well. Name the drafter once: `generate_with(drafter=...)`",
    "penalty_alpha": "contrastive search. Sample or decode greedily",
    "dola_layers": "DoLa reads hidden states of several layers. Sample or decode greedily",
    "constraints": "constrained beam search. `prefix_allowed_tokens_fn` restricts tokens",
    "force_words_ids": "constrained beam search. `prefix_allowed_tokens_fn` restricts tokens",
    "guidance_scale": "its logits processor keeps its own cache. Pass 1, or leave it out",
    "output_attentions": "a pass holds several drafted tokens. `output_scores` and `output_logits` work",
    "output_hidden_states": "a pass holds several drafted tokens. `output_scores` and `output_logits` work",
    "synced_gpus": "a model that is sharded by FSDP or ZeRO 3 is not decoded",
    "cache_implementation": "quantized and offloaded caches. The cache has the model's dtype and device",
    "prefill_chunk_size": "it reads a prompt in one forward pass. Leave it out",
    "past_key_values": "it fills a cache that can be rolled back. Pass all ids as `input_ids`",
    "inputs_embeds": "drafters need the ids of the prompt. Pass `input_ids`",
    "decoder_inputs_embeds": "drafters need the ids of the prompt. Pass `decoder_input_ids`",
}
"""Arguments of `generate` that raise, each with the reason and what to do instead; docs/transformers.md has them.

`num_beams` raises above 1, `guidance_scale` at other values than 1, `cache_implementation` for the caches that are
named, `past_key_values` for others than those that `generate` makes itself.
"""

_NOT_SUPPORTED = " was given, which is not supported: "

# What `generate` itself adds to the arguments of the model, or what makes no difference to a token.
_UNUSED = {"use_cache", "logits_to_keep", "num_logits_to_keep", "return_dict", "cache_position"}
_IN_CONFIG = {"output_attentions", "output_hidden_states"}
_READ = {"attention_mask", "position_ids", "encoder_outputs", "decoder_attention_mask", *CACHES}
_MODES = (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE)
_OF_MODES = (
    *("prompt_lookup_num_tokens", "assistant_early_exit", "use_mtp"),
    *("penalty_alpha", "dola_layers", "constraints", "force_words_ids"),
)
"""Arguments that choose another mode than these."""


@dataclass(frozen=True)
class Call:
    """One call of `generate`.

    Attributes:
        ids: `[B, L]`, the prompts, padded on the left; with an encoder, what the decoder begins with.
        rows: The same without padding.
        sources: With an encoder that reads ids, what it reads, without padding, if that is known.
        encoded: With an encoder, what it gave.
        prompt: Without an encoder, what the first pass reads if it is more than text; else None.
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
    prompt: PromptInputs | None
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

    transformers (5.17 to 5.24) drops `streamer`, `assistant_model` and `synced_gpus` where `custom_generate` is a
    callable: a streamer would get the prompt, nothing else, and wait forever. They are read where they still are.
    """
    code = inspect.unwrap(GenerationMixin.generate).__code__  # torch.no_grad wraps it
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
        inputs: With an encoder, `[B', ...]`, what it reads, before rows are repeated; negative ids where that is
            not known.
        arguments: What `generate` would pass to the model.
        hidden: See `hidden_arguments`.

    Raises:
        ConfigError: Something was asked for that this loop does not do.
    """
    given = hidden.get("kwargs", arguments)
    problems = [*_config_problems(config, hidden), *_argument_problems(loaded, arguments)]
    if problems:
        raise ConfigError("\n".join(f"generate_with: {problem}" for problem in problems))
    name = "decoder_attention_mask" if loaded.encoder_decoder else "attention_mask"
    mask = arguments.get(name)
    if given.get(name) is None:
        name += f", which `generate` made from pad_token_id={config.pad_token_id} (pass one to keep these ids),"
    rows = _unpadded(ids, mask, name)
    pad = config._pad_token_tensor
    left = [row[: ids.shape[1] - len(text)] for row, text in zip(ids.tolist(), rows, strict=True)]
    sources = encoded = prompt = None
    if loaded.encoder_decoder:
        sources, encoded = _read_encoder(loaded, ids, inputs, arguments)
    elif of_prompts(arguments) or not _counted(ids, mask, arguments.get("position_ids")):
        prompt = PromptInputs(ids, arguments)
    call = Call(
        ids=ids,
        rows=rows,
        sources=sources,
        encoded=encoded,
        prompt=prompt,
        padding=Padding(left, 0 if pad is None else int(pad)),
        config=config,
        processors=processors,
        criteria=criteria,
        streamer=streamer if streamer is not None else hidden.get("streamer"),
    )
    _check_length(loaded, call)
    return call


def _unsupported(name: str, value: Any = None) -> str:
    """Return the problem of an argument; with a value, where that is short."""
    shown = name if value is None else f"{name}={value!r}"
    return f"{shown}{_NOT_SUPPORTED}{UNSUPPORTED[name]}."


def _config_problems(config: GenerationConfig, hidden: Mapping[str, Any]) -> Iterator[str]:
    if hidden.get("assistant_model") is not None:
        yield _unsupported("assistant_model")
    elif (config.num_beams or 1) > 1:
        yield _unsupported("num_beams", config.num_beams)
    elif (mode := config.get_generation_mode()) not in _MODES:
        given = [name for name in _OF_MODES if getattr(config, name, None)]
        yield from map(_unsupported, given)
        if not given:
            yield f"the generation config asks for {mode.value}; it takes greedy_search and sample."
    if hidden.get("synced_gpus"):
        yield _unsupported("synced_gpus", True)
    for name in (*sorted(_IN_CONFIG), "prefill_chunk_size"):
        if value := getattr(config, name):
            yield _unsupported(name, value)
    if config.guidance_scale is not None and config.guidance_scale != 1:
        yield _unsupported("guidance_scale", config.guidance_scale)
    if any(kind in str(config.cache_implementation) for kind in ("quantized", "offload")):
        yield _unsupported("cache_implementation", config.cache_implementation)
    if config.max_length is None:
        yield "max_length is missing; pass max_new_tokens."


def _argument_problems(loaded: LoadedModel, arguments: Mapping[str, Any]) -> Iterator[str]:
    for name in of_prompts(arguments):
        if name in UNSUPPORTED:
            yield _unsupported(name)
        elif loaded.encoder_decoder:
            takes = f"{loaded.model.main_input_name}, attention_mask, encoder_outputs and decoder_input_ids"
            yield f"{name}{_NOT_SUPPORTED}it passes {takes} to the model, and nothing else."
    for name in CACHES:
        if getattr(arguments.get(name), "_is_user_defined", False):  # set by `generate`
            yield f"{name}{_NOT_SUPPORTED}{UNSUPPORTED['past_key_values']}."


def of_prompts(arguments: Mapping[str, Any]) -> list[str]:
    """Return which arguments say more of the prompts than their ids and masks: images, marks of tokens."""
    known = _UNUSED | _READ | _IN_CONFIG
    # Without images, `generate` passes an empty mapping of what encoders gave.
    return [name for name, value in arguments.items() if name not in known and value is not None and value != {}]


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


def _counted(ids: Tensor, mask: Tensor | None, positions: Tensor | None) -> bool:
    """Return whether positions count the tokens of a row.

    Args:
        ids: `[B, L]`.
        mask: `[B, L]`, 0 for padding; None without any.
        positions: `[B, L]` or `[1, L]`; `[A, B, L]` with A axes for images, which all count the same in a text.
    """
    if positions is None:
        return True
    real = torch.ones_like(ids) if mask is None else mask.to(ids.device).long()
    wrong = (positions.to(ids.device) != real.cumsum(dim=1) - 1) & real.bool()
    return not wrong.any()


def _read_encoder(
    loaded: LoadedModel, ids: Tensor, inputs: Tensor | None, arguments: Mapping[str, Any]
) -> tuple[list[list[int]] | None, Encoded]:
    """Return the ids that the encoder reads, if it reads ids that are known, and what it gave."""
    mask, sources, given = arguments.get("attention_mask"), None, {}
    if inputs is not None:
        inputs = inputs.repeat_interleave(len(ids) // len(inputs), dim=0)
        if inputs.is_floating_point():
            given = {loaded.model.main_input_name: inputs} | ({} if mask is None else {"attention_mask": mask})
        elif loaded.reads_ids and bool((inputs >= 0).all()):
            sources = _unpadded(inputs, mask, "attention_mask", right=True)
    return sources, Encoded.of(arguments["encoder_outputs"], mask, loaded.model.get_encoder(), given)


def _check_length(loaded: LoadedModel, call: Call) -> None:
    """Check that the text ends before the last position of the model."""
    prompt = max(map(len, call.rows))
    longest = loaded.max_length(prompt)
    if longest is not None and prompt + call.max_new_tokens > longest:
        raise ConfigError(
            f"generate_with: max_new_tokens is {call.max_new_tokens} after a prompt of {prompt} tokens; "
            f"{loaded.name} takes {longest} in all. Pass max_new_tokens of at most {max(longest - prompt, 0)}."
        )
