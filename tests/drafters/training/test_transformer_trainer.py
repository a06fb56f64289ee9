"""`specdec train transformer` on tiny models: alpha rises, the result drafts, failures leave nothing half done."""

import json

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file

from specdec_core.decoding.decoder import Decoder
from specdec_core.interface import ConfigError
from specdec_core.interface.controllers import FixedGamma, FixedGammaConfig
from specdec_core.interface.settings import GenerationSettings
from specdec_core.models import load_model
from specdec_drafters.settings import TransformerConfig, TransformerTrainerConfig
from specdec_drafters.training.loop import TrainingFolder, train
from specdec_drafters.training.losses import TV_SCALE, overlap
from specdec_drafters.training.rows import Batches, pad_rows, row_logits
from specdec_drafters.training.sources import TrainingData
from specdec_drafters.transformer import Distillation, TransformerDrafter, TransformerTrainer, new_model
from tests.drafters.training.support import Recorder, interrupting


@pytest.mark.parametrize(
    ("family", "loss", "rate", "least"),
    [
        ("llama", "ce", 1e-2, 0.1),
        pytest.param("bart", "kl", 1e-2, 0.1, marks=pytest.mark.slow),
        pytest.param("llama", "tv", 1e-2, 0.1, marks=pytest.mark.slow),
        pytest.param("bart", "kl-then-tv", 1e-2, 0.1, marks=pytest.mark.slow),
        pytest.param("t5", "tv", 1e-3, 0.02, marks=pytest.mark.slow),  # soon learns its few texts by heart
    ],
)
def test_every_loss_raises_alpha(config_for, targets, materials, tmp_path, family, loss, rate, least):
    config = config_for(family, loss=loss, steps=30, dtype="float32")
    target, material = targets(family), materials(family)
    # The cross-entropy learns p from what the target wrote; the pairs that were given are no words of it.
    material = TrainingData(material.pools[-1:], material.held_out)
    drafter = new_model(target, *config.sizes, config.seed)
    distillation = Distillation(config, target, drafter, material, torch.float32)
    folder = TrainingFolder(tmp_path / "out", {})
    before = [weight.clone() for weight in target.model.parameters()]
    curve = train(distillation, config, rate, folder, Recorder()).curve
    assert curve[-1]["alpha"] - curve[0]["alpha"] > least
    assert all(map(torch.equal, before, target.model.parameters()))
    assert all(weight.grad is None for weight in target.model.parameters())


@pytest.fixture(scope="module")
def trained(config_for, tmp_path_factory):
    """A llama trained for a few steps, with what the progress was told and the report."""
    output = tmp_path_factory.mktemp("trained") / "drafter"
    progress = Recorder()
    config = config_for(output=output, evaluate_every=10, held_out=2000)
    return output, progress, TransformerTrainer(config).train(progress)


def test_the_report_says_what_was_made_and_how_it_is_used(trained):
    output, progress, report = trained
    assert report.written == (output,)
    assert report.usage == f'{{name: transformer, model: "{output}"}}'
    facts = report.facts
    assert list(facts)[:5] == ["parameters", "steps", "tokens", "seconds", "held-out tokens"]
    assert facts["steps"] == 30
    assert facts["parameters"] == sum(weight.numel() for weight in load_model(output).model.parameters())
    assert facts["held-out tokens"] == 2000
    assert facts["trained length"].startswith("24 tokens")
    assert facts["alpha after"] > facts["alpha before"]
    assert "standard error" in facts["greedy alpha after"]
    assert [what for what, _ in progress.stages] == [
        "loading the target",
        "target writes",
        "target writes",
        "training",
        "writing the model",
    ]
    assert [point["step"] for point in progress.points] == [0, 10, 20, 30]


def test_the_output_is_a_model_folder_with_its_curve_and_nothing_beside(trained):
    output, progress, _ = trained
    assert {"config.json", "model.safetensors", "curve.jsonl"} <= {path.name for path in output.iterdir()}
    assert [json.loads(line) for line in (output / "curve.jsonl").read_text().splitlines()] == progress.points
    assert [path.name for path in output.parent.iterdir()] == ["drafter"]


def test_the_result_drafts_and_is_accepted_as_often_as_the_report_says(trained, targets):
    output, progress, _ = trained
    target = targets()
    drafter = TransformerDrafter(TransformerConfig(model=str(output)), target.info())
    decoder = Decoder(target, drafter, gamma=FixedGamma(FixedGammaConfig(gamma=3)), strict=True)
    result = decoder.generate([[0]] * 64, GenerationSettings(max_new_tokens=23, seed=9))
    judged = result.metrics.accepted + result.metrics.rejected
    alpha = progress.points[-1]["alpha"]
    assert abs(result.metrics.alpha - alpha) < 4 * (alpha * (1 - alpha) / judged) ** 0.5 + 0.03


