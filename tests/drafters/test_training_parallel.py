"""`specdec train parallel`: chains of masks in one pass, the acceptance measured, and the written model."""

import pytest
import torch

from specdec_core.decoding.decoder import Decoder
from specdec_core.interface.settings import GenerationSettings
from specdec_core.models import wrap_model
from specdec_drafters.parallel import (
    ParallelDistillation,
    ParallelDrafter,
    ParallelTrainer,
    layout_logits,
    with_mask_token,
)
from specdec_drafters.settings import ParallelConfig, ParallelTrainerConfig
from specdec_drafters.training.mask_layout import mask_layout, retained_lengths
from specdec_drafters.training.rows import pad_rows
from specdec_drafters.training.sources import gather
from tests.drafters.training.support import Recorder, short_configs
from tests.tiny import tiny_model
from tests.toys import Gamma

V, DEPTH = 40, 3


config_for = short_configs(ParallelTrainerConfig, "out", depth=DEPTH, layers=1, width=32)


@pytest.mark.parametrize("family", ["llama", "gpt2", "t5"])
def test_every_mask_reads_as_it_does_behind_its_text_alone(family):
    loaded = with_mask_token(wrap_model(tiny_model(family, V, sharpness=1.5)))
    mask_token = loaded.model.config.pard_token
    assert mask_token == V
    sources = [[2, 3, 4], [5, 6]] if family == "t5" else None
    rows = pad_rows([[3, 4, 5, 6, 7, 8], [9, 10, 11, 12]], [2, 1], sources)
    tokens, wanted = rows.tokens[:, :-1], rows.mask[:, 1:]
    layout = mask_layout(tokens, wanted, torch.full_like(tokens, DEPTH), mask_token)
    # From the anchor that predicts the first token on, as deep as there are tokens to predict.
    chains = {(0, 1, 1), (0, 1, 2), (0, 1, 3), (0, 2, 1), (0, 2, 2), (0, 3, 1)}
    chains |= {(1, 0, 1), (1, 0, 2), (1, 1, 1)}
    masks = list(zip(layout.rows.tolist(), layout.anchors.tolist(), layout.depths.tolist(), strict=True))
    assert set(masks) == chains
    with torch.inference_mode():
        logits = layout_logits(loaded, rows, layout)[layout.rows, layout.columns]
    for number, (row, anchor, depth) in enumerate(masks):
        ids = torch.tensor([[*tokens[row, : anchor + 1].tolist(), *[mask_token] * depth]])
        given = {"input_ids": ids}
        if sources is not None:
            given = {"input_ids": torch.tensor([sources[row]]), "decoder_input_ids": ids}
        with torch.inference_mode():
            alone = loaded.model(**given, use_cache=False).logits[0, -1]
        torch.testing.assert_close(logits[number], alone, atol=1e-4, rtol=1e-4)


def test_each_depth_keeps_a_share_of_the_one_before():
    lengths = retained_lengths(torch.Size((100, 100)), 5, 0.7, torch.Generator().manual_seed(0))
    shares = [float((lengths >= depth).float().mean()) for depth in range(1, 6)]
    assert shares == pytest.approx([0.7**depth for depth in range(1, 6)], abs=0.02)
    assert (retained_lengths(torch.Size((3,)), 5, 1.0, torch.Generator()) == 5).all()


def test_the_acceptance_measured_is_that_of_drafts_at_each_anchor(targets, config_for):
    target, config = targets(), config_for()
    drafter = with_mask_token(wrap_model(tiny_model("llama", V, seed=3)))
    data = gather(config, target, Recorder())
    scores = ParallelDistillation(config, target, drafter, data, torch.float32).scores()
    overlap, positions, accepted = (torch.zeros(DEPTH, dtype=torch.float64) for _ in range(3))
    with torch.inference_mode():
        for tokens, mask in zip(data.held_out.tokens, data.held_out.mask, strict=True):
            p = target.model(input_ids=tokens[None], use_cache=False).logits[0].softmax(-1)
            for anchor in range(0, len(tokens) - 1, DEPTH):
                ids = torch.tensor([[*tokens[: anchor + 1].tolist(), *[V] * (DEPTH - 1)]])
                q = drafter.model(input_ids=ids, use_cache=False).logits[0, anchor:, :V].softmax(-1)
                reached = 1.0
                for depth in range(min(DEPTH, len(tokens) - 1 - anchor)):
                    if not mask[anchor + 1] or not mask[anchor + 1 + depth]:
                        break
                    beta = float(torch.minimum(p[anchor + depth], q[depth]).sum())
                    overlap[depth] += beta
                    positions[depth] += 1
                    accepted[depth] += reached * beta
                    x = tokens[anchor + depth + 1]
                    reached *= float((q[depth, x] / p[anchor + depth, x]).clamp(max=1))
    assert scores.positions.tolist() == positions.tolist()
    torch.testing.assert_close(scores.overlap, overlap, atol=1e-3, rtol=1e-4)
    torch.testing.assert_close(scores.accepted, accepted, atol=1e-3, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "loss"), [("llama", "kl-then-tv"), ("llama", "ce"), ("t5", "kl")])
def test_training_raises_the_acceptance_of_each_depth_and_the_result_drafts(targets, config_for, family, loss):
    target, progress = targets(family), Recorder()
    config = config_for(family, loss=loss)
    report = ParallelTrainer(config).train(progress)
    first, last = progress.points[0], progress.points[-1]
    assert last["block_efficiency"] > first["block_efficiency"]
    for depth in range(1, DEPTH + 1):
        assert last[f"alpha_{depth}"] > first[f"alpha_{depth}"]
    assert "alpha by depth after" in report.facts
    drafter = ParallelDrafter(ParallelConfig(model=str(config.output)), target.info())
    assert (drafter.mask_token, drafter.count) == (V, DEPTH)
    decoder = Decoder(target, drafter, gamma=Gamma(DEPTH))
    metrics = decoder.generate([2, 3, 4], GenerationSettings(max_new_tokens=20)).metrics
    assert metrics.drafted > 0


def test_a_model_that_drafts_in_parallel_keeps_its_mask_token(targets, config_for, tmp_path):
    model = tiny_model("llama", V)
    model.config.ptd_token_id = 7
    model.save_pretrained(tmp_path / "begun")
    config = config_for(model=str(tmp_path / "begun"), layers=None, width=None, steps=1, samples=200)
    ParallelTrainer(config).train(Recorder())
    assert ParallelDrafter(ParallelConfig(model=str(config.output)), targets().info()).mask_token == 7
