"""The parallel drafter: a small model predicts all tokens of a draft in one forward pass, at mask tokens."""

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from specdec_core.interface import ConfigError, DraftSession, ModelError, SessionInfo, TargetInfo
from specdec_core.models import LoadedModel, load_model, position_patch, wrap_model
from specdec_drafters.common.draft_model_loading import load_draft_model
from specdec_drafters.common.model_drafter import ModelDrafter, ModelDraftSession
from specdec_drafters.common.parallel_draft import MASK_KEYS, mask_token_of, unused_token
from specdec_drafters.settings import ParallelConfig, ParallelTrainerConfig
from specdec_drafters.training.drafts import draft_scores
from specdec_drafters.training.losses import Scores, cross_entropy, tv_share
from specdec_drafters.training.mask_layout import (
    MaskLayout,
    drawn_lengths,
    mask_layout,
    masked_drafts,
    mean_loss,
    spaced,
)
from specdec_drafters.training.rows import Rows, autocast, embeddable, model_inputs, row_logits, same_width
from specdec_drafters.training.trainer import TargetDistillation, TrainingRun
from specdec_drafters.transformer import Distillation, TransformerTrainer

DEPTH_KEY = "pard_depth"
"""The key of config.json with the number of tokens that a model was trained to draft."""


class ParallelDrafter(ModelDrafter):
    """Drafts K tokens with one forward pass of a model.

    After x_1 ... x_n the model reads the tokens that it has not cached yet, and K - 1 mask tokens behind them. Its
    logits at x_n predict the first token of the draft, those at mask i the token after that position. q of a token
    is the distribution at its position, standardized by the core. It depends on the committed text alone, not on
    the other tokens of the draft, and not on how many masks follow. In a tree, all nodes at a depth are drawn at
    one position.

    Mask tokens are never kept in the cache: a rejected draft leaves nothing to undo.

    References:
        An, Bai, Liu, Li and Barsoum 2025 (PARD, arXiv 2504.18583); section 6 of arXiv 2211.17192
        (non-autoregressive approximation models).
    """

    autoregressive = False

    def __init__(self, config: ParallelConfig, target: TargetInfo) -> None:
        super().__init__(config, target, load_draft_model(config, target, "parallel"))
        self.mask_token = checked_mask_token(self.loaded)
        depth = getattr(self.loaded.model.config, DEPTH_KEY, None)
        self.count: int | None = config.count or depth

    def open(self, session: SessionInfo) -> DraftSession:
        """Start a batch with an empty cache."""
        return ModelDraftSession(self.loaded, session, mask_token=self.mask_token, count=self.count)


def checked_mask_token(loaded: LoadedModel) -> int:
    """Return the id of a model's mask token.

    Raises:
        ModelError: The model has none, or no embedding for it.
    """
    token = mask_token_of(loaded)
    if token is None:
        raise ModelError(
            f"drafter 'parallel': the config.json of {loaded.name} names no mask token (`pard_token` or "
            "`ptd_token_id`), so it was not trained to draft in parallel. Use it with drafter 'transformer', or "
            "train it with `specdec train parallel --model`."
        )
    if not 0 <= token < loaded.vocab_size:
        raise ModelError(
            f"drafter 'parallel': the mask token of {loaded.name} is {token}, but the model has the tokens 0 to "
            f"{loaded.vocab_size - 1}. Correct `pard_token` in its config.json."
        )
    return token


@torch.no_grad()
def move_mask_token(loaded: LoadedModel, folder: Path) -> int | None:
    """Move a mask token behind the vocabulary into the place of a token that no text has.

    `specdec train parallel` adds the mask token as the last one. vLLM asks for as many tokens as the target has.
    What the model predicts stays the same: the other token keeps its output embedding.

    Args:
        loaded: The model in the folder.
        folder: The folder, which is changed.

    Returns:
        The longest draft that the model was trained for, if its config names it.

    Raises:
        ConfigError: There is no token that no text has.
        ModelError: The model has no mask token.
    """
    mask = checked_mask_token(loaded)
    count = loaded.vocab_size - 1
    depth: int | None = getattr(loaded.model.config, DEPTH_KEY, None)
    if mask != count:
        return depth
    token = unused_token(loaded.tokenizer, count)
    if token is None:
        raise ConfigError(
            f"drafter 'parallel': {loaded.name} has its mask token behind the vocabulary, as token {mask}. vLLM "
            f"asks for the target's {count} tokens, and the tokenizer in the folder has none of them that no text "
            "has, in whose place the mask token could be. Export with a byte-level tokenizer in the folder."
        )
    model = loaded.model
    read = model.get_input_embeddings().weight[:count].clone()
    predicted = model.get_output_embeddings().weight[:count].clone()
    read[token] = model.get_input_embeddings().weight[mask]
    model.config.tie_word_embeddings = False
    model.resize_token_embeddings(count, mean_resizing=False)
    model.get_input_embeddings().weight = nn.Parameter(read)
    model.get_output_embeddings().weight = nn.Parameter(predicted)
    for key in MASK_KEYS:
        if hasattr(model.config, key):
            setattr(model.config, key, token)
    for file in folder.glob("*.safetensors*"):
        file.unlink()
    model.save_pretrained(folder)
    load_model(folder, device="cpu", packed=False)
    return depth


