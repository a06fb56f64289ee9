"""The first pass of a batch with images, sound or marks of tokens: what `generate` was given, read as it does.

The model's own `prepare_inputs_for_generation` makes the arguments, and the model its masks: the tokens of an
image may attend to each other. The keys and values go to the slots of the cache, without padding. After that there
are only tokens, whose positions go on from the last one of the prompt, as `generate` counts them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specdec_core.models.device import moved
from specdec_core.models.loaded import LoadedModel


@dataclass(frozen=True)
class PromptInputs:
    """What `generate` was given for the prompts of a decoder-only model.

    Attributes:
        ids: `[B, L]`, padded on the left.
        arguments: What `generate` would pass to the model.
    """

    ids: Tensor
    arguments: Mapping[str, Any]

    @property
    def real(self) -> Tensor:
        """Where `ids` has no padding, `[B, L]` int64."""
        mask = self.arguments.get("attention_mask")
        return torch.ones_like(self.ids) if mask is None else moved(mask.long(), self.ids.device)

    @property
    def shift(self) -> Tensor | None:
        """What the position of a later token is more than its index in the row, `[B]`; None where nothing.

        `[A, B]` where positions have A axes: an image takes fewer of them than it has tokens.
        """
        positions = self.arguments.get("position_ids")
        if positions is None:
            return None
        counts = self.real.sum(dim=1)
        shift = moved(positions[..., -1], counts.device) + 1 - counts
        return shift if bool(shift.any()) else None

    def slots(self, trash: int) -> Tensor:
        """Return the slot of each token, `[B, L]` int64; `trash` for padding."""
        real = self.real
        return (real.cumsum(dim=1) - 1).masked_fill(real == 0, trash)

    def first_pass(self, loaded: LoadedModel, cache: Any) -> dict[str, Any]:
        """Return the arguments of the model's forward in its first pass, over an empty cache."""
        arguments = {**self.arguments, loaded.family.cache_argument: cache}
        prepare = loaded.model.prepare_inputs_for_generation
        made: dict[str, Any] = prepare(self.ids, is_first_iteration=True, **arguments)
        return made

    @torch.inference_mode()
    def plain(self, loaded: LoadedModel, count: int) -> tuple[Tensor, Tensor]:
        """Return the greedy tokens of plain `generate` `[B, count]`, and the logits `[B, count, V']` of each."""
        model, cache = loaded.model, self.arguments[loaded.family.cache_argument]
        made, ids, tokens, logits = self.first_pass(loaded, cache), self.ids, [], []
        arguments = dict(self.arguments)
        for _ in range(count):
            output = model(**made, return_dict=True)
            logits.append(output.logits[:, -1])
            tokens.append(moved(logits[-1].argmax(dim=-1), ids.device))
            ids = torch.cat([ids, tokens[-1][:, None]], dim=1)
            arguments = model._update_model_kwargs_for_generation(output, arguments, is_encoder_decoder=False)
            made = model.prepare_inputs_for_generation(ids, next_sequence_length=1, **arguments)
        return torch.stack(tokens, dim=1), torch.stack(logits, dim=1)
