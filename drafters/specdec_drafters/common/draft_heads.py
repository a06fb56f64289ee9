"""Shared parts of draft heads of the speculators package that read the target's hidden states."""

import inspect
from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from transformers import AutoConfig
from transformers.masking_utils import create_causal_mask, create_sliding_window_causal_mask
from transformers.modeling_outputs import CausalLMOutput

from specdec_core.interface import ConfigError, ModelError, TargetFeatures, TargetInfo
from specdec_drafters.common.speculators import Checkpoint, SpeculatorConfig, open_checkpoint, write_checkpoint
from specdec_drafters.common.weights_file import require_sizes, target_features

_CACHE = "cache" if "cache" in inspect.signature(create_causal_mask).parameters else "past_key_values"
"""What transformers calls the argument that takes the cache: `cache` since 5.24."""
H = TypeVar("H", bound=nn.Module)
V = TypeVar("V", bound="DraftVocabularyHead")
_OF_TARGET = ("verifier_lm_head.weight", "verifier_norm.weight")
"""Weights of the target that training needs and that some checkpoints hold."""


class DraftHead(nn.Module):
    """A head that drafts tokens.

    Attributes:
        lm_head: The output embedding.
    """

    lm_head: nn.Linear

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.lm_head.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """The data type of the weights."""
        return self.lm_head.weight.dtype

    def over_vocabulary(self, logits: Tensor) -> Tensor:
        """Return logits `[..., V]` from those of the tokens that the head drafts."""
        return logits


class DraftVocabularyHead(DraftHead):
    """A head that drafts some of the target's tokens, in the form of the speculators package.

    Attributes:
        d2t: `[draft_vocab_size]` int64, the offset of each draft token's id in the target's vocabulary.
        t2d: `[V]` bool, whether the head can draft a token.
    """

    d2t: Tensor
    t2d: Tensor

    def add_draft_vocabulary(self, size: int, vocab_size: int) -> None:
        """Add `d2t` and `t2d`, which hold the first tokens until weights are loaded.

        Args:
            size: Number of tokens that the head can draft.
            vocab_size: V.
        """
        self.register_buffer("d2t", torch.zeros(size, dtype=torch.long))
        self.register_buffer("t2d", torch.arange(vocab_size) < size)

    @property
    def token_ids(self) -> Tensor:
        """The target's token id of each token of the draft vocabulary, `[draft_vocab_size]` int64."""
        return torch.arange(len(self.d2t), device=self.d2t.device) + self.d2t

    def over_vocabulary(self, logits: Tensor) -> Tensor:
        """Return logits `[..., V]` from those of the draft vocabulary: minus infinity for all other tokens."""
        full = logits.new_full((*logits.shape[:-1], len(self.t2d)), float("-inf"))
        return full.index_copy_(-1, self.token_ids, logits)


def check_layers(layers: Sequence[int], count: int | None, key: str, model: str, drafter: str) -> None:
    """Check the layers of the target that a head reads.

    Args:
        layers: The layers, numbered as in `hidden_states` of transformers.
        count: Number of layers of the target; None where it is not loaded.
        key: The key of config.json that names them.
        model: Name of the head, for the error message.
        drafter: Name of the drafter, for the error message.

    Raises:
        ModelError: The target does not have them, or one is read twice.
    """
    allowed = range((max(layers, default=0) if count is None else count) + 1)
    if not layers or len(set(layers)) < len(layers) or not set(layers) <= set(allowed):
        raise ModelError(
            f"drafter {drafter!r}: {model} reads the layers {list(layers)}; a target with {count} layers has "
            f"0 to {len(allowed) - 1}, each of which may be read once. Choose a head for this target, or name "
            f"the layers in {key} of its config.json."
        )


def check_sizes(
    config: SpeculatorConfig, vocab_size: int | None, state_size: int, target: TargetInfo, model: str, drafter: str
) -> None:
    """Check that a head is for a target of these sizes.

    Args:
        config: Its config.
        vocab_size: Size of the vocabulary that it drafts for.
        state_size: Size of the hidden states that it reads.
        target: The target.
        model: Name of the head, for the error message.
        drafter: Name of the drafter, for the error message.

    Raises:
        ModelError: It is for another target.
    """
    sizes = {
        "a vocabulary": (vocab_size, target.vocab_size),
        "hidden states": (state_size, target_features(target, drafter).hidden_size),
    }
    require_sizes(sizes, model, drafter, f"It was trained for {config.verifier or 'another target'}.")


def head_of(
    make: Callable[[], V], checkpoint: Checkpoint, draft_vocab_size: int, target: TargetInfo, drafter: str
) -> V:
    """Return a head with the weights of a checkpoint, for inference beside the target.

    Args:
        make: Makes the head, with any weights.
        checkpoint: The checkpoint.
        draft_vocab_size: Number of tokens that it can draft.
        target: The target, whose embeddings replace those that the checkpoint lacks.
        drafter: Name of the drafter, for error messages.

    Raises:
        ModelError: The weights do not fit.
    """
    features = target_features(target, drafter)
    with torch.random.fork_rng(devices=[]):  # initial values are drawn from the global generator
        head = make()
    tensors = _with_target_weights(checkpoint, draft_vocab_size, target, features)
    _load_weights(head, tensors, checkpoint.model, drafter)
    return beside(head, features.output_embeddings)


