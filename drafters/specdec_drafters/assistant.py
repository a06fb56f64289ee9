"""The assistant drafter: a small model that attends to the target's keys and values, from one position."""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, __version__
from transformers.models.gemma4.modeling_gemma4 import apply_rotary_pos_emb

from specdec_core.interface import (
    LAST_HIDDEN,
    Drafter,
    DraftRequest,
    DraftSession,
    ModelError,
    Proposal,
    SessionInfo,
    TargetInfo,
)
from specdec_core.models import model_folder, moved, uploaded
from specdec_drafters.common.context import ContextSession, KeysValues
from specdec_drafters.common.draft_heads import SLIDING, beside, check_weights
from specdec_drafters.common.draft_model_loading import target_model
from specdec_drafters.common.speculators import checkpoint_file, read_json, read_weights
from specdec_drafters.settings import AssistantConfig

ARCHITECTURES = ("gemma4_assistant", "gemma4_unified_assistant")
"""Assistants, by `model_type`."""


class Assistant:
    """An assistant, and what it uses of its target, which is shared and not changed.

    Its layers have queries only. A layer attends to the keys and values of the target's last layer of its kind of
    attention that has some. They are made again from what that layer reads, since the target's own cache also
    holds drafts.

    Args:
        model: The assistant, a model of transformers.
        target: The target, a model of transformers.

    Attributes:
        model: The assistant.
        layers: The numbers of these layers of the target, by the kind of attention.

    Raises:
        AttributeError: The target has other layers than those of Gemma 4.
    """

    def __init__(self, model: Any, target: Any) -> None:
        self.model = model
        decoder = target.get_decoder()
        self._embed, self._rotary = target.get_input_embeddings(), copy.deepcopy(decoder.rotary_emb)
        attentions = [(layer.self_attn, layer.input_layernorm) for layer in decoder.layers]
        last = {one.layer_type: n for n, (one, _) in enumerate(attentions) if not one.is_kv_shared_layer}
        self.layers = {kind: last[kind] for kind in sorted(set(model.config.get_text_config().layer_types))}
        self._sources = {kind: attentions[n] for kind, n in self.layers.items()}

    def context(self, states: Sequence[Tensor], positions: Tensor) -> list[KeysValues]:
        """Return the target's keys and values, each `[N, H, head_dim]`, for each of `layers`.

        Args:
            states: What that layer of the target reads of some tokens, `[N, D]`.
            positions: `[N]` int64.
        """
        made = []
        for (kind, (attention, norm)), read in zip(self._sources.items(), states, strict=True):
            normed = norm(read[None])
            keys = attention.k_proj(normed).unflatten(-1, (-1, attention.head_dim))
            values = keys
            if attention.v_proj is not None:
                values = attention.v_proj(normed).unflatten(-1, (-1, attention.head_dim))
            cosines, sines = self._rotary(normed, positions[None], kind)
            keys = apply_rotary_pos_emb(attention.k_norm(keys), cosines, sines, unsqueeze_dim=2)
            made.append((keys[0], attention.v_norm(values)[0]))
        return made

    def draft(
        self, tokens: Tensor, states: Tensor, lengths: Tensor, context: Sequence[KeysValues]
    ) -> tuple[Tensor, Tensor]:
        """Read a token of each row.

        Args:
            tokens: `[B]` int64, the last committed or drafted ones.
            states: `[B, D]`, beside each: the target's, or the assistant's own, that it was predicted from.
            lengths: `[B]` int64, the number of committed tokens without the last, whose position it is. All tokens
                that are read have that position.
            context: Keys and values of these tokens for each of `layers`, each `[B, H, S, head_dim]`; the slots of
                a row from its length on are not read.

        Returns:
            Logits `[B, V]` of the next token, minus infinity where none is computed, and the state that it is
            predicted from, `[B, D]`.
        """
        model = self.model
        both = torch.cat([moved(one, model.device, model.dtype) for one in (self._embed(tokens), states)], dim=-1)
        masks = {kind: self._mask(kind, lengths, context[0][0].shape[2]) for kind in self.layers}
        output = model.model(
            inputs_embeds=model.pre_projection(both)[:, None],
            attention_mask=masks,
            position_ids=lengths[:, None],
            shared_kv_states=dict(zip(self.layers, context, strict=True)),
            use_cache=False,
        ).last_hidden_state
        return self._logits(output[:, 0]), model.post_projection(output)[:, 0]

    def _logits(self, states: Tensor) -> Tensor:
        """Return logits `[B, V]`: of the tokens of the likeliest clusters, where the vocabulary is in clusters.

        transformers gives the others the lowest logit of the batch less one, with which rows depend on each other.
        """
        model, clusters = self.model, self.model.masked_embedding
        logits: Tensor
        if clusters is None:
            logits = model.lm_head(states)
            return logits
        chosen = clusters.centroids(states).topk(clusters.centroid_intermediate_top_k).indices
        ids = clusters.token_ordering.view(clusters.num_centroids, -1)[chosen].flatten(1)
        scores = (model.lm_head.weight[ids] @ states[..., None])[..., 0]
        logits = scores.new_full((len(ids), model.vocab_size), float("-inf"))
        return logits.scatter_(1, ids, scores)

    def _mask(self, kind: str, lengths: Tensor, slots: int) -> Tensor:
        """Return the slots that each row attends to, `[B, 1, 1, slots]` bool."""
        slot, end = torch.arange(slots, device=lengths.device), lengths[:, None]
        seen = slot < end
        if kind == SLIDING:  # as many as transformers has: one more than the window
            seen &= slot >= end - self.model.config.get_text_config().sliding_window - 1
        return seen[:, None, None]


