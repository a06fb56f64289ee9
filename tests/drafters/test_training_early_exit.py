"""`specdec train early-exit`: which exits are trained, which is kept, and that it drafts."""

import json

import pytest
import torch

from specdec_core.decoding.decoder import Decoder
from specdec_core.interface.settings import GenerationSettings
from specdec_core.models import first_layers
from specdec_drafters.early_exit.drafter import (
    EarlyExitDrafter,
    best_of,
    cost_share,
    exit_after,
    exit_alphas,
    read_exit,
    worth_of_each,
)
from specdec_drafters.early_exit.trainer import EarlyExitTrainer
from specdec_drafters.settings import EarlyExitConfig, EarlyExitTrainerConfig
from specdec_drafters.training.sources import gather
from tests.drafters.training.support import Recorder, saved_targets, short_configs, trained
from tests.toys import Gamma

LAYERS = {"llama": "num_hidden_layers", "t5": "num_decoder_layers"}


@pytest.fixture(scope="module")
def targets(tmp_path_factory):
    """Return a tiny target of four layers by its family, saved and loaded once."""
    return saved_targets(
        tmp_path_factory.mktemp("targets"), sizes={family: {name: 4} for family, name in LAYERS.items()}
    )


config_for = short_configs(EarlyExitTrainerConfig, "out/early-exit.safetensors")


@pytest.mark.slow
@pytest.mark.parametrize(("family", "loss"), [("llama", "kl-then-tv"), ("llama", "ce"), ("t5", "kl")])
def test_training_raises_alpha_of_the_first_half_of_the_exits_and_the_target_stays(
    targets, config_for, family, loss
):
    first, last = trained(EarlyExitTrainer(config_for(family, loss=loss)), targets(family))
    assert {name for name in first if name.startswith("alpha_")} == {"alpha_1", "alpha_2"}
    assert all(last[name] > first[name] + 0.01 for name in ("alpha_1", "alpha_2"))


@pytest.mark.slow
def test_the_untrained_exit_is_where_training_begins(targets, config_for):
    progress = Recorder()
    config = config_for(steps=1)
    EarlyExitTrainer(config).train(progress)
    target = targets()
    held = gather(config, target, Recorder()).held_out
    alphas = exit_alphas({n: first_layers(target, n) for n in (1, 2)}, target, held)
    assert progress.points[0]["alpha_1"] == pytest.approx(alphas[1], abs=1e-4)
    assert progress.points[0]["alpha_2"] == pytest.approx(alphas[2], abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("layers", [None, 3])
def test_what_is_written_is_the_best_exit_and_drafts_for_this_target(targets, config_for, layers):
    target, config = targets(), config_for(layers=layers)
    report = EarlyExitTrainer(config).train(Recorder())
    assert report.written == (config.output, config.output.with_name("early-exit.curve.jsonl"))
    assert {path.name for path in config.output.parent.iterdir()} == {path.name for path in report.written}
    assert report.usage == f'{{name: early-exit, model: "{config.output}"}}'
    _, card = read_exit(config.output)
    last = json.loads(report.written[1].read_text().splitlines()[-1])
    tried = [1, 2] if layers is None else [layers]
    exits = {n: exit_after(target, n, torch.eye(32)) for n in tried}
    best = best_of(worth_of_each(exits, {n: last[f"alpha_{n}"] for n in tried}, target))
    assert card.layers == report.facts["layers"] == best.layers
    assert card.facts["samples"] == "1500"
    assert (
        f"{cost_share(exits[best.layers], target):.2f} of the weights" in report.facts[f"exit after {best.layers}"]
    )

    drafter = EarlyExitDrafter(EarlyExitConfig(model=str(config.output)), target.info())
    assert drafter.layers == best.layers
    # Tokens a call, expected from text alone, are those of a run: the map is where it was trained.
    alpha = exit_alphas({1: drafter.loaded}, target, gather(config, target, Recorder()).held_out)[1]
    assert alpha == pytest.approx(last[f"alpha_{best.layers}"], abs=2e-3)  # it is stored in float16
    result = Decoder(target, drafter, gamma=Gamma(1), strict=True).generate(
        [[0]] * 200, GenerationSettings(max_new_tokens=24, ignore_eos=True, seed=3)
    )
    assert result.metrics.alpha == pytest.approx(alpha, abs=0.05)
