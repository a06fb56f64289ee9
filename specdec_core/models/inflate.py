"""Making a model cost more without changing what it says: for studies of what large targets would gain."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch

from specdec_core.errors import ModelError
from specdec_core.models.features import ModelFeatures
from specdec_core.models.load import wrap_model
from specdec_core.models.loaded import LoadedModel
from specdec_core.models.probe import fresh_logits


@dataclass(frozen=True)
class _Stack:
    """One stack of layers in models of a shape.

    Attributes:
        place: Where the list of layers stands; the module around it has the config that they are made from.
        outputs: What of a layer writes into the residual stream. With zeros there, a layer adds nothing.
        width: The setting for the size of its feed-forward part.
        count: The setting of the model that counts its layers.
        encoder: Whether it reads the source.
    """

    place: str
    outputs: tuple[str, ...]
    width: str
    count: str
    encoder: bool = False


_SHAPES = {
    "Llama": (
        _Stack("model.layers", ("self_attn.o_proj", "mlp.down_proj"), "intermediate_size", "num_hidden_layers"),
    ),
    "T5": (
        _Stack(
            "encoder.block",
            ("layer.0.SelfAttention.o", "layer.1.DenseReluDense.wo"),
            "d_ff",
            "num_layers",
            encoder=True,
        ),
        _Stack(
            "decoder.block",
            ("layer.0.SelfAttention.o", "layer.1.EncDecAttention.o", "layer.2.DenseReluDense.wo"),
            "d_ff",
            "num_decoder_layers",
        ),
    ),
    "M2M100": (
        _Stack(
            "model.encoder.layers",
            ("self_attn.out_proj", "fc2"),
            "encoder_ffn_dim",
            "encoder_layers",
            encoder=True,
        ),
        _Stack(
            "model.decoder.layers",
            ("self_attn.out_proj", "encoder_attn.out_proj", "fc2"),
            "decoder_ffn_dim",
            "decoder_layers",
        ),
    ),
}
"""Shapes by the name of their best known family; others are built alike (Qwen3, mT5, mBART)."""


def inflate(
    loaded: LoadedModel, layers: int, width: int | None = None, encoder_width: int | None = None
) -> LoadedModel:
    """Return a copy of a model with further layers that change nothing but the cost.

    Args:
        loaded: A model whose layers add to a residual stream, of one of three shapes: Llama's (`model.layers` with
            `self_attn.o_proj` and `mlp.down_proj`), T5's (`encoder.block` and `decoder.block`, whose layers have
            `SelfAttention.o`, `EncDecAttention.o` and `DenseReluDense.wo`), or M2M100's (`model.encoder.layers`
            and `model.decoder.layers` with `self_attn.out_proj`, `encoder_attn.out_proj` and `fc2`).
        layers: How many layers to add. A model with an encoder gets as many there as in its decoder: a larger
            model has a larger encoder too.
        width: The size of their feed-forward parts (`intermediate_size`, `d_ff`); that of the model when None.
        encoder_width: The same for those of an encoder, where there is one; `width` when None. A small one keeps
            the encoder cheap.

    Returns:
        The larger model, in the same dtypes and on the same device; the one handed in stays as it was.

    Raises:
        ModelError: The model is of none of these shapes, or of one but says something else with such layers, as
            where sums are normalised behind every layer (BART); or it has no encoder to be given a width.
    """
    stacks = _stacks(loaded)
    if encoder_width is not None and not loaded.encoder_decoder:
        raise ModelError(f"{loaded.name} has no encoder to inflate. Leave `encoder_width` out.")
    model = copy.deepcopy(loaded.model)
    for stack in stacks:
        _lengthen(model, stack, layers, encoder_width or width if stack.encoder else width)
    larger = wrap_model(model, loaded.tokenizer, f"{loaded.name} + {layers} layers")
    _check_equal(loaded, larger)
    if loaded.features is None:
        return larger
    # Its hidden states are those of the model handed in, so whatever was trained on those fits it too.
    return replace(larger, features=ModelFeatures(model, loaded.features.fingerprint()))


def _stacks(loaded: LoadedModel) -> tuple[_Stack, ...]:
    """Return the stacks of the model's shape."""
    for stacks in _SHAPES.values():
        if all(_fits(loaded.model, stack) for stack in stacks):
            return stacks
    shapes = [
        f"{name}-shaped ones (" + "; ".join(f"{s.place} with {', '.join(s.outputs)}" for s in stacks) + ")"
        for name, stacks in _SHAPES.items()
    ]
    raise ModelError(
        f"{loaded.name}: a {type(loaded.model).__name__} cannot be inflated, only {', '.join(shapes[:-1])} and "
        f"{shapes[-1]}. Leave `inflate` out, or choose a target of such a shape."
    )


