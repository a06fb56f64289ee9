"""The transformer drafter: a smaller model with the target's vocabulary (the paper's approximation model)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, T5Config, T5ForConditionalGeneration

from specdec_core.interface import ModelError, ModelSettings, TargetInfo
from specdec_core.interface.files import writing_folder
from specdec_core.models import LoadedModel, without_progress_bar, wrap_model
from specdec_drafters.common.draft_model_loading import load_draft_model
from specdec_drafters.common.model_drafter import ModelDrafter
from specdec_drafters.settings import TransformerConfig, TransformerTrainerConfig
from specdec_drafters.training.loop import write_curve
from specdec_drafters.training.losses import cross_entropy, distillation, overlap, tv_share
from specdec_drafters.training.rows import LARGEST_LOGITS, Rows, autocast, row_logits, same_width
from specdec_drafters.training.sources import check_length, check_source_lengths
from specdec_drafters.training.trainer import TargetDistillation, TrainingRun, WeightsTrainer


def agreement(parts: Iterable[tuple[Tensor, Tensor, Tensor]], temperature: float = 1.0) -> dict[str, float]:
    """Return how well two models agree, as a point of the learning curve.

    These are means over positions: `alpha`, of beta = sum_x min(p(x), q(x)), and `greedy_alpha`, the share with
    the same argmax. Their standard errors, such as `alpha_error`, are over sequences, since the positions of one
    are dependent; there are none with only one sequence.

    Args:
        parts: Target's logits `[N, V]`, drafter's logits `[N, V]`, and the number of positions of each sequence,
            `[R]` int64 with sum N.
        temperature: Temperature of both.

    Raises:
        ValueError: The number of positions is 0.

    References:
        Theorem 3.5 and Corollary 3.6 (arXiv 2211.17192).
    """
    betas, same, counts = [], [], []
    for p_logits, logits, lengths in parts:
        rows = torch.arange(len(lengths)).repeat_interleave(lengths.cpu())
        beta = overlap(p_logits.float(), logits.float(), temperature).double().cpu()
        equal = (p_logits.argmax(-1) == logits.argmax(-1)).double().cpu()
        betas.append(torch.zeros(len(lengths), dtype=torch.float64).index_add_(0, rows, beta))
        same.append(torch.zeros(len(lengths), dtype=torch.float64).index_add_(0, rows, equal))
        counts.append(lengths.double().cpu())
    positions = torch.cat(counts) if counts else torch.zeros(0, dtype=torch.float64)
    if not positions.sum():
        raise ValueError("no positions to measure")
    values = {}
    for name, sums in (("alpha", betas), ("greedy_alpha", same)):
        values[name], values[f"{name}_error"] = _ratio(torch.cat(sums), positions)
    return {name: value for name, value in values.items() if math.isfinite(value)}


def _ratio(sums: Tensor, counts: Tensor) -> tuple[float, float]:
    """Return sum(sums) / sum(counts) and its standard error over independent sequences: `[R]` float64 each."""
    mean = float(sums.sum() / counts.sum())
    rows = len(counts)
    if rows < 2:
        return mean, float("nan")
    residuals = sums - mean * counts
    variance = float((residuals**2).sum()) * rows / (rows - 1)
    return mean, variance**0.5 / float(counts.sum())


class TransformerDrafter(ModelDrafter):
    """Drafts with any Hugging Face model that uses the target's tokenizer."""

    def __init__(self, config: TransformerConfig, target: TargetInfo) -> None:
        super().__init__(config, target, load_draft_model(config, target, "transformer"))


DEFAULT_POSITIONS = 2048


def new_model(target: LoadedModel, layers: int, width: int, heads: int, seed: int) -> LoadedModel:
    """Return an untrained model with the target's vocabulary: a Llama, or a T5 if the target has an encoder.

    Args:
        target: The target.
        layers: Layers of the decoder, and of the encoder.
        width: Hidden size.
        heads: Number of attention heads, which share the width.
        seed: Seed of the weights.
    """
    with torch.random.fork_rng([]):
        # torch.manual_seed would also reseed the generators of all GPUs.
        torch.default_generator.manual_seed(seed)
        make = _t5 if target.encoder_decoder else _llama
        model = make(target, layers, width, heads)
    # Projections into the residual stream start smaller, so that depth does not inflate it (GPT-2).
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                weight.mul_((2 * layers) ** -0.5)
    return wrap_model(model.to(target.device), target.tokenizer, "new model")


def _special(target: LoadedModel) -> dict[str, Any]:
    config = target.model.config.get_text_config(decoder=True)
    ends = list(target.eos_ids)
    return {
        "vocab_size": target.vocab_size,
        "bos_token_id": getattr(config, "bos_token_id", None),
        "eos_token_id": ends[0] if len(ends) == 1 else ends or None,
        "pad_token_id": getattr(config, "pad_token_id", None),
        "tie_word_embeddings": True,
    }


