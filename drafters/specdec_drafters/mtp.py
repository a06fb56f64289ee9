"""The mtp drafter: a decoder layer that reads the target's last hidden states and drafts token by token."""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn
from transformers import AutoConfig, __version__, modeling_layers
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer, Qwen3RMSNorm, Qwen3RotaryEmbedding

from specdec_core.interface import ConfigError, ModelError, TargetInfo
from specdec_core.models import model_folder, without_progress_bar
from specdec_core.registry import is_shipped
from specdec_drafters.common.draft_heads import FULL, SLIDING, StateHead, beside, check_sizes, check_weights
from specdec_drafters.common.draft_model_loading import target_model
from specdec_drafters.common.speculators import SpeculatorConfig, checkpoint_file, open_checkpoint, read_json
from specdec_drafters.common.weights_file import target_features
from specdec_drafters.eagle3.drafter import Eagle3Drafter

ARCHITECTURES = ("qwen3",)
"""Architectures of the layer, by `model_type`."""
NORMS = ("hidden_layernorm", "token_layernorm", "final_layernorm")
"""The norms of the state that is read, of the embedding, and of the layer's output."""


class MtpHead(StateHead):
    """An MTP layer with the target's embeddings.

    Parameters have the names that they have in a checkpoint. The embeddings are on the meta device until they are
    loaded, since they are the target's own.

    Args:
        layer: Keys of the layer's config: `hidden_size` D, `vocab_size` V and so on. It has full attention.

    References:
        Gloeckle et al. 2024 (arXiv 2404.19737); DeepSeek-AI 2024, section 2.2 (arXiv 2412.19437); Cui et al. 2025,
        one layer for all depths (arXiv 2509.18362). The modules are those of speculators 0.9.
    """

    def __init__(self, layer: Mapping[str, Any]) -> None:
        super().__init__()
        self.config = AutoConfig.for_model(**layer)
        self.config._attn_implementation = "sdpa"
        size, vocab = self.config.hidden_size, self.config.vocab_size
        block: Any = Qwen3DecoderLayer(self.config, 0)
        for name in NORMS:
            setattr(block, name, Qwen3RMSNorm(size, eps=self.config.rms_norm_eps))
        block.input_proj = nn.Linear(2 * size, size, bias=False)
        self.mtp_layers = nn.ModuleList([block])
        self.embed_tokens = nn.Embedding(vocab, size, device="meta")
        self.lm_head = nn.Linear(size, vocab, bias=False, device="meta")
        self.rotary_emb = Qwen3RotaryEmbedding(self.config)

    def run(
        self, embedded: Tensor, states: Tensor, masks: Mapping[str, Any], **keywords: Any
    ) -> tuple[Tensor, Tensor]:
        """See `StateHead.run`."""
        block: Any = self.mtp_layers[0]
        both = torch.cat([block.token_layernorm(embedded), block.hidden_layernorm(states)], dim=-1)
        output = block(block.input_proj(both), attention_mask=masks[FULL], **keywords)
        state = block.final_layernorm(output)
        return state, state


TYPE = "mtp"
"""The `speculators_model_type`."""
TARGET = "target"
"""As the name of a checkpoint, this means the target's own."""
_HYBRID = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")
"""Architectures that the package also takes."""
_OF_TARGET = ("embed_tokens.weight", "lm_head.weight")
"""Weights that are the target's. The package does not save them, and ignores those of a checkpoint."""
_UNUSED = (*_OF_TARGET, "verifier_lm_head.weight", "d2t", "t2d")
"""Weights that some checkpoints hold and that drafting does not need."""


