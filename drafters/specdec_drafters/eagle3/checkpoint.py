"""EAGLE-3 heads on disk: the config of the speculators package, and the weights that belong to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from specdec_core.interface import ModelError, TargetFeatures, TargetInfo
from specdec_drafters.common.speculators import (
    Checkpoint,
    SpeculatorConfig,
    check_fingerprint,
    parse_config,
    read_checkpoint,
)
from specdec_drafters.eagle3.model import ARCHITECTURES, Eagle3Head, HeadShape

TYPE = "eagle3"
"""The `speculators_model_type`."""
_FROM_TARGET = ("embed_tokens.weight", "lm_head.weight")
"""Weights that a checkpoint may lack: they are the target's."""
_OF_TARGET = ("verifier_lm_head.weight", "verifier_norm.weight")
"""Weights of the target that training needs and that some checkpoints hold."""


class Eagle3SpeculatorConfig(SpeculatorConfig):
    """The keys of an `eagle3` config. What they mean: `HeadShape`."""

    draft_vocab_size: int = Field(default=32000, ge=1)
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    target_hidden_size: int | None = Field(default=None, ge=1)
    eagle_aux_hidden_state_layer_ids: list[int] | None = None

    def layers(self, features: TargetFeatures, model: str) -> tuple[int, ...]:
        """Return the layers of the target that the head reads.

        Raises:
            ModelError: The target does not have them.
        """
        given, count = self.eagle_aux_hidden_state_layer_ids, features.num_layers
        if given is None and count is None:
            raise ModelError(
                f"drafter 'eagle3': {model} names no eagle_aux_hidden_state_layer_ids, and the target is not "
                "loaded, so that they cannot be chosen by the number of its layers. Add them to config.json."
            )
        chosen = tuple(given) if given is not None else default_layers(count or 0)
        allowed = range((max(chosen, default=0) if count is None else count) + 1)
        if not chosen or len(set(chosen)) < len(chosen) or not set(chosen) <= set(allowed):
            raise ModelError(
                f"drafter 'eagle3': {model} reads the layers {list(chosen)}; a target with {count} layers has "
                f"0 to {len(allowed) - 1}, each of which may be read once. Choose a head for this target, or name "
                "the layers in eagle_aux_hidden_state_layer_ids of its config.json."
            )
        return chosen

    def shape(self, target_size: int, model: str) -> HeadShape:
        """Return the sizes of the head.

        Raises:
            ModelError: Its layers are of an architecture that is not supported, or two flags exclude each other.
        """
        layer = dict(self.transformer_layer_config)
        if layer.get("model_type", "qwen3") not in ARCHITECTURES:
            raise ModelError(
                f"drafter 'eagle3': {model} has layers of the model_type {layer['model_type']!r}. Supported: "
                f"{', '.join(ARCHITECTURES)}."
            )
        if self.norm_before_fc and self.fc_norm:
            raise ModelError(
                f"drafter 'eagle3': {model} sets norm_before_fc and fc_norm, which exclude each other."
            )
        return HeadShape(
            {"model_type": "qwen3", **layer},
            draft_vocab_size=self.draft_vocab_size,
            target_size=self.target_hidden_size or target_size,
            states=len(self.eagle_aux_hidden_state_layer_ids or (0, 0, 0)),
            norm_before_residual=self.norm_before_residual,
            norm_before_fc=self.norm_before_fc,
            fc_norm=self.fc_norm,
            norm_output=self.norm_output,
        )


def default_layers(count: int) -> tuple[int, ...]:
    """Return the layers that a head reads of a target with so many, where none are named."""
    return 2, count // 2, count - 3


def read_eagle3(model: str, target: TargetInfo) -> tuple[Eagle3Head, tuple[int, ...]]:
    """Read a head for a target.

    Args:
        model: A folder, a hub name, or `builtin:eagle3`.
        target: The target, whose embeddings are taken where the checkpoint has none.

    Returns:
        The head on the device of the target's output embedding and in its data type; and the layers that it reads.

    Raises:
        ModelError: It is not there, is not complete, is of another type, or does not fit the target.
    """
    features = target.features
    if features is None:
        raise ModelError(
            "drafter 'eagle3': this target has no output embedding, or shares it with other processes "
            "(tensor_parallel), so that its hidden states cannot be read. Choose another drafter."
        )
    checkpoint = read_checkpoint(model, target.folder, TYPE)
    config = parse_config(Eagle3SpeculatorConfig, checkpoint, TYPE, TYPE)
    check_fingerprint(config, model, target, TYPE)
    layers = config.layers(features, model)
    shape = config.shape(features.hidden_size, model)
    vocab = shape.layer.get("vocab_size")
    for what, theirs, ours in (
        ("a vocabulary", vocab, target.vocab_size),
        ("hidden states", shape.target_size, features.hidden_size),
    ):
        if theirs != ours:
            raise ModelError(
                f"drafter 'eagle3': {model} is for a target with {what} of size {theirs}; this one's is {ours}. "
                f"It was trained for {config.verifier or 'another target'}."
            )
    with torch.random.fork_rng(devices=[]):  # initial values are drawn from the global generator
        head = Eagle3Head(shape)
    weights = _with_targets(checkpoint, config, features, target.vocab_size)
    _load(head, weights, model)
    embeddings = features.output_embeddings
    return head.to(embeddings.device, embeddings.dtype).eval().requires_grad_(requires_grad=False), layers