def with_mask_token(loaded: LoadedModel) -> LoadedModel:
    """Return a model with a mask token: its own, or a token behind its vocabulary, with the mean embedding.

    One token serves all depths: the position tells them apart, and depths beyond the trained ones have an
    embedding too.
    """
    if mask_token_of(loaded) is not None:
        return loaded
    model = loaded.model
    token = model.get_input_embeddings().num_embeddings
    with torch.random.fork_rng(devices=[]):
        model.resize_token_embeddings(token + 1, mean_resizing=False)
    with torch.no_grad():
        weight = model.get_input_embeddings().weight
        weight[token] = weight[:token].mean(0)
    model.config.pard_token = token
    return wrap_model(model, loaded.tokenizer, loaded.name)


class ParallelDistillation(Distillation):
    """A draft model with a mask token, a frozen target, and the data to compare them on."""

    config: ParallelTrainerConfig
    measure = TargetDistillation.measure

    def __post_init__(self) -> None:
        super().__post_init__()
        self._mask_token = mask_token_of(self.drafter)
        # Logits of the masks come beside those of the tokens.
        self._part = max(1, int(self._part * (1 - min(self.config.retention, 0.9))))

    def losses(self, rows: Rows, done: float) -> Iterator[Tensor]:
        """Yield the mean loss over the tokens and masks of some rows, times the number of their positions."""
        self.drafter.model.train()
        config = self.config
        shape = rows.tokens[:, :-1].shape
        lengths = drawn_lengths(rows, shape, config.depth, config.retention, config.seed, done)
        with autocast(self.dtype, self.target.device):
            layout, logits = self._layout_logits(rows, lengths)
        if config.loss == "ce":
            yield cross_entropy(logits, rows.tokens[rows.mask][layout.predicted]) * rows.positions
            return
        with torch.inference_mode(), autocast(self.dtype, self.target.device):
            p_logits = row_logits(self.target, rows)
        p_logits, logits = same_width(p_logits, logits)
        share = tv_share(config.loss, done)
        yield mean_loss(layout, p_logits, logits, share, config.temperature) * rows.positions

    def scored(self, rows: Rows) -> Scores:
        """Return the acceptance of drafts from every `depth`-th token of some rows."""
        self.drafter.model.eval()
        depth, shape = self.config.depth, rows.tokens[:, :-1].shape
        with torch.inference_mode():
            layout, logits = self._layout_logits(rows, spaced(shape, depth, rows.tokens.device) * (depth - 1))
            p_logits, logits = same_width(row_logits(self.target, rows), logits)
            steps = masked_drafts(layout, p_logits, logits, rows.tokens[rows.mask], depth)
            return draft_scores(steps, depth, self.config.temperature)

    def _layout_logits(self, rows: Rows, lengths: Tensor) -> tuple[MaskLayout, Tensor]:
        """Return the layout of some rows, and the logits at their wanted tokens, then at the masks: `[N, V']`."""
        assert self._mask_token is not None
        wanted = rows.mask[:, 1:]
        tokens = embeddable(self.drafter, rows.tokens[:, :-1])
        layout = mask_layout(tokens, wanted, lengths, self._mask_token)
        logits = layout_logits(self.drafter, rows, layout)
        return layout, layout.predictions(logits)


def layout_logits(loaded: LoadedModel, rows: Rows, layout: MaskLayout) -> Tensor:
    """Return the logits of a model at all tokens and masks, `[B, L + M, V']`.

    Args:
        loaded: The model; its encoder, if any, reads the sources of the rows.
        rows: The sequences.
        layout: The tokens and masks to read.
    """
    model = loaded.model
    smallest = torch.finfo(model.dtype).min
    mask = torch.zeros_like(layout.visible, dtype=model.dtype).masked_fill_(~layout.visible, smallest)[:, None]
    if not loaded.encoder_decoder:
        keywords = {"input_ids": layout.tokens, "position_ids": layout.positions, "attention_mask": mask}
        return model(**keywords, use_cache=False).logits  # type: ignore[no-any-return]
    patch = position_patch(model)
    assert patch is not None, "Family.ragged implies a position patch"
    keywords = {**model_inputs(loaded, rows, layout.tokens), "decoder_attention_mask": mask}
    with patch(layout.positions, layout.positions):
        return model(**keywords, use_cache=False).logits  # type: ignore[no-any-return]


class ParallelTrainer(TransformerTrainer):
    """Trains a model for the parallel drafter: at each depth of a draft, on the target's distribution there.

    References:
        PARD (arXiv 2504.18583); Corollary 3.6 of arXiv 2211.17192.
    """

    config: ParallelTrainerConfig
    """The settings."""

    drafter = "parallel"
    distillation = ParallelDistillation

    def prepare(self, target: LoadedModel) -> LoadedModel:
        """Return the model to train, with a mask token; see `TransformerTrainer.prepare`.

        Raises:
            ModelError: The model's family takes no positions, or has recurrent layers.
        """
        model = with_mask_token(super().prepare(target))
        if not model.family.ragged or model.family.recurrent:
            lacks = "reads one path" if model.family.recurrent else "takes no positions"
            raise ModelError(
                f"{model.name} {lacks}, and masks follow several texts in one pass. Train a model of another "
                "family, such as Llama or T5."
            )
        setattr(model.model.config, DEPTH_KEY, self.config.depth)
        return model

    def results(self, run: TrainingRun) -> dict[str, str | float]:
        """Return the acceptance at each depth, and the block efficiency, before and after."""
        return run.acceptance("by depth")