class MtpSpeculatorConfig(SpeculatorConfig):
    """The keys of an `mtp` config, whose `transformer_layer_config` is that of the target it was trained for."""

    num_nextn_predict_layers: int = Field(default=1, ge=1, le=1)

    def attending_layer(self, model: str) -> Mapping[str, Any]:
        """Return the config of the layer, which has full attention whatever the layers of the target have.

        Raises:
            ModelError: It is of an architecture that is not supported.
        """
        if (kind := self.transformer_layer_config.get("model_type")) in _HYBRID:
            raise ModelError(
                f"drafter 'mtp': {model} has a layer of the model_type {kind!r}, of which only those of "
                f"{', '.join(ARCHITECTURES)} are built. Draft with the layer in the target's checkpoint: `model: "
                f"{TARGET}`."
            )
        attention = {"layer_types": ["full_attention"], "use_sliding_window": False, "sliding_window": None}
        # The package's default is one that it cannot build.
        layer = self.layer(model, ARCHITECTURES, default="qwen2")
        return {**layer, **attention, "num_hidden_layers": 1}

    def last_layer(self, count: int | None, model: str) -> int:
        """Return the layer of the target that is read: its last.

        Args:
            count: Number of the target's layers; None if it is not loaded.
            model: Name of the checkpoint, for error messages.

        Raises:
            ModelError: It was trained for a target with another number of layers.
        """
        theirs: int = AutoConfig.for_model(
            **self.transformer_layer_config | {"layer_types": None}
        ).num_hidden_layers
        if count not in (None, theirs):
            raise ModelError(
                f"drafter 'mtp': {model} reads the output of layer {theirs}, the last of its target; this target "
                f"has {count} layers. It was trained for {self.verifier or 'another target'}."
            )
        return theirs


def read_mtp(model: str, target: TargetInfo) -> tuple[MtpHead, tuple[int, ...]]:
    """Read an MTP layer for a target.

    Args:
        model: A folder or a hub name.
        target: The target, whose embeddings the layer shares.

    Returns:
        The layer on the device of the target's output embedding and in its data type; and the layer of the target
        that it reads, the last.

    Raises:
        ModelError: It is not there, is not complete, is of another type, or does not fit the target.
    """
    features = target_features(target, TYPE)
    checkpoint, config = open_checkpoint(MtpSpeculatorConfig, model, target, TYPE)
    layer = config.attending_layer(model)
    vocab = target.vocab_size
    embedding = features.input_embeddings[:vocab]
    if embedding.shape != (vocab, features.hidden_size):
        raise ModelError(
            f"drafter 'mtp': this target embeds {embedding.shape[0]} tokens in {embedding.shape[1]} numbers, but "
            f"its hidden states are {features.hidden_size} and its logits {vocab}; an MTP layer reads both alike. "
            "Choose another drafter."
        )
    with torch.random.fork_rng(devices=[]):  # initial values are drawn from the global generator
        head = MtpHead(layer)
    check_sizes(config, head.config.vocab_size, head.config.hidden_size, target, model, TYPE)
    own = {name: weight for name, weight in head.state_dict().items() if name not in _OF_TARGET}
    tensors = {name: tensor for name, tensor in checkpoint.tensors.items() if name not in _UNUSED}
    check_weights(tensors, own, (), model, TYPE)
    shared = dict(zip(_OF_TARGET, (embedding, features.output_embeddings[:vocab]), strict=True))
    # Assigned, not copied: the target's embeddings are in memory once.
    head.load_state_dict({**tensors, **shared}, assign=True)
    layers = (config.last_layer(features.num_layers, model),)
    return beside(head, features.output_embeddings), layers


class MtpModel(modeling_layers.MtpModel):  # type: ignore[misc]  # transformers is not typed
    """The layers of a checkpoint, complete or not at all.

    transformers finds the names that they have in checkpoints by the name of this class.
    """

    @classmethod
    def is_custom_code(cls) -> bool:
        """Have transformers rename weights as for its own classes."""
        return False

    def tie_with_main_model(self, main_model: Any) -> None:
        """Share the target's embeddings only once the layer is read, which may have its own.

        Weights are read into modules in place, and so would overwrite those of the target.
        """
        read = self._modules.get("embed_tokens")
        super().tie_with_main_model(main_model)
        if read is None:
            vocab, size = main_model.get_input_embeddings().weight.shape
            self.embed_tokens = nn.Embedding(vocab, size, device="meta")
            del self.shared_head
        elif not read.weight.is_meta:
            self.embed_tokens = read

    def _adjust_missing_and_unexpected_keys(self, loading_info: Any) -> None:
        super()._adjust_missing_and_unexpected_keys(loading_info)
        missing, unknown = sorted(loading_info.missing_keys), sorted(loading_info.unexpected_keys)
        others = [name for name, *_ in loading_info.mismatched_keys]
        if not unknown and len(missing) == len(self.layers.state_dict()):
            raise ValueError("it has none, as copies that save_pretrained() wrote")
        if missing or unknown or others:
            raise ValueError(f"missing are {missing[:3]}, unknown {unknown[:3]}, of another shape {others[:3]}")


