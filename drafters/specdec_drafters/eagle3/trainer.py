"""`specdec train eagle3`: trains an EAGLE-3 head for a target, in the format of the speculators package."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from specdec_core.interface import ConfigError, ModelError
from specdec_core.interface.files import writing_folder
from specdec_core.models import LoadedModel
from specdec_core.registry import is_shipped
from specdec_drafters.common.parallel_draft import unused_token
from specdec_drafters.common.speculators import WEIGHTS, write_checkpoint
from specdec_drafters.eagle3.checkpoint import config_of
from specdec_drafters.eagle3.model import PARALLEL_TYPE, TYPE, Eagle3Head, Eagle3SpeculatorConfig, default_layers
from specdec_drafters.settings import Eagle3TrainerConfig
from specdec_drafters.training.drafts import (
    DraftStep,
    TargetReading,
    draft_scores,
    draft_step,
    drafts_loss,
    target_logits,
)
from specdec_drafters.training.loop import write_curve
from specdec_drafters.training.losses import Scores, tv_share
from specdec_drafters.training.mask_layout import (
    MaskLayout,
    drawn_lengths,
    mask_layout,
    masked_drafts,
    mean_loss,
    spaced,
)
from specdec_drafters.training.rows import Rows, autocast
from specdec_drafters.training.trainer import TargetDistillation, TrainingRun, WeightsTrainer


@torch.no_grad()
def read_target(target: LoadedModel, rows: Rows, layers: Sequence[int], device: torch.device) -> TargetReading:
    """Run the target over training sequences.

    Args:
        target: The target; its encoder, if any, reads the sources.
        rows: The sequences.
        layers: The layers that the head reads.
        device: Where the result goes.
    """
    assert target.features is not None
    rows = rows.to(target.device)
    with target.features.capture_layers(layers) as found:
        logits = target_logits(target, rows)
    states = torch.cat([found[layer].to(device) for layer in layers], dim=-1)
    return TargetReading(rows.to(device), states.float(), logits.float().to(device))


def unrolled(head: Eagle3Head, reading: TargetReading, count: int) -> Iterator[DraftStep]:
    """Draft `count` tokens of the text from every position; yield the depths of the drafts in turn.

    The draft from position t begins with the entry of token t + 1, which reads the target's state of token t. Its
    token at depth s has an entry that reads the text's token there and the head's own state of the depth before.
    That entry sees what it sees in decoding: the entries up to t that read the target's states, and those of its
    own draft.

    References:
        "Training-time test", section 3.2 of arXiv 2503.01840.
    """
    tokens = reading.rows.tokens
    entries, device = tokens.shape[1] - 1, tokens.device
    cache = DynamicCache()
    states = head.combine(reading.states[:, :-1])
    own = torch.eye(entries, dtype=torch.bool, device=device)
    visible = torch.ones_like(own).tril_()
    positions = torch.arange(entries, device=device)
    for depth in range(min(count, entries - 1)):
        read = torch.nn.functional.pad(tokens[:, 1 + depth :], (0, depth))
        states, normed = head.read(read, states, cache, visible[None, None], positions[None] + depth)
        yield draft_step(reading, depth, normed, head.lm_head)
        visible = torch.cat([visible, own], dim=1)


def unrolled_loss(
    head: Eagle3Head, reading: TargetReading, count: int, decay: float, share: float, temperature: float
) -> Tensor:
    """Return the weighted mean loss of all draft tokens; p and q are over the draft vocabulary.

    Args:
        head: The head.
        reading: What the target says.
        count: Length of the drafts.
        decay: Weight of a depth, relative to the one before.
        share: Share of total variation; see `training.losses.distillation`.
        temperature: Temperature of both.
    """
    steps = unrolled(head, reading, count)
    narrow = (replace(step, p_logits=step.p_logits[:, head.token_ids]) for step in steps)
    return drafts_loss(narrow, share, temperature, decay)


def masked(head: Eagle3Head, reading: TargetReading, lengths: Tensor) -> tuple[MaskLayout, Tensor]:
    """Draft from every position at mask tokens, in one pass (P-EAGLE).

    Entry t reads the target's state of token t and token t + 1, and predicts token t + 2. A mask at depth d behind
    it reads `mask_hidden` and the mask token, and predicts token t + 2 + d.

    Args:
        head: A head with a mask token.
        reading: What the target says.
        lengths: `[B, T - 2]` int64, the number of masks behind each entry.

    Returns:
        The layout of the entries and masks; the logits of all predictions, `[N, draft vocabulary]`.

    References:
        Hui et al. 2026 (arXiv 2602.01469).
    """
    assert head.mask_hidden is not None
    assert head.shape.mask_token_id is not None
    tokens = reading.rows.tokens[:, 1:-1]
    mask = reading.rows.mask
    # As in decoding, the first token that the target sampled is read, not drafted.
    layout = mask_layout(tokens, mask[:, 1:-1] & mask[:, 2:], lengths, head.shape.mask_token_id)
    before = head.combine(reading.states[:, : tokens.shape[1]])
    states = torch.cat([before, head.combine(head.mask_hidden).expand(len(before), layout.masks, -1)], dim=1)
    _, normed = head.read(layout.tokens, states, None, layout.visible[:, None], layout.positions)
    return layout, head.lm_head(layout.predictions(normed))


def masked_loss(
    head: Eagle3Head, reading: TargetReading, lengths: Tensor, share: float, temperature: float
) -> Tensor:
    """Return the mean loss of drafts at mask tokens; arguments as `masked` and `unrolled_loss`."""
    layout, logits = masked(head, reading, lengths)
    p_logits = reading.logits[:, 1:-1][layout.wanted][:, head.token_ids]
    return mean_loss(layout, p_logits, logits, share, temperature)


def masked_steps(head: Eagle3Head, reading: TargetReading, count: int) -> Iterator[DraftStep]:
    """Yield the depths of drafts of `count` tokens at mask tokens, from every `count`-th position."""
    tokens = reading.rows.tokens
    shape = tokens[:, 1:-1].shape
    layout, logits = masked(head, reading, spaced(shape, count, tokens.device) * (count - 1))
    p_logits = reading.logits[:, 1:-1][layout.wanted]
    yield from masked_drafts(layout, p_logits, logits, tokens[:, 2:][layout.wanted], count)


def head_scores(head: Eagle3Head, reading: TargetReading, count: int, temperature: float) -> Scores:
    """Return the acceptance of drafts of `count` tokens, which are the text's own; see `draft_scores`."""
    drafted = unrolled if head.mask_hidden is None else masked_steps
    steps = drafted(head, reading, count) if reading.drafted else ()
    wide = (replace(step, logits=head.over_vocabulary(step.logits)) for step in steps)
    return draft_scores(wide, count, temperature)


