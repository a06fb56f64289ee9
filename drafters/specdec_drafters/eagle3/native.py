"""EAGLE-3 heads in the format of EAGLE's authors, as the speculators package would store them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from specdec_core.interface import ModelError
from specdec_drafters.common.speculators import Checkpoint

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
        _LAYER_KEY: given.get(_LAYER_KEY) or nested.get(_LAYER_KEY) or None,
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


ARCHITECTURES = dict.fromkeys(("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM"), in_speculators_form)
"""How heads are converted, by what their `architectures` are called."""