def _fits(model: Any, stack: _Stack) -> bool:
    blocks = _part(model, stack.place)
    if not isinstance(blocks, torch.nn.ModuleList) or not len(blocks):
        return False
    return all(_part(block, name) is not None for block in blocks for name in stack.outputs)


def _lengthen(model: Any, stack: _Stack, layers: int, width: int | None) -> None:
    """Add layers that write nothing to a stack of a model, in place."""
    blocks, around = _part(model, stack.place), _part(model, stack.place.rpartition(".")[0])
    config = copy.deepcopy(around.config)
    if width is not None:
        setattr(config, stack.width, width)
    length = len(blocks) + layers
    kinds = getattr(around.config, "layer_types", None)
    if kinds:
        around.config.layer_types = config.layer_types = [*kinds, *[kinds[-1]] * layers]
    last = blocks[-1]
    takes_index = "layer_idx" in inspect.signature(type(last).__init__).parameters
    for index in range(len(blocks), length):
        layer = type(last)(config, **({"layer_idx": index} if takes_index else {}))
        _place_like(layer, last)
        with torch.no_grad():
            for weight in _weights(_part(layer, name) for name in stack.outputs):
                weight.zero_()
        blocks.append(layer.eval())
    setattr(model.config, stack.count, length)
    if around.config is not model.config:  # T5's stacks have configs of their own
        around.config.num_hidden_layers = length


def _place_like(layer: torch.nn.Module, other: torch.nn.Module) -> None:
    """Bring a layer to where another is; some families keep single weights of a layer in float32."""
    likes = dict(other.named_parameters())
    usual = next(iter(likes.values()))
    layer.to(usual.device, usual.dtype)
    for name, weight in layer.named_parameters():
        if name in likes:
            weight.data = weight.data.to(likes[name].dtype)


def _weights(parts: Iterable[Any]) -> Iterable[torch.Tensor]:
    for part in parts:
        yield from part.parameters()


def _check_equal(loaded: LoadedModel, larger: LoadedModel) -> None:
    """Refuse a larger model that does not say what the one it was made from says.

    Raises:
        ModelError: It does not.
    """
    tokens = [token % loaded.vocab_size for token in (3, 4, 5, 6)]
    source = [token % loaded.vocab_size for token in (7, 8, 9)] if loaded.encoder_decoder else None
    before, after = (fresh_logits(model, tokens, source) for model in (loaded, larger))
    # Zeros were added: equal to the last bit, but for kernels that do not add in the same order twice.
    allowed = 4 * torch.finfo(before.dtype).eps * before.abs().max()
    if not (after - before).abs().max() <= allowed:
        raise ModelError(
            f"{loaded.name}: a {type(loaded.model).__name__} cannot be inflated: layers that add nothing change "
            "what it says, as they do where sums are normalised behind every layer. Leave `inflate` out, or "
            "choose a target whose layers normalise what they read, such as T5 or Llama."
        )


def _part(module: Any, name: str) -> Any:
    """Return what lies at a dotted name; None where nothing does. Numbers are entries of a list."""
    for step in name.split(".") if name else ():
        module = getattr(module, step, None)
    return module