def _with_target_weights(
    checkpoint: Checkpoint, draft_vocab_size: int, target: TargetInfo, features: TargetFeatures
) -> dict[str, Tensor]:
    """Return the weights of a checkpoint, with the target's embeddings for those that it lacks."""
    tensors = {name: tensor for name, tensor in checkpoint.tensors.items() if name not in _OF_TARGET}
    if "embed_tokens.weight" not in tensors:
        tensors["embed_tokens.weight"] = features.input_embeddings[: target.vocab_size]
    if draft_vocab_size == target.vocab_size:
        tensors = {name: tensor for name, tensor in tensors.items() if name not in ("d2t", "t2d")}
        tensors.setdefault("lm_head.weight", features.output_embeddings[: target.vocab_size])
    elif "d2t" in tensors and "lm_head.weight" not in tensors:
        ids = torch.arange(draft_vocab_size) + tensors["d2t"]
        tensors["lm_head.weight"] = features.output_embeddings[ids.to(features.output_embeddings.device)]
    return tensors


def write_for_vllm(
    folder: Path, checkpoint: Checkpoint, config: SpeculatorConfig, keys: Mapping[str, Any], make: Callable[[], V]
) -> None:
    """Write a head into a folder that vLLM loads, and read it back.

    vLLM knows no defaults of the head's layers, such as `hidden_act`: all keys of their config are written.

    Args:
        folder: An empty folder.
        checkpoint: The head.
        config: Its config.
        keys: Keys of config.json that vLLM reads, and that a checkpoint may leave out: vLLM's defaults are others.
            `transformer_layer_config` is one of them.
        make: Makes the head.

    Raises:
        ConfigError: vLLM cannot complete the head.
        ModelError: Its weights are not those that its config asks for.
    """
    drafter, size = config.speculators_model_type, keys["draft_vocab_size"]
    if "lm_head.weight" not in checkpoint.tensors and size != config.transformer_layer_config.get("vocab_size"):
        raise ConfigError(
            f"drafter {drafter!r}: {checkpoint.model} has no lm_head.weight for its draft vocabulary of {size} "
            "tokens, and vLLM would take the target's, which has more. Choose a checkpoint with it."
        )
    layer = keys["transformer_layer_config"]
    defaults = {key: value for key, value in AutoConfig.for_model(**layer).to_dict().items() if value is not None}
    whole = {"transformer_layer_config": {**defaults, **layer}}
    write_checkpoint(folder, {**checkpoint.config, **keys, **whole}, checkpoint.tensors)
    written, _ = open_checkpoint(type(config), str(folder), None, drafter)
    with torch.device("meta"):
        own = make().state_dict()
    optional = ("embed_tokens.weight", "lm_head.weight", "d2t", "t2d")
    tensors = {name: tensor for name, tensor in written.tensors.items() if name not in _OF_TARGET}
    check_weights(tensors, own, optional, checkpoint.model, drafter)


def check_weights(
    tensors: Mapping[str, Tensor], own: Mapping[str, Tensor], optional: Collection[str], model: str, drafter: str
) -> None:
    """Check that a head can load weights.

    Args:
        tensors: The weights, by name.
        own: The head's state, by name.
        optional: Names that may be missing.
        model: Name of the head, for the error message.
        drafter: Name of the drafter, for the error message.

    Raises:
        ModelError: They are not all there, not finite, or of another shape.
    """
    missing = sorted(own.keys() - tensors.keys() - set(optional))
    unknown = sorted(tensors.keys() - own.keys())
    if missing or unknown:
        lacks, has = (", ".join(names) or "none" for names in (missing, unknown))
        raise ModelError(
            f"drafter {drafter!r}: {model} lacks the weights {lacks} and has {has}, which its "
            "config.json does not ask for. Copy the checkpoint again, or use the specdec that supports it."
        )
    for name, tensor in tensors.items():
        if tensor.shape != own[name].shape:
            raise ModelError(
                f"drafter {drafter!r}: {model}: the weight {name} is {tuple(tensor.shape)}, but config.json asks "
                f"for {tuple(own[name].shape)}."
            )
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise ModelError(f"drafter {drafter!r}: {model}: the weight {name} has values that are not finite.")


def _load_weights(head: DraftVocabularyHead, tensors: Mapping[str, Tensor], model: str, drafter: str) -> None:
    """Load the weights of a head with a draft vocabulary.

    They are not copied, so that those of the target stay in its memory.

    Raises:
        ModelError: They are not all there, not finite, of another shape, or map the vocabulary to no tokens.
    """
    own = head.state_dict()
    optional = {"t2d"} if "d2t" in tensors else {"t2d", "d2t"} if head.t2d.all() else set()
    check_weights(tensors, own, optional, model, drafter)
    head.load_state_dict(dict(tensors), strict=False, assign=True)
    ids = head.token_ids
    if len(set(ids.tolist())) < len(ids) or int(ids.min()) < 0 or int(ids.max()) >= len(head.t2d):
        raise ModelError(
            f"drafter {drafter!r}: {model}: d2t does not map the draft vocabulary to different tokens of the "
            "target. It holds the offset of each draft token's id in the target's vocabulary."
        )


