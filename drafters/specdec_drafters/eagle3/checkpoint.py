"""EAGLE-3 heads on disk: the config of the speculators package, and the weights that belong to it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from specdec_core.interface import ModelError, TargetInfo
from specdec_drafters.common.draft_heads import check_sizes, head_of, write_for_vllm
from specdec_drafters.common.speculators import Checkpoint, open_checkpoint
from specdec_drafters.common.weights_file import target_features
from specdec_drafters.eagle3.model import PARALLEL_TYPE, TYPE, TYPES, Eagle3Head, Eagle3SpeculatorConfig

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
    nested = given.get("eagle_config") or {}
    if not isinstance(nested, Mapping):
        raise ModelError(f"drafter 'eagle3': {checkpoint.model}: eagle_config is not a mapping, but {nested!r}.")
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
    shape = config.checked(features.hidden_size, model)
    check_sizes(config, shape.transformer_layer_config.get("vocab_size"), shape.target_size, target, model, TYPE)
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
    shape = config.checked(0, model)
    if "fc.weight" in checkpoint.tensors and not shape.target_size:
        size = checkpoint.tensors["fc.weight"].shape[-1] // shape.states
        shape = shape.model_copy(update={"target_hidden_size": size})
    layer = {**shape.transformer_layer_config, **({"fc_norm": True} if shape.fc_norm else {})}
    if shape.states != 3:
        layer["num_aux_hidden_states"] = shape.states
    flags = {"norm_before_residual", "norm_before_fc", "fc_norm", "norm_output", "draft_vocab_size"}
    keys = shape.model_dump(include=flags) | {"transformer_layer_config": layer}
    write_for_vllm(folder, checkpoint, config, keys, lambda: Eagle3Head(shape))
    parallel = {"parallel_drafting": True} if shape.mask_token_id is not None else {}
    return {"num_speculative_tokens": config.drafted, **parallel}


def config_of(head: Eagle3Head, verifier: Mapping[str, Any], **extra: Any) -> dict[str, Any]:
    """Return the `config.json` of a head.

    Args:
        head: The head.
        verifier: `name_or_path` and `architectures` of the target.
        extra: Further keys.
    """
    kind = head.shape.speculators_model_type
    method = {"proposal_type": "greedy", "speculative_tokens": 5, "verifier_accept_k": 1, "accept_tolerance": 0.0}
    return {
        **head.shape.model_dump(exclude={"specdec"}, exclude_none=True),
        "architectures": ["PEagleSpeculator" if kind == PARALLEL_TYPE else "Eagle3Speculator"],
        "speculators_version": "0.9.0",
        "speculators_config": {
            "algorithm": kind,
            "default_proposal_method": "greedy",
            "proposal_methods": [method],
            "verifier": dict(verifier),
        },
        "embed_requires_grad": False,
        "tie_word_embeddings": False,
        **extra,
    }