def test_alpha_is_measured_over_all_that_the_target_wrote(targets, materials, config_for):
    target, material = targets(), materials()
    drafter = new_model(target, 1, 32, 2, seed=4)
    found = Distillation(config_for(), target, drafter, material, torch.bfloat16).measure()
    betas, rows = [], []
    with torch.inference_mode():
        for row, mask in zip(material.held_out.tokens, material.held_out.mask, strict=True):
            p, q = (each.model(input_ids=row[None]).logits[0] for each in (target, drafter))
            rows.append([float(overlap(p[n - 1], q[n - 1])) for n in mask.nonzero()[:, 0]])
            betas += rows[-1]
    assert len(betas) == 300
    alpha = sum(betas) / len(betas)
    assert found["alpha"] == pytest.approx(alpha, abs=1e-5)
    assert len({len(row) for row in rows}) > 1
    variance = sum((sum(row) - alpha * len(row)) ** 2 for row in rows) * len(rows) / (len(rows) - 1)
    assert found["alpha_error"] == pytest.approx(variance**0.5 / len(betas), rel=1e-3)


def test_the_temperature_is_that_of_losses_and_measurements(targets, materials, config_for):
    target, material = targets(), materials()
    drafter = new_model(target, 1, 32, 2, seed=4)
    distillation = Distillation(config_for(temperature=0.5, loss="tv"), target, drafter, material, torch.float32)
    (rows,) = Batches(material.pools, 512, 0).at(0)
    with torch.inference_mode():
        held, trained = (
            overlap(row_logits(target, part), row_logits(drafter, part), 0.5) for part in (material.held_out, rows)
        )
    assert distillation.measure()["alpha"] == pytest.approx(float(held.mean()), abs=1e-5)
    result = distillation.gradients(0, 0.5)
    assert result.loss == pytest.approx(TV_SCALE * (1 - float(trained.mean())), abs=1e-4)
    assert result.tokens == len(trained)


@pytest.mark.slow
def test_dropout_acts_in_training_and_not_in_measurements(targets, materials, config_for, models):
    drafter = load_model(models("bart", seed=3))
    distillation = Distillation(config_for("bart"), targets("bart"), drafter, materials("bart"), torch.float32)
    losses = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        losses.append(distillation.gradients(0, 0.5).loss)
    assert losses[0] == losses[1] != losses[2]
    assert distillation.measure() == distillation.measure()


@pytest.mark.parametrize("family", ["gpt2", "t5"])
def test_embeddings_are_trained_apart(targets, materials, config_for, models, family):
    drafter = load_model(models(family, seed=3))
    material = materials("bart" if drafter.encoder_decoder else "llama")
    objective = Distillation(config_for(), targets(family), drafter, material, torch.float32)
    assert {tuple(objective.parameters[name].shape) for name in objective.embedding_names} == {(40, 32)}
    assert len(objective.parameters) == len(list(drafter.model.parameters()))


@pytest.mark.parametrize("family", ["llama", "gpt2", "mistral", "gemma3", "t5", "bart"])
@pytest.mark.parametrize("given", [[2, 1], [3, 2]])
def test_padding_and_prompts_change_no_logits(targets, family, given):
    target = targets(family)
    rows, sources = [[0, 5, 6, 7, 8], [0, 9, 1]], [[5, 6, 7], [8, 9]]
    both = pad_rows(rows, given, sources if target.encoder_decoder else None)
    with torch.inference_mode():
        found = row_logits(target, both)
        alone = []
        for row, skipped, source in zip(rows, given, sources, strict=True):
            ids = torch.tensor([row[:-1]])
            names = {"input_ids": ids}
            if target.encoder_decoder:
                names = {"input_ids": torch.tensor([source]), "decoder_input_ids": ids}
            alone.append(target.model(**names).logits[0, skipped - 1 :])
    torch.testing.assert_close(found, torch.cat(alone), atol=1e-4, rtol=1e-4)


def begun_with(model, output, **changes):
    return {"model": str(model), "layers": None, "width": None, "heads": None, "output": output, **changes}


