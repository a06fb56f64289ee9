"""EAGLE-3 heads on disk: the config of the speculators package, and the weights that belong to it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import Field
from torch import Tensor

from specdec_core.interface import ModelError, TargetFeatures, TargetInfo
from specdec_drafters.common.draft_heads import (
    check_layers,
    check_sizes,
    head_of,
    target_features,
    write_for_vllm,
)
from specdec_drafters.common.speculators import Checkpoint, SpeculatorConfig, open_checkpoint
from specdec_drafters.eagle3.model import ARCHITECTURES, Eagle3Head, HeadShape

_LOG = logging.getLogger(__name__)
_FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output", "target_hidden_size")
_MASK_KEYS = ("mask_token_id", "pard_token", "ptd_token_id")
"""Keys for the mask token of P-EAGLE heads, in the order in which vLLM reads them."""
_LAYER_KEY = "eagle_aux_hidden_state_layer_ids"


def in_speculators_form(checkpoint: Checkpoint) -> Checkpoint:
    """Return a head with the config and the names of weights that the speculators package would give it.

    The config of such a head is that of its layers, with the head's keys beside them; its first layer is called
    `midlayer`. A head with `mask_hidden` drafts in one pass (P-EAGLE).

    Args:
        checkpoint: What was read.

    Raises:
        ModelError: The head reads one layer of the target, as those of EAGLE-2 do.

    References:
        vLLM: `llama_eagle3.py`, and the parameters of parallel drafting in its proposers.
    """
    given = checkpoint.config
    nested: Mapping[str, Any] = given.get("eagle_config") or {}
    if nested.get("use_aux_hidden_state") is False:
        raise ModelError(
            f"drafter 'eagle3': {checkpoint.model} reads the target's last hidden state only "
            "(use_aux_hidden_state: false), as heads before EAGLE-3 do. Choose an EAGLE-3 head."
        )
    parallel = "mask_hidden" in checkpoint.tensors
    config = {
        "speculators_model_type": "peagle" if parallel else "eagle3",
        "transformer_layer_config": {"model_type": "llama", "tie_word_embeddings": False, **given},
        "draft_vocab_size": given.get("draft_vocab_size") or given.get("vocab_size"),
        _LAYER_KEY: given.get(_LAYER_KEY) or _nested_layers(nested) or None,
        **{name: {**nested, **given}[name] for name in _FLAGS if {**nested, **given}.get(name) is not None},
    }
    if parallel:
        config["mask_token_id"] = next((given[key] for key in _MASK_KEYS if given.get(key) is not None), None)
    tensors: dict[str, Tensor] = {
        name.replace("midlayer.", "layers.0."): tensor for name, tensor in checkpoint.tensors.items()
    }
    if parallel:
        tensors["mask_hidden"] = tensors["mask_hidden"].reshape(1, 1, -1)
    return Checkpoint(checkpoint.model, config, tensors)


def _nested_layers(nested: Mapping[str, Any]) -> list[int]:
    """Return the layers that a head names within `eagle_config`, numbered as in `hidden_states`.

    SpecForge and ModelOpt count from the output of the first layer, and name it first: 1 is the output of two
    layers there. Other ids there, and those at the top level, are numbered as here and in vLLM.

    References:
        SGLang, pull request 25454.
    """
    layers = nested.get(_LAYER_KEY) or []
    return [layer + 1 for layer in layers] if layers[:1] == [1] else list(layers)


NATIVE = dict.fromkeys(("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM"), in_speculators_form)
"""How heads are converted, by what their `architectures` are called."""


TYPES = TYPE, PARALLEL_TYPE = "eagle3", "peagle"
"""The `speculators_model_type` of heads that draft token by token, and of those that draft in one pass."""


class Eagle3SpeculatorConfig(SpeculatorConfig):
    """The keys of an `eagle3` or `peagle` config. What they mean: `HeadShape`."""

    draft_vocab_size: int = Field(default=32000, ge=1)
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    target_hidden_size: int | None = Field(default=None, ge=1)
    eagle_aux_hidden_state_layer_ids: list[int] | None = None
    mask_token_id: int | None = None

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
        if given is None:
            _LOG.warning("%s does not name the target's layers that it reads; taken are %s", model, list(chosen))
        check_layers(chosen, count, "eagle_aux_hidden_state_layer_ids", model, TYPE)
        return chosen

    def shape(self, target_size: int, model: str) -> HeadShape:
        """Return the sizes of the head.

        Raises:
            ModelError: Its layers are of an architecture that is not supported, or two flags exclude each other.
        """
        if self.norm_before_fc and self.fc_norm:
            raise ModelError(
                f"drafter 'eagle3': {model} sets norm_before_fc and fc_norm, which exclude each other."
            )
        return HeadShape(
            self.layer(model, ARCHITECTURES),
            draft_vocab_size=self.draft_vocab_size,
            target_size=self.target_hidden_size or target_size,
            states=len(self.eagle_aux_hidden_state_layer_ids or (0, 0, 0)),
            norm_before_residual=self.norm_before_residual,
            norm_before_fc=self.norm_before_fc,
            fc_norm=self.fc_norm,
            norm_output=self.norm_output,
            mask_token_id=self.mask_token(model),
        )

    def mask_token(self, model: str) -> int | None:
        """Return the mask token of a head that drafts in one pass; None for other heads.

        Raises:
            ModelError: There is none, or it is not in the vocabulary.
        """
        if self.speculators_model_type != PARALLEL_TYPE:
            return None
        token, count = self.mask_token_id, self.transformer_layer_config.get("vocab_size") or 0
        if token is None or not 0 <= token < count:
            raise ModelError(
                f"drafter 'eagle3': {model} has the speculators_model_type 'peagle' and the mask_token_id "
                f"{token}, but the token ids 0 to {count - 1}. Correct mask_token_id in its config.json."
            )
        return token


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
    features = target_features(target, TYPE)
    checkpoint, config = open_checkpoint(Eagle3SpeculatorConfig, model, target, TYPE, TYPES, NATIVE)
    layers = config.layers(features, model)
    shape = config.shape(features.hidden_size, model)
    check_sizes(config, shape.layer.get("vocab_size"), shape.target_size, target, model, TYPE)
    return head_of(lambda: Eagle3Head(shape), checkpoint, config.draft_vocab_size, target, TYPE), layers


def export_eagle3(model: str, folder: Path) -> dict[str, Any]:
    """Write a head into a folder that vLLM loads; return keys of the speculative config.

    Keys that vLLM does not take from the head are put among those of the layer, which become its model's config.

    Args:
        model: A folder, a hub name, or `builtin:eagle3`; relative to the current folder.
        folder: An empty folder.

    Raises:
        ConfigError: vLLM cannot complete the head.
        ModelError: It is not there, not complete, or not of this format.
    """
    checkpoint, config = open_checkpoint(Eagle3SpeculatorConfig, model, None, TYPE, TYPES, NATIVE)
    shape = config.shape(0, model)
    if "fc.weight" in checkpoint.tensors and not shape.target_size:
        shape = replace(shape, target_size=checkpoint.tensors["fc.weight"].shape[-1] // shape.states)
    layer = {**shape.layer, **({"fc_norm": True} if shape.fc_norm else {})}
    if shape.states != 3:
        layer["num_aux_hidden_states"] = shape.states
    flags = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output", "draft_vocab_size")
    keys = {name: getattr(shape, name) for name in flags} | {"transformer_layer_config": layer}
    write_for_vllm(folder, checkpoint, config, keys, lambda: Eagle3Head(shape))
    parallel = {"parallel_drafting": True} if shape.mask_token_id is not None else {}
    return {"num_speculative_tokens": config.drafted, **parallel}


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
    parallel = shape.mask_token_id is not None
    kind = PARALLEL_TYPE if parallel else TYPE
    method = {"proposal_type": "greedy", "speculative_tokens": 5, "verifier_accept_k": 1, "accept_tolerance": 0.0}
    return {
        "architectures": ["PEagleSpeculator" if parallel else "Eagle3Speculator"],
        "speculators_model_type": kind,
        "speculators_version": "0.9.0",
        "speculators_config": {
            "algorithm": kind,
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
        **({"mask_token_id": shape.mask_token_id} if parallel else {}),
        "embed_requires_grad": False,
        "tie_word_embeddings": False,
        **extra,
    }