class TargetMtpHead(StateHead):
    """The MTP layer of a target's own checkpoint, with the target's embeddings, which are in memory once.

    Args:
        layers: What transformers read; it has one layer, and the target's embeddings if it has none of its own.
        target: The target.

    References:
        `MtpModel` and `MTPCandidateGenerator` of transformers. They read the target's state after its final norm,
        as vLLM does. Qwen3.5 was trained so: more drafts are accepted than with the state before it
        (llama.cpp #24025, LightLLM #1402).
    """

    def __init__(self, layers: Any, target: Any) -> None:
        super().__init__()
        self.config = layers.config
        self.config._attn_implementation = "sdpa"
        self.layer = layers.layers[0]
        self.rotary_emb = copy.deepcopy(layers.rotary_emb)
        self.target_norm = copy.deepcopy(target.get_decoder().norm)
        read = layers.embed_tokens.weight.detach()
        output = target.get_output_embeddings().weight.detach()
        self.embed_tokens = nn.Embedding(read.shape[0], read.shape[1], device="meta")
        self.lm_head = nn.Linear(output.shape[1], output.shape[0], bias=False, device="meta")
        # Other parameters over the same memory: those of the target may be trained.
        self.embed_tokens.weight = nn.Parameter(read, requires_grad=False)
        self.lm_head.weight = nn.Parameter(output, requires_grad=False)

    def combine(self, states: Tensor) -> Tensor:
        """See `StateHead.combine`: the target's after its final norm."""
        normed: Tensor = self.target_norm(states)
        return normed

    def run(
        self, embedded: Tensor, states: Tensor, masks: Mapping[str, Any], **keywords: Any
    ) -> tuple[Tensor, Tensor]:
        """See `StateHead.run`."""
        state = self.layer(embedded, states, attention_mask=masks[self.kind(0)], **keywords)
        return state, state


_COUNTS = ("num_mtp_layers", "mtp_num_hidden_layers", "num_nextn_predict_layers")
"""Keys of the number of MTP layers in the configs of targets."""


def _count(keys: Mapping[str, Any]) -> int:
    """Return how many MTP layers a target's config has; one where it says nothing."""
    text = keys.get("text_config", keys)
    return next((text[key] for key in _COUNTS if text.get(key) is not None), 1)


def vllm_keys(model: str) -> dict[str, Any]:
    """Return the keys of vLLM's config: where it finds an MTP layer, and a draft token for each layer.

    That is vLLM's own default. The target's checkpoint is not known; `mtp` drafts with one layer.

    Raises:
        ConfigError: vLLM does not read its format.
        ModelError: There is no such checkpoint.
    """
    if model == TARGET:
        return {"model": None, "num_speculative_tokens": 1}
    keys = read_json(checkpoint_file(model, model_folder(model), "config.json"))
    if "speculators_model_type" in keys:
        raise ConfigError(
            f"drafter 'mtp': {model} is in the format of speculators, and vLLM reads MTP layers from checkpoints "
            f"of the target's family. Give `model: {TARGET}` if the target has a layer."
        )
    return {"model": model, "num_speculative_tokens": _count(keys)}


