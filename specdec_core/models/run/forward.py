"""One forward pass of a model over a cache: its arguments, masks and positions, and its results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cached_property, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from specdec_core.interface.errors import ModelError
from specdec_core.models.load.thread_overrides import overridden
from specdec_core.models.loaded import FULL, SLIDING, LoadedModel, vocab_size_of
from specdec_core.models.run.cache import SlotCache, WritePlan
from specdec_core.models.run.encoder import EncoderMemory
from specdec_core.models.run.positions import PositionPatch, position_patch


class Output(NamedTuple):
    """Logits `[B, T, V']`, and the hidden states they were computed from, `[B, T, D]`, if those are kept."""

    logits: Tensor
    hidden: Tensor | None = None

    def last(self, count: int) -> Output:
        """Return the last columns. The model may have trimmed each part to them already."""
        if self.hidden is None and self.logits.shape[1] == count:
            return self
        return self.map(lambda part: part if part.shape[1] == count else part[:, -count:])

    def zeros(self, rows: int, columns: int) -> Output:
        """Return zeros for another number of rows and columns."""
        return self.map(lambda part: part.new_zeros(rows, columns, part.shape[2]))

    def write(self, row: int, column: int, output: Output) -> None:
        """Write the output of a single row into `row`, starting at `column`."""
        for whole, part in ((self.logits, output.logits), (self.hidden, output.hidden)):
            if whole is not None and part is not None:
                whole[row, column : column + part.shape[1]] = part[0]

    def of_row(self, row: int, count: int) -> Output:
        """Return the last columns of one row."""
        return self.map(lambda part: part[row : row + 1, -count:])

    def map(self, change: Callable[[Tensor], Tensor]) -> Output:
        """Return the result of a function on each part."""
        return Output(change(self.logits), None if self.hidden is None else change(self.hidden))


class ModelForward:
    """The forward pass of a model.

    Args:
        loaded: The model.
        keep_hidden: Whether the hidden states that the output embedding read are part of the output.
        layers: Layers whose outputs are written to the cache; see `Drafter.hidden_layers`.
        captured: Whether passes are captured, which then have to compute all that depends on weights.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        keep_hidden: bool = False,
        layers: Sequence[int] = (),
        captured: bool = False,
    ) -> None:
        self._captured = captured
        self.loaded = loaded
        self.layers = tuple(layers)
        self.features = loaded.features if keep_hidden else None
        self._family = loaded.family

    def run(
        self,
        cache: SlotCache,
        memory: EncoderMemory | None,
        tokens: Tensor,
        plan: WritePlan,
        keep: int | None = None,
        **extra: Any,
    ) -> Output:
        """Run the model once. transformers computes masks and positions unless `extra` holds them.

        Args:
            cache: Keys and values of earlier tokens.
            memory: What the encoder said, for encoder-decoder models.
            tokens: `[B, T]` int64.
            plan: Where keys and values are written.
            keep: Number of last columns whose logits are needed; None for all.
            **extra: Further arguments of the model's forward.
        """
        cache.plan = plan
        keywords: dict[str, Any] = {"use_cache": True, **extra}
        if keep is not None and self._family.trims_logits:
            keywords["logits_to_keep"] = keep
        if memory is not None:
            keywords |= memory.keywords(cache, plan.batch)
            keywords["decoder_input_ids"] = tokens
        else:
            keywords["input_ids"] = tokens
        width = tokens.shape[1]
        apart = self._family.single_token_modules if width > 1 and plan.start > 0 else ()
        with self.loaded.lock:
            if self.features is None and not self.layers and not apart:
                result = Output(self._call(cache, keywords).logits)
            else:
                result = self._run_captured(cache, keywords, apart, width)
        return result if keep is None else result.last(keep)

    def _call(self, cache: SlotCache, keywords: dict[str, Any]) -> Any:
        if self.loaded.encoder_decoder:
            return self.loaded.model(**keywords)
        return cache.run(self.loaded.model, self._family.cache_argument, keywords)

    def _run_captured(self, cache: SlotCache, inputs: dict[str, Any], apart: Sequence[str], width: int) -> Output:
        """Run the model, some modules for each of `width` tokens apart; keep what it computes on the way."""
        hidden: list[Tensor] = []
        features, captured = self.loaded.features, None
        with ExitStack() as entered:
            for name in apart:
                module = self.loaded.model.get_submodule(name)
                entered.enter_context(overridden(module, "forward", partial(_run_token_by_token, width)))
            if self.features is not None:
                hidden = entered.enter_context(self.features.capture())
            if self.layers and features is not None:
                captured = entered.enter_context(features.capture_layers(self.layers))
            output = self._call(cache, inputs)
        for layer in self.layers:
            # A draft head, which has no features, returns its states.
            cache.keep_states(layer, (output.hidden_states if captured is None else captured)[layer])
        return Output(output.logits, hidden[-1] if hidden else None)

    def run_ragged(
        self,
        cache: SlotCache,
        memory: EncoderMemory | None,
        tokens: Tensor,
        plan: WritePlan,
        keep: int | None,
        *,
        positions: Tensor,
        visible: Tensor,
        keys: Tensor,
        **extra: Any,
    ) -> Output:
        """Run rows at different positions in one forward pass, with explicit positions and masks.

        Args:
            cache: Keys and values of earlier tokens.
            memory: What the encoder said, for encoder-decoder models.
            tokens: `[B, T]` int64.
            plan: Where keys and values are written.
            keep: Number of last columns whose logits are needed; None for all.
            positions: `[B, T]` int64, the position of each new token.
            visible: `[B, T, end]` bool, the slots that each new token sees.
            keys: `[end]` or `[B, end]` int64, the position of the token in each slot.
            **extra: Further arguments of the model's forward.
        """
        masks = self._masks(visible, positions, keys)
        if memory is None:
            # Without positions, no layer attends to others.
            inputs = {"position_ids": positions, "attention_mask": masks} if self._family.takes_positions else {}
            return self.run(cache, None, tokens, plan, keep, **(inputs | extra))
        with self._position_patch(positions, keys):
            return self.run(cache, memory, tokens, plan, keep, decoder_attention_mask=masks)

    @cached_property
    def _position_patch(self) -> PositionPatch:
        patch = position_patch(self.loaded.model, keep=not self._captured)
        assert patch is not None, "Family.ragged implies a position patch"
        return patch

    def _masks(self, visible: Tensor, positions: Tensor, keys: Tensor) -> Tensor | dict[str, Tensor]:
        """Return the attention mask `[B, 1, T, end]`, or a dict with one for each layer type."""
        types, masks = self._family.layer_types, {FULL: visible[:, None]}
        if self._family.window is not None:
            near = keys.unsqueeze(-2) > positions[..., None] - self._family.window
            masks[SLIDING] = (visible & near)[:, None]
        if len(masks) == 1 or FULL not in types:
            return self._convert_mask(masks.get(SLIDING, masks[FULL]))
        return {name: self._convert_mask(mask) for name, mask in masks.items()}

    def _convert_mask(self, mask: Tensor) -> Tensor:
        if not self._family.float_mask:
            return mask
        dtype = self.loaded.model.dtype
        return torch.full_like(mask, torch.finfo(dtype).min, dtype=dtype).masked_fill_(mask, 0)


