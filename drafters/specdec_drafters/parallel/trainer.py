"""`specdec train parallel`: trains a small model to predict several of the target's tokens at once."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from specdec_core.interface import ModelError
from specdec_core.models import LoadedModel, position_patch, wrap_model
from specdec_drafters.common.parallel_draft import mask_token_of
from specdec_drafters.parallel.config import ParallelTrainerConfig
from specdec_drafters.parallel.drafter import DEPTH_KEY
from specdec_drafters.training.draft_scores import Scores
from specdec_drafters.training.losses import cross_entropy, tv_share
from specdec_drafters.training.mask_layout import (
    MaskLayout,
    draft_scores,
    drawn_lengths,
    mask_layout,
    mean_loss,
    spaced,
)
from specdec_drafters.training.rows import Rows
from specdec_drafters.training.run import TrainingRun
from specdec_drafters.training.sequence_logits import autocast, embeddable, row_logits, same_width
from specdec_drafters.training.sources import TrainingData
from specdec_drafters.transformer.trainer import Distillation, TransformerTrainer


class ParallelTrainer(TransformerTrainer):
    """Trains a model for the parallel drafter: at each depth of a draft, on the target's distribution there.

    References:
        PARD (arXiv 2504.18583); Corollary 3.6 of arXiv 2211.17192.
    """

    config: ParallelTrainerConfig
    """The settings."""

    drafter = "parallel"

    def prepare(self, target: LoadedModel) -> LoadedModel:
        """Return the model to train, with a mask token; see `TransformerTrainer.prepare`.

        Raises:
            ModelError: The model's family takes no positions.
        """
        model = with_mask_token(super().prepare(target))
        if not model.family.ragged:
            raise ModelError(
                f"{model.name} takes no positions, which masks behind several texts in one pass need. Train a "
                "model of another family, such as Llama or T5."
            )
        setattr(model.model.config, DEPTH_KEY, self.config.depth)
        return model

    def distillation(
        self, target: LoadedModel, prepared: LoadedModel, data: TrainingData, dtype: torch.dtype
    ) -> ParallelDistillation:
        """Return the model with the target and the data."""
        return ParallelDistillation(self.config, target, prepared, data, dtype)

    def results(self, run: TrainingRun) -> dict[str, str | float]:
        """Return the acceptance at each depth, and the block efficiency, before and after."""
        before, after = run.trained.curve[0], run.trained.curve[-1]
        by_depth = [f"{after[name]:.3f}" for name in after if name.startswith("alpha_")]
        return {
            "block efficiency before": f"{before['block_efficiency']:.3f}",
            "block efficiency after": f"{after['block_efficiency']:.3f}",
            "alpha by depth": ", ".join(by_depth),
        }


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
    """A draft model with a mask token, a frozen target, and the data to compare them on.

    Args:
        config: Loss, depth, retention, temperature, batch size and seed.
        target: The target, which gives p.
        drafter: The model to train.
        data: The rows to train and measure on.
        dtype: Data type of matrix products in training. Evaluation uses the models' own.
    """

    def __init__(
        self,
        config: ParallelTrainerConfig,
        target: LoadedModel,
        drafter: LoadedModel,
        data: TrainingData,
        dtype: torch.dtype,
    ) -> None:
        super().__init__(config, target, drafter, data, dtype)
        self._depth, self._retention = config.depth, config.retention
        self._mask_token = mask_token_of(drafter)
        # Logits of the masks come beside those of the tokens.
        self._part = max(1, int(self._part * (1 - min(config.retention, 0.9))))

    def losses(self, rows: Rows, done: float) -> Iterator[Tensor]:
        """Yield the mean loss over the tokens and masks of some rows, times the number of their positions."""
        self.drafter.model.train()
        config = self._config
        shape = rows.tokens[:, :-1].shape
        lengths = drawn_lengths(rows, shape, self._depth, self._retention, config.seed, done)
        with autocast(self._dtype, self._target.device):
            layout, logits = self._layout_logits(rows, lengths)
        if config.loss == "ce":
            yield cross_entropy(logits, rows.tokens[rows.mask][layout.predicted]) * rows.positions
            return
        with torch.inference_mode(), autocast(self._dtype, self._target.device):
            p_logits = row_logits(self._target, rows)
        p_logits, logits = same_width(p_logits, logits)
        share = tv_share(config.loss, done)
        yield mean_loss(layout, p_logits, logits, share, config.temperature) * rows.positions

    def measure(self) -> dict[str, float]:
        """Return the held-out acceptance rates, by depth and for whole drafts."""
        return self.scores().point()

    def scores(self) -> Scores:
        """Compare drafts from some anchors with the target on the held-out data, without autocast."""
        self.drafter.model.eval()
        with torch.inference_mode():
            parts = [self._scored(part.to(self._target.device)) for part in self._held_out.split(self._part)]
        return sum(parts[1:], start=parts[0])

    def _scored(self, rows: Rows) -> Scores:
        """Return the acceptance of drafts from every `depth`-th token."""
        depth, temperature, shape = self._depth, self._config.temperature, rows.tokens[:, :-1].shape
        layout, logits = self._layout_logits(rows, spaced(shape, depth, rows.tokens.device) * (depth - 1))
        p_logits, logits = same_width(row_logits(self._target, rows), logits)
        p, q = (torch.softmax(part.float() / temperature, dim=-1) for part in (p_logits, logits))
        return draft_scores(layout, p, q, rows.tokens[rows.mask], depth)

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
    assert rows.sources is not None, "an encoder needs sources"
    assert rows.source_mask is not None
    patch = position_patch(model)
    assert patch is not None, "Family.ragged implies a position patch"
    keywords = {
        "input_ids": embeddable(loaded, rows.sources),
        "attention_mask": rows.source_mask.long(),
        "decoder_input_ids": layout.tokens,
        "decoder_attention_mask": mask,
    }
    with patch(layout.positions, layout.positions):
        return model(**keywords, use_cache=False).logits  # type: ignore[no-any-return]