def read_own_mtp(model: str, target: TargetInfo) -> tuple[TargetMtpHead, tuple[int, ...]] | None:
    """Read the MTP layer of a target's checkpoint.

    Args:
        model: `target`, or a folder or a hub name.
        target: The target.

    Returns:
        As `read_mtp`; None if `model` names no checkpoint of the target's family.

    Raises:
        ModelError: There is no such checkpoint, or the target is not loaded; or it has no MTP layer, or several,
            or one that is not complete, has a state, or is not known to transformers.
    """
    if model != TARGET and (target.model is None or is_shipped(model)):
        return None
    own = target_model(target, TYPE).model
    source, folder, revision = model, target.folder, None
    if model == TARGET:
        source, folder, revision = own.config.name_or_path, Path(), getattr(own.config, "_commit_hash", None)
    if not source:
        raise ModelError(
            "drafter 'mtp': this target was made in memory. Name the folder of its checkpoint in `model`."
        )
    path = checkpoint_file(source, model_folder(source, folder), "config.json", revision=revision)
    keys = read_json(path)
    text = keys.get("text_config", keys)
    kinds = {keys.get("model_type"), text.get("model_type")}
    if "speculators_model_type" in keys or own.config.model_type not in kinds:
        return None
    if (count := _count(keys)) != 1:
        raise ModelError(
            f"drafter 'mtp': {source} has {count} MTP layers by its config.json; one is supported, which drafts "
            "all tokens. Choose another drafter."
        )
    described = _described(own)
    embeddings = own.get_output_embeddings().weight
    described.config.name_or_path, described.config.dtype = str(path.parent), embeddings.dtype
    advice = "Name a checkpoint that has one; those of Qwen need transformers 5.20."
    if "quantization_config" in keys | text:
        advice = "This checkpoint is quantized: name the one that it was made from in `model`."
    try:
        # Initial values are drawn from the global generator.
        with torch.random.fork_rng(devices=[]), without_progress_bar():
            layers = MtpModel.from_pretrained(described, device_map={"": embeddings.device})
        head = TargetMtpHead(layers, own)
        if text.get("mtp_use_dedicated_embeddings") and layers.embed_tokens is own.get_input_embeddings():
            raise ValueError("by its config it has embeddings of its own, and the checkpoint has none")
    except Exception as error:  # code of any family
        raise ModelError(
            f"drafter 'mtp': transformers {__version__} cannot read an MTP layer of a {type(own).__name__} from "
            f"{source}: {error}. {advice}"
        ) from error
    return beside(head, embeddings), (len(own.get_decoder().layers),)


def _described(target: Any) -> Any:
    """Return a copy of a target whose config says of its one MTP layer what transformers asks for.

    Raises:
        ModelError: The layer has a state, or what it shares with the target is offloaded.
    """
    shared = target.get_input_embeddings(), target.get_output_embeddings(), target.get_decoder().norm
    if any(one.weight.is_meta for one in shared):
        raise ModelError(
            "drafter 'mtp': the embeddings or the final norm of this target are offloaded, and an MTP layer reads "
            "them. Map them to a device in `device_map`, or choose another drafter."
        )
    described = copy.copy(target)  # shares all modules
    described.config = copy.deepcopy(target.config)
    config = described.config.get_text_config(decoder=True)
    config.num_mtp_layers = 1
    for kind, default in (("layer_types", FULL), ("mlp_layer_types", "sparse")):
        if getattr(config, kind, None) and not getattr(config, f"mtp_{kind}", None):
            setattr(config, f"mtp_{kind}", [default])
    if states := set(getattr(config, "mtp_layer_types", None) or [FULL]) - {FULL, SLIDING}:
        raise ModelError(
            f"drafter 'mtp': by its config, the MTP layer of this target has {', '.join(states)}; only attention "
            "is supported. Choose another drafter."
        )
    last = config.num_hidden_layers
    patterns = [r"^(model\.)?mtp\.", rf"^model\.(language_model\.)?layers\.{last}\."]
    described._keys_to_ignore_on_load_unexpected = patterns
    return described


class MtpDrafter(Eagle3Drafter):
    """Drafts with an MTP layer, of the target's own checkpoint or in the format of the speculators package.

    The layer has entries, and a cache of them, as an EAGLE-3 head does. Each reads one state: that of the target's
    last layer, before its final norm in that format and after it otherwise, and for drafted tokens its own output
    of the token before.

    q is the layer's distribution over the target's vocabulary, after the run's draft sampling settings.

    References:
        DeepSeek-AI 2024, section 2.2 (arXiv 2412.19437); Cui et al. 2025 (arXiv 2509.18362).
    """

    def read(self, model: str, target: TargetInfo) -> tuple[MtpHead | TargetMtpHead, tuple[int, ...]]:
        """Read a checkpoint; return the layer, and the layer of the target that it reads."""
        return read_own_mtp(model, target) or read_mtp(model, target)