def feed_forward(width: int) -> int:
    """Return the feed-forward size: 8/3 of the width, rounded up to a multiple of 64."""
    return -(-8 * width // (3 * 64)) * 64


def _llama(target: LoadedModel, layers: int, width: int, heads: int) -> Any:
    config = LlamaConfig(
        hidden_size=width,
        intermediate_size=feed_forward(width),
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=target.family.max_positions or DEFAULT_POSITIONS,
        **_special(target),
    )
    return LlamaForCausalLM(config)


def _t5(target: LoadedModel, layers: int, width: int, heads: int) -> Any:
    config = T5Config(
        d_model=width,
        d_kv=width // heads,
        d_ff=feed_forward(width),
        num_layers=layers,
        num_decoder_layers=layers,
        num_heads=heads,
        dropout_rate=0.0,  # a small model in a short run sees little data twice
        feed_forward_proj="gated-gelu",
        decoder_start_token_id=target.start_id,
        **_special(target),
    )
    return T5ForConditionalGeneration(config)


class Distillation(TargetDistillation[TransformerTrainerConfig, LoadedModel]):
    """A draft model, a frozen target, and the data to compare them on."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.drafter = self.prepared
        check_source_lengths(self.data, self.drafter)
        self._part = max(1, LARGEST_LOGITS // max(self.target.vocab_size, self.drafter.vocab_size))
        model = self.drafter.model
        embeddings = {id(part.weight) for part in (model.get_input_embeddings(), model.get_output_embeddings())}
        self.parameters = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
        self.embedding_names = [name for name, weight in self.parameters.items() if id(weight) in embeddings]

    def losses(self, rows: Rows, done: float) -> Iterator[Tensor]:
        """Yield the loss, summed over the positions of some rows."""
        self.drafter.model.train()
        config = self.config
        with autocast(self.dtype, self.target.device):
            logits = row_logits(self.drafter, rows)
        if config.loss == "ce":
            yield cross_entropy(logits, rows.tokens[rows.mask]) * len(logits)
            return
        with torch.inference_mode(), autocast(self.dtype, self.target.device):
            p_logits = row_logits(self.target, rows)
        p_logits, logits = same_width(p_logits, logits)
        yield distillation(p_logits, logits, tv_share(config.loss, done), config.temperature)[0]

    def measure(self) -> Mapping[str, float]:
        """Compare the two on the held-out data, without autocast."""
        self.drafter.model.eval()
        with torch.inference_mode():
            return agreement(self._compared(), self.config.temperature)

    def _compared(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        for part in self.data.held_out.split(self._part):
            rows = part.to(self.target.device)
            p_logits, logits = same_width(row_logits(self.target, rows), row_logits(self.drafter, rows))
            yield p_logits, logits, rows.mask.sum(1)


NEW_RATE, START_RATE = 4e-3, 1e-3
"""Peak learning rates of a new model, and of a pretrained one."""


class TransformerTrainer(WeightsTrainer[Distillation]):
    """Trains a model for the transformer drafter, on the tokens of a text or on the target's distributions.

    References:
        Corollary 3.6 and section 3.6 of arXiv 2211.17192.
    """

    config: TransformerTrainerConfig
    """The settings."""

    drafter = "transformer"
    result = "the model"
    folder_with = "config.json"
    distillation: type[Distillation] = Distillation

    @property
    def rate(self) -> float:
        """The peak learning rate."""
        return NEW_RATE if self.config.model is None else START_RATE

    def prepare(self, target: LoadedModel) -> LoadedModel:
        """Return the model to train, in float32 on the target's device.

        Raises:
            ModelError: Its vocabulary differs from the target's, or only one of them has an encoder.
            ConfigError: It takes fewer tokens than the training sequences have.
        """
        config = self.config
        if config.model is None:
            return new_model(target, *config.sizes, config.seed)
        settings = ModelSettings(model=config.model, dtype="float32", packed=False, compile=False)
        # Without the target itself, whose encoder the model would share and train.
        drafter = load_draft_model(settings, replace(target.info(), model=None), "transformer")
        if target.tokenizer is not None and max(target.tokenizer.get_vocab().values()) >= drafter.vocab_size:
            raise ModelError(
                f"{drafter.name} has {drafter.vocab_size} embeddings, and the target more tokens. Save it after "
                "resize_token_embeddings()."
            )
        check_length(config.length, drafter)
        return drafter

    def write(self, trained: Distillation, target: LoadedModel, run: TrainingRun) -> dict[str, str | int | float]:
        """Write the model folder with the tokenizer and the learning curve."""
        model = trained.drafter.model.eval()
        with writing_folder(self.config.output) as temporary, without_progress_bar():
            model.to(getattr(torch, self.config.saved_as)).save_pretrained(temporary)
            if target.tokenizer is not None:
                target.tokenizer.save_pretrained(temporary)
            curve = write_curve(run.trained.curve, temporary)
        return {
            **run.facts(sum(weight.numel() for weight in model.parameters())),
            "trained length": f"{self.config.length} tokens; in longer texts, fewer drafts may be accepted",
            "loss": round(run.trained.curve[-1].get("loss", float("nan")), 4),
            **self.results(run),
            "curve": curve,
        }

    def results(self, run: TrainingRun) -> dict[str, str | float]:
        """Return the acceptance before and after training, for the report."""
        before, after = run.trained.curve[0], run.trained.curve[-1]
        return {
            "alpha before": _with_error(before, "alpha"),
            "alpha after": _with_error(after, "alpha"),
            "greedy alpha before": _with_error(before, "greedy_alpha"),
            "greedy alpha after": _with_error(after, "greedy_alpha"),
        }


def _with_error(point: dict[str, float], name: str) -> str:
    error = point.get(f"{name}_error")
    return f"{point[name]:.4f}" + ("" if error is None else f" (standard error {error:.4f})")