def read_assistant(name: str, target: TargetInfo) -> Assistant:
    """Read an assistant for a target.

    Args:
        name: A folder or a hub name.
        target: The target.

    Returns:
        The assistant on the target's device and in its data type.

    Raises:
        ModelError: It is not there, is none, is not complete, or does not fit the target; the target is not
            loaded; or this version of transformers cannot build it.
    """
    own = target_model(target, "assistant").model
    folder = model_folder(name, target.folder)
    keys = read_json(checkpoint_file(name, folder, "config.json"))
    if keys.get("model_type") not in ARCHITECTURES:
        raise ModelError(
            f"drafter 'assistant': {name} is a model of type {keys.get('model_type')!r}. Supported: "
            f"{', '.join(ARCHITECTURES)}, such as google/gemma-4-E2B-it-assistant. Other models draft as "
            "`transformer`."
        )
    try:
        with torch.random.fork_rng(devices=[]):  # initial values are drawn from the global generator
            config = AutoConfig.for_model(**keys)
            model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    except Exception as error:  # code of transformers
        raise ModelError(
            f"drafter 'assistant': transformers {__version__} cannot build {name}: {error}. Version 5.23.0 builds "
            "no assistants of Gemma 4; 5.22.2 and 5.24.0 do."
        ) from error
    tensors = read_weights(name, folder)
    tied = {"lm_head.weight"} if config.tie_word_embeddings else ()
    check_weights(tensors, model.state_dict(), tied, name, "assistant")
    model.load_state_dict(tensors, strict=False, assign=True)
    model.tie_weights()
    model = beside(model, torch.empty(0, device=target.device, dtype=own.dtype))
    return _fitted(model, own, name, target)


def _fitted(model: Any, own: Any, name: str, target: TargetInfo) -> Assistant:
    """Return an assistant that was tried with its target.

    Raises:
        ModelError: It is for another target.
    """
    sizes = model.config.backbone_hidden_size, model.vocab_size
    try:
        assistant = Assistant(model, own)
        with torch.inference_mode():
            first = torch.zeros(1, dtype=torch.long, device=target.device)
            states = [first.new_zeros(1, sizes[0], dtype=own.dtype)] * len(assistant.layers)
            context = [
                (keys.transpose(0, 1)[None], values.transpose(0, 1)[None])
                for keys, values in assistant.context(states, first)
            ]
            logits, _ = assistant.draft(first, states[0], first + 1, context)
        fits = logits.shape == (1, target.vocab_size)
    except (AttributeError, KeyError, RuntimeError, ValueError):
        fits = False
    if not fits:
        raise ModelError(
            f"drafter 'assistant': {name} reads hidden states of size {sizes[0]}, and keys and values, of a "
            f"Gemma 4 model with a vocabulary of {sizes[1]}; this target is a {type(own).__name__} with "
            f"{target.vocab_size} logits. Choose the assistant of this target, or another drafter."
        )
    return assistant


class AssistantDrafter(Drafter):
    """Drafts with an assistant of Gemma 4.

    After x_1 ... x_n the target has read all tokens but x_n. The assistant reads x_n, as the target embeds it, and
    the target's last hidden state of x_(n - 1); then each token that it drafts, and its own state of the one
    before. It attends to the target's keys and values of x_1 ... x_(n - 1), and stays at the position of x_n, so
    that it has no cache of its own.

    q is its distribution over the target's vocabulary, after the run's draft sampling settings.

    References:
        `Gemma4AssistantForCausalLM` and `SinglePositionMultiTokenCandidateGenerator` of transformers. After a
        rejection, that reads the key of the first rejected token as well.
    """

    def __init__(self, config: AssistantConfig, target: TargetInfo) -> None:
        super().__init__(config, target)
        self.assistant = read_assistant(config.model, target)
        self.hidden_layers = (*self.assistant.layers.values(), LAST_HIDDEN)

    def open(self, session: SessionInfo) -> DraftSession:
        """Start a batch with an empty cache."""
        return _AssistantSession(self, session)


class _AssistantSession(ContextSession):
    """One batch."""

    def __init__(self, drafter: AssistantDrafter, session: SessionInfo) -> None:
        like = drafter.assistant.model.pre_projection.weight
        self._assistant = drafter.assistant
        layers = drafter.assistant.layers.values()
        super().__init__(self._assistant.context, [*layers], session.batch_size, session.capacity, like)

    @torch.inference_mode()
    def propose(self, request: DraftRequest) -> Proposal:
        if not request.wants_more():
            return request.proposal()
        context = self._read(request)
        last = [row[-1] for row in request.tokens]
        # A row without a draft may attend to nothing; what it has in its first slot does not matter.
        tokens, lengths = uploaded([last, [max(kept, 1) for kept in self._kept]], self._like.device)
        states = request.hidden_states[LAST_HIDDEN]
        while request.wants_more():
            logits, states = self._assistant.draft(tokens, states, lengths, context)
            tokens = request.sample(logits)
        return request.proposal()