MOST_DRAFTED = 32_000
"""The default size of the draft vocabulary, if the target's is larger: that of published heads."""


def new_head(
    target: LoadedModel, layers: Sequence[int], ids: Tensor, seed: int, *, parallel: bool = False
) -> Eagle3Head:
    """Return a head before training: a layer as wide as the target's, which says what the target's embedding says.

    Args:
        target: The target.
        layers: The layers that it reads.
        ids: `[draft vocabulary]` int64, the target's ids of the tokens that it drafts, in ascending order.
        seed: Seed of the weights.
        parallel: Whether it drafts all tokens in one pass. Its mask token is one that no text has, else the last;
            in any case, `mask_hidden` tells masks from tokens.

    Raises:
        ModelError: The target's embeddings are of another size than its hidden states.
    """
    features = target.features
    assert features is not None
    embeddings, vocab = features.input_embeddings, target.vocab_size
    if embeddings.shape[1] != features.hidden_size or embeddings.shape[0] < vocab:
        raise ModelError(
            f"{target.name} embeds {embeddings.shape[0]} tokens in {embeddings.shape[1]} numbers, but its hidden "
            f"states are {features.hidden_size} and its logits {vocab}; a head reads both alike. Train another "
            "kind of drafter."
        )
    unused = unused_token(target.tokenizer, vocab)
    mask = None if not parallel else vocab - 1 if unused is None else unused
    shape = Eagle3SpeculatorConfig(
        speculators_model_type=PARALLEL_TYPE if parallel else TYPE,
        transformer_layer_config=layer_config(target),
        draft_vocab_size=len(ids),
        target_hidden_size=features.hidden_size,
        eagle_aux_hidden_state_layer_ids=list(layers),
        mask_token_id=mask,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        head = Eagle3Head(shape)
        for name, weight in head.named_parameters():
            if weight.dim() == 2:
                torch.nn.init.normal_(weight, std=weight.shape[1] ** -0.5 if name == "fc.weight" else 0.02)
        if head.mask_hidden is not None:
            torch.nn.init.normal_(head.mask_hidden)
    with torch.no_grad():
        head.embed_tokens.weight.copy_(embeddings[:vocab])
        head.lm_head.weight.copy_(features.output_embeddings[ids.to(features.output_embeddings.device)])
        head.d2t.copy_(ids - torch.arange(len(ids)))
        head.t2d.zero_()[ids] = True
    head.embed_tokens.requires_grad_(requires_grad=False)
    return head.to(features.output_embeddings.device).eval()


def layer_config(target: LoadedModel) -> dict[str, Any]:
    """Return the config of the layer: of the Llama architecture, with the target's sizes where it has them."""
    given = target.model.config.get_text_config(decoder=True)
    size = target.features.hidden_size if target.features is not None else given.hidden_size
    heads = getattr(given, "num_attention_heads", None) or max(1, size // 64)
    rope = getattr(given, "rope_parameters", None) or {}
    return {
        "model_type": "llama",
        "vocab_size": target.vocab_size,
        "hidden_size": size,
        "intermediate_size": getattr(given, "intermediate_size", None) or 8 * size // 3,
        "num_hidden_layers": 1,
        "num_attention_heads": heads,
        "num_key_value_heads": getattr(given, "num_key_value_heads", None) or heads,
        "head_dim": getattr(given, "head_dim", None) or size // heads,
        "hidden_act": "silu",
        "rms_norm_eps": getattr(given, "rms_norm_eps", 1e-6),
        "max_position_embeddings": target.family.max_positions or 32768,
        "rope_parameters": {"rope_type": "default", "rope_theta": float(rope.get("rope_theta", 10000.0))},
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
    }


def frequent_tokens(pools: Sequence[Rows], vocab_size: int, count: int) -> Tensor:
    """Return the ids of the most frequent tokens of training data, in ascending order, `[count]` int64."""
    times = torch.zeros(vocab_size, dtype=torch.long)
    for rows in pools:
        times += torch.bincount(rows.tokens[rows.mask], minlength=vocab_size)
    return times.sort(descending=True, stable=True).indices[:count].sort().values


class Distillation(TargetDistillation[Eagle3TrainerConfig, tuple[int, ...]]):
    """A head, the target whose layers it reads, and the data to train and evaluate it on, in float32."""

    def __post_init__(self) -> None:
        super().__post_init__()
        config, vocab_size, self.layers = self.config, self.target.vocab_size, self.prepared
        count = min(config.draft_vocab or MOST_DRAFTED, vocab_size)
        # Its vocabulary is that of the data.
        ids = frequent_tokens(self.data.pools, vocab_size, count)
        self.head = new_head(self.target, self.layers, ids, config.seed, parallel=config.parallel)
        self.parameters = {name: weight for name, weight in self.head.named_parameters() if weight.requires_grad}
        self.embedding_names = ["lm_head.weight"]
        self._part = max(1, self._part // config.unrolled)  # the logits of all depths are kept for the gradients

    def losses(self, rows: Rows, done: float) -> Iterator[Tensor]:
        """Yield the mean loss of drafts from the positions of some rows, times the number of positions."""
        config, head, share = self.config, self.head, tv_share(self.config.loss, done)
        with autocast(self.dtype, self.target.device):
            reading = read_target(self.target, rows, self.layers, head.device)
            if not reading.drafted:
                return
            if config.parallel:
                shape = rows.tokens[:, 1:-1].shape
                lengths = drawn_lengths(reading.rows, shape, config.unrolled, config.retention, config.seed, done)
                loss = masked_loss(head, reading, lengths, share, config.temperature)
            else:
                loss = unrolled_loss(head, reading, config.unrolled, config.decay, share, config.temperature)
        yield loss * rows.positions

    def scored(self, rows: Rows) -> Scores:
        """Compare the head with the target on some rows."""
        reading = read_target(self.target, rows, self.layers, self.head.device)
        return head_scores(self.head, reading, self.config.unrolled, self.config.temperature)


class Eagle3Trainer(WeightsTrainer[Distillation]):
    """Trains an EAGLE-3 head. The target is frozen, and so are its embeddings, which the head reads.

    References:
        Li et al. 2025 (arXiv 2503.01840); Hui et al. 2026 (P-EAGLE, arXiv 2602.01469). The loss is KL, then total
        variation, instead of cross-entropy.
    """

    config: Eagle3TrainerConfig
    """The settings."""

    drafter = "eagle3"
    result = "the head"
    folder_with = WEIGHTS
    rate = 4e-3
    distillation = Distillation

    def prepare(self, target: LoadedModel) -> tuple[int, ...]:
        """Return the layers that the head reads.

        Raises:
            ModelError: The target's hidden states cannot be read.
            ConfigError: It does not have the layers.
        """
        if target.features is None:
            raise ModelError(f"{target.name} has no output embedding; train another kind of drafter.")
        count = target.features.num_layers
        layers = self.config.aux_layers or default_layers(count)
        if len(set(layers)) < len(layers) or not set(layers) <= set(range(count + 1)):
            raise ConfigError(
                f"aux_layers: {list(layers)} are not different layers of {target.name}, which has {count}: 0 to "
                f"{count}. Give --aux-layers, such as --aux-layers 0 --aux-layers {count}."
            )
        return tuple(layers)

    def write(self, trained: Distillation, target: LoadedModel, run: TrainingRun) -> dict[str, str | int | float]:
        """Write the folder of the head, with the learning curve."""
        config, head = self.config, trained.head
        assert target.features is not None
        facts: dict[str, str | int | float] = {
            **run.facts(sum(weight.numel() for weight in head.parameters() if weight.requires_grad)),
            "draft vocabulary": head.shape.draft_vocab_size,
            **run.acceptance("by position"),
        }
        # A target that ships with a package is none that others could load.
        name = None if is_shipped(config.target) else config.target
        verifier = {"name_or_path": name, "architectures": list(target.model.config.architectures or [])}
        card = {"fingerprint": target.features.fingerprint(), "facts": facts}
        keys = config_of(head, verifier, specdec=card, dtype=config.saved_as)
        dtype = getattr(torch, config.saved_as)
        tensors = {
            weight_name: tensor.to(dtype) if tensor.is_floating_point() else tensor
            for weight_name, tensor in head.state_dict().items()
            if config.save_embeddings or weight_name != "embed_tokens.weight"
        }
        if head.shape.draft_vocab_size == target.vocab_size:
            tensors = {name: tensor for name, tensor in tensors.items() if name not in ("d2t", "t2d")}
        with writing_folder(config.output) as temporary:
            write_checkpoint(temporary, keys, {name: tensor.cpu() for name, tensor in tensors.items()})
            return {**facts, "curve": write_curve(run.trained.curve, temporary)}