def _with_targets(
    checkpoint: Checkpoint, config: Eagle3SpeculatorConfig, features: TargetFeatures, vocab_size: int
) -> dict[str, Tensor]:
    """Return the weights of a checkpoint, with the target's embeddings in the place of those that it lacks."""
    tensors = {name: tensor for name, tensor in checkpoint.tensors.items() if name not in _OF_TARGET}
    if "embed_tokens.weight" not in tensors:
        tensors["embed_tokens.weight"] = features.input_embeddings[:vocab_size]
    if config.draft_vocab_size == vocab_size:
        tensors = {name: tensor for name, tensor in tensors.items() if name not in ("d2t", "t2d")}
        tensors.setdefault("lm_head.weight", features.output_embeddings[:vocab_size])
    elif "d2t" in tensors and "lm_head.weight" not in tensors:
        ids = torch.arange(config.draft_vocab_size) + tensors["d2t"]
        tensors["lm_head.weight"] = features.output_embeddings[ids.to(features.output_embeddings.device)]
    return tensors


def _load(head: Eagle3Head, tensors: Mapping[str, Tensor], model: str) -> None:
    """Load the weights, all of which must be there, finite and of the right shape."""
    own = head.state_dict()
    optional = {"t2d"} if "d2t" in tensors else {"t2d", "d2t"} if head.t2d.all() else set()
    missing = sorted(own.keys() - tensors.keys() - optional)
    unknown = sorted(tensors.keys() - own.keys())
    if missing or unknown:
        raise ModelError(
            f"drafter 'eagle3': {model} lacks the weights {_listed(missing)} and has {_listed(unknown)}, which "
            "its config.json does not ask for. Copy the checkpoint again, or use the specdec that supports it."
        )
    for name, tensor in tensors.items():
        if tensor.shape != own[name].shape:
            raise ModelError(
                f"drafter 'eagle3': {model}: the weight {name} is {tuple(tensor.shape)}, but config.json asks for "
                f"{tuple(own[name].shape)}."
            )
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise ModelError(f"drafter 'eagle3': {model}: the weight {name} has values that are not finite.")
    head.load_state_dict(dict(tensors), strict=False)
    ids = head.token_ids
    if len(set(ids.tolist())) < len(ids) or int(ids.min()) < 0 or int(ids.max()) >= len(head.t2d):
        raise ModelError(
            f"drafter 'eagle3': {model}: d2t does not map the draft vocabulary to different tokens of the target. "
            "It holds the offset of each draft token's id in the target's vocabulary."
        )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


def config_of(
    head: Eagle3Head, layers: Sequence[int], verifier: Mapping[str, Any], **extra: Any
) -> dict[str, Any]:
    """Return the `config.json` of a head.

    Args:
        head: The head.
        layers: The layers of the target that it reads.
        verifier: `name_or_path` and `architectures` of the target.
        extra: Further keys.
    """
    shape = head.shape
    method = {"proposal_type": "greedy", "speculative_tokens": 5, "verifier_accept_k": 1, "accept_tolerance": 0.0}
    return {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": TYPE,
        "speculators_version": "0.9.0",
        "speculators_config": {
            "algorithm": TYPE,
            "default_proposal_method": "greedy",
            "proposal_methods": [method],
            "verifier": dict(verifier),
        },
        "transformer_layer_config": dict(shape.layer),
        "draft_vocab_size": shape.draft_vocab_size,
        "target_hidden_size": shape.target_size,
        "eagle_aux_hidden_state_layer_ids": list(layers),
        "norm_before_residual": shape.norm_before_residual,
        "norm_before_fc": shape.norm_before_fc,
        "fc_norm": shape.fc_norm,
        "norm_output": shape.norm_output,
        "embed_requires_grad": False,
        "tie_word_embeddings": False,
        **extra,
    }