def beside(head: H, embeddings: Tensor) -> H:
    """Return a head for inference, on the device of the target's output embeddings and with their data type.

    Buffers keep theirs, as in models of transformers: in bfloat16, rotary frequencies would be off by up to 0.2%.
    """
    head.to(embeddings.device).eval().requires_grad_(requires_grad=False)
    for weight in head.parameters():
        weight.data = weight.data.to(embeddings.dtype)
    return head


FULL, SLIDING = "full_attention", "sliding_attention"
_MASKS = {FULL: create_causal_mask, SLIDING: create_sliding_window_causal_mask}


class StateHead(DraftHead):
    """A head whose entry of token x_(t + 1) reads its embedding and a state of token x_t, and predicts x_(t + 2).

    The state is `combine` of the target's, where the target has read x_t, else the head's own output for x_t.

    Attributes:
        config: The config of its layers, in the form of transformers.
        mask_hidden: The target's states that are read beside a mask token, for a head that drafts in one pass.
    """

    config: Any
    embed_tokens: nn.Embedding
    rotary_emb: nn.Module

    def __init__(self) -> None:
        super().__init__()
        self.mask_hidden: nn.Parameter | None = None

    def combine(self, states: Tensor) -> Tensor:
        """Return the state that the head reads, `[..., D]`, from the target's, those of all layers in turn."""
        return states

    @abstractmethod
    def run(
        self, embedded: Tensor, states: Tensor, masks: Mapping[str, Any], **keywords: Any
    ) -> tuple[Tensor, Tensor]:
        """Run the layers.

        Args:
            embedded: `[B, T, D]`, the embeddings.
            states: `[B, T, D]`, beside them.
            masks: The attention mask of each kind of attention.
            keywords: Further arguments of a layer: positions, rotary embeddings and cache.

        Returns:
            What `read` does.
        """

    def forward(
        self,
        input_ids: Tensor,
        states: Tensor,
        past_key_values: Any = None,
        attention_mask: Tensor | Mapping[str, Tensor] | None = None,
        position_ids: Tensor | None = None,
        logits_to_keep: int = 0,
        **_: Any,
    ) -> CausalLMOutput:
        """Read tokens, each with a state.

        Returns:
            `logits` `[B, K, V]`, minus infinity for tokens that the head does not draft; and as `hidden_states`
            one tensor, `[B, T, D]`: the state of each token, which the next drafted token reads.

        Args:
            input_ids: `[B, T]` int64.
            states: `[B, T, D]`, of the token before each.
            past_key_values: The cache.
            attention_mask: `[B, 1, T, S]`, one for all layers or one for each kind of attention; causal if None.
            position_ids: `[B, T]` int64; those after the cached tokens if None.
            logits_to_keep: Number of last tokens whose logits are needed; 0 for all.
        """
        carried, normed = self.read(input_ids, states, past_key_values, attention_mask, position_ids)
        logits = self.lm_head(normed[:, -logits_to_keep:])
        return CausalLMOutput(logits=self.over_vocabulary(logits), hidden_states=(carried,))

    def read(
        self,
        input_ids: Tensor,
        states: Tensor,
        past_key_values: Any = None,
        attention_mask: Tensor | Mapping[str, Tensor] | None = None,
        position_ids: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the state that the next drafted token reads, and the input of `lm_head`, `[B, T, D]` both."""
        embedded = self.embed_tokens(input_ids)
        if position_ids is None:
            begin = 0 if past_key_values is None else past_key_values.get_seq_length()
            position_ids = begin + torch.arange(embedded.shape[1], device=embedded.device)[None]
        return self.run(
            embedded,
            states,
            self._masks(embedded, attention_mask, past_key_values, position_ids),
            position_embeddings=self.rotary_emb(embedded, position_ids),
            position_ids=position_ids,
            **{_CACHE: past_key_values},
        )

    def kind(self, index: int) -> str:
        """Return the kind of attention of a layer."""
        kinds = getattr(self.config, "layer_types", None)
        return kinds[index] if kinds else FULL

    def _masks(self, embedded: Tensor, mask: Any, cache: Any, position_ids: Tensor) -> Mapping[str, Any]:
        if isinstance(mask, Mapping):
            return mask
        kinds = {self.kind(index) for index in range(self.config.num_hidden_layers)}
        if mask is not None:
            return dict.fromkeys(kinds, mask)
        given = {"inputs_embeds": embedded, _CACHE: cache, "position_ids": position_ids}
        return {kind: _MASKS[kind](config=self.config, attention_mask=None, **given) for kind in kinds}