def _run_token_by_token(count: int, forward: Callable[..., Tensor], *args: Any, **keywords: Any) -> Tensor:
    """Call the forward of a module for each of `count` tokens, which are the second dimension of its tensors."""

    def at(token: int, value: Any) -> Any:
        several = isinstance(value, Tensor) and value.dim() > 1 and value.shape[1] == count
        return value[:, token : token + 1] if several else value

    outputs = [
        forward(
            *(at(token, value) for value in args), **{name: at(token, value) for name, value in keywords.items()}
        )
        for token in range(count)
    ]
    return torch.cat(outputs, dim=1)


def check_ready(loaded: LoadedModel) -> None:
    """Reject a model whose state has changed since it was loaded, or that has no values.

    Raises:
        ModelError: It is in training mode, its vocabulary has another size, or it is on the meta device and not
            offloaded.
    """
    model = loaded.model
    if model.training:
        raise ModelError(f"{loaded.name} is in training mode, in which dropout changes its output; call eval().")
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    if head is not None and (size := vocab_size_of(head, None)) != loaded.vocab_size:
        raise ModelError(
            f"{loaded.name} had {loaded.vocab_size} logits when it was wrapped, and has {size} now: its "
            "embeddings were resized. Wrap it again."
        )
    # accelerate keeps offloaded weights on "meta" and brings them in a hook.
    if model.device.type == "meta" and not any(hasattr(layer, "_hf_hook") for layer in model.modules()):
        raise ModelError(f"{loaded.name} is on the meta device, without values. Load its weights first.")