def test_beginning_with_a_model_begins_with_its_weights(config_for, models, tmp_path):
    config = config_for(**begun_with(models("llama"), tmp_path / "o", steps=1, learning_rate=1e-12))
    report = TransformerTrainer(config).train(Recorder())
    assert report.facts["alpha before"].startswith("1.0000")
    before, after = (load_file(folder / "model.safetensors") for folder in (models("llama"), tmp_path / "o"))
    assert all(torch.allclose(before[name], after[name], atol=1e-6) for name in before)


def test_a_model_that_takes_less_than_the_rows_or_the_sources_is_refused(config_for, models, tmp_path):
    longest = load_model(models("bart")).max_positions
    given = begun_with(models("bart"), tmp_path / "o", samples=50, steps=1)
    with pytest.raises(ConfigError, match=f"--length is {longest + 1}, but"):
        TransformerTrainer(config_for("t5", **given, length=longest + 1)).train(Recorder())
    sources = tmp_path / "sources.jsonl"
    sources.write_text((json.dumps({"source": [3] * (longest + 1)}) + "\n") * 2, encoding="utf-8")
    with pytest.raises(ConfigError, match=f"the longest of --sources has {longest + 1} tokens"):
        TransformerTrainer(config_for("t5", **{**given, "sources": sources})).train(Recorder())
    assert [path.name for path in tmp_path.iterdir()] == ["sources.jsonl"]


def test_ctrl_c_leaves_a_checkpoint_and_no_output_and_resuming_ends_the_same(config_for, tmp_path):
    changes = {"steps": 8, "samples": 300, "dtype": "float32"}
    TransformerTrainer(config_for(output=tmp_path / "whole", **changes)).train(Recorder())
    with pytest.raises(KeyboardInterrupt):
        TransformerTrainer(config_for(output=tmp_path / "cut", **changes)).train(interrupting(3))
    assert {path.name for path in tmp_path.iterdir()} == {"whole", "cut.training"}
    progress = Recorder()
    resumed = TransformerTrainer(config_for(output=tmp_path / "cut", resume=True, **changes)).train(progress)
    assert progress.advances["training"] == [4, 5, 6, 7, 8]
    assert "target writes" not in progress.advances
    assert {path.name for path in tmp_path.iterdir()} == {"whole", "cut"}
    whole, cut = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "cut"))
    assert whole.keys() == cut.keys()
    assert all(torch.equal(whole[name], cut[name]) for name in whole)
    assert resumed.facts["steps"] == 8


def test_with_matplotlib_there_is_a_picture(trained):
    pytest.importorskip("matplotlib")
    output, _, report = trained
    assert report.facts["curve"] == "curve.jsonl, curve.svg"
    assert "<svg" in (output / "curve.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize("family", ["llama", "t5", "bart"])
def test_a_new_model_numbers_its_tokens_and_begins_and_ends_as_the_target(targets, family):
    target = targets(family)
    new = new_model(target, 2, 32, 2, seed=0)
    assert (new.vocab_size, new.eos_ids, new.start_id) == (target.vocab_size, target.eos_ids, target.start_id)
    assert new.encoder_decoder == target.encoder_decoder
    again = new_model(target, 2, 32, 2, seed=0)
    assert all(map(torch.equal, new.model.parameters(), again.model.parameters()))
    other = new_model(target, 2, 32, 2, seed=1)
    assert not all(map(torch.equal, new.model.parameters(), other.model.parameters()))


def test_parts_of_a_batch_add_up_to_its_gradient(config_for, targets, materials, monkeypatch):
    gradients = []
    for logits in (1 << 24, 1):
        monkeypatch.setattr("specdec_drafters.training.trainer.LARGEST_LOGITS", logits)
        drafter = new_model(targets(), 1, 32, 2, seed=0)
        distillation = Distillation(config_for(dtype="float32"), targets(), drafter, materials(), torch.float32)
        result = distillation.gradients(3, 0.5)
        gradients.append((result.loss, [weight.grad for weight in drafter.model.parameters()]))
    assert gradients[0][0] == pytest.approx(gradients[1][0], rel=1e-5)
    for one, other in zip(gradients[0][1], gradients[1][1], strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "give training data"),
        ({"samples": 1, "width": 65, "heads": 2}, "a width of 65 cannot be divided among 2 heads"),
        ({"text": "a", "sources": "b"}, "give 'text' or 'sources', not both: 'sources' is for"),
        ({"samples": 1, "max_bytes": 5}, "'max_bytes' limits 'text'"),
    ],
)
def test_settings_that_make_no_sense(settings, message):
    with pytest.raises(ValidationError, match=message):
        TransformerTrainerConfig(output="o", **settings)
