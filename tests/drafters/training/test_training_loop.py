"""The loop on a problem of a few numbers: schedule, curve, checkpoints, resuming, Ctrl-C."""

import json
import signal

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from specdec_core.interface import ConfigError
from specdec_core.interface.errors import NumericsError
from specdec_drafters.training.loop import StepResult, TrainingFolder, learning_rate_share, train
from tests.drafters.training.support import Recorder, interrupting

SETTINGS = {"width": 3, "path": None}


class Toy:
    """Weights drawn to zero along directions that depend on the step and, as dropout does, on the generator."""

    embedding_names = ("embedding",)

    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        shapes = {"matrix": (3, 4), "embedding": (5, 2), "vector": (4,)}
        self.parameters = {
            name: torch.nn.Parameter(torch.randn(shape, generator=generator)) for name, shape in shapes.items()
        }
        self.steps = []
        self.loss = None

    def gradients(self, step, done):
        self.steps.append(step)
        generator = torch.Generator().manual_seed(step)
        loss = torch.zeros(())
        for weight in self.parameters.values():
            kept = torch.rand(weight.shape) < 0.8
            loss = loss + (torch.randn(weight.shape, generator=generator) * kept * weight).square().mean()
        loss.backward()
        return StepResult(float(loss.detach()) if self.loss is None else self.loss, 10)

    def measure(self):
        return {"alpha": float(self.parameters["vector"].detach().mean())}


@pytest.fixture
def run(tmp_path, config_for):
    """Train the toy in a folder; return it."""

    def run(name="a", progress=None, toy=None, settings=SETTINGS, **changes):
        config = config_for(**{"steps": 12, "evaluate_every": 5, **changes})
        folder = TrainingFolder(tmp_path / name, settings)
        folder.begin(resume=config.resume, overwrite=config.overwrite)
        toy = toy or Toy()
        toy.trained = train(toy, config, 0.05, folder, progress or Recorder())
        return toy

    return run


def equal(one, other):
    return all(torch.equal(one.parameters[name], other.parameters[name]) for name in one.parameters)


@pytest.mark.parametrize("step", [1, 5, 7, 11])
def test_a_resumed_training_ends_bit_for_bit_as_an_uninterrupted_one(run, step):
    whole = run("whole")
    with pytest.raises(KeyboardInterrupt):
        run("cut", interrupting(step))
    progress = Recorder()
    resumed = run("cut", progress, resume=True)
    assert resumed.steps == list(range(step, 12))
    assert equal(whole, resumed)
    assert not equal(whole, Toy())
    without_seconds = [
        [{name: value for name, value in point.items() if name != "seconds"} for point in toy.trained.curve]
        for toy in (whole, resumed)
    ]
    assert without_seconds[0] == without_seconds[1]
    assert [point["step"] for point in resumed.trained.curve] == [0, 5, 10, 12]


def test_nothing_of_the_callers_random_state_is_used_or_changed(run):
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = run("first")
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    assert equal(first, run("second"))


def test_ctrl_c_has_its_old_meaning_afterwards(run):
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        run("cut", interrupting(3))
    assert signal.getsignal(signal.SIGINT) is before


def test_the_curve_is_a_file_of_points(run, tmp_path):
    progress = Recorder()
    toy = run("a", progress)
    lines = (tmp_path / "a.training" / "curve.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == toy.trained.curve == progress.points
    assert toy.trained.curve[0]["alpha"] == Toy().measure()["alpha"]
    assert "loss" not in toy.trained.curve[0]
    assert [point["tokens"] for point in toy.trained.curve] == [0, 50, 100, 120]
    assert progress.stages == [("training", 12)]
    assert progress.advances["training"] == list(range(1, 13))


def test_points_after_the_checkpoint_are_measured_again(run, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run("cut", interrupting(7))
    path = tmp_path / "cut.training" / "curve.jsonl"
    path.write_text(path.read_text() + '{"step": 9, "alpha": 5}\n{"step": 1', encoding="utf-8")
    assert [point["step"] for point in run("cut", resume=True).trained.curve] == [0, 5, 10, 12]


def test_a_budget_of_time_ends(run):
    toy = run("a", steps=None, minutes=0.002)
    assert 0.12 <= toy.trained.state.seconds < 60
    assert toy.trained.state.step == len(toy.steps) > 0


def test_checkpoints_are_written_now_and_then(run, monkeypatch):
    saved = []
    save = TrainingFolder.save
    monkeypatch.setattr(TrainingFolder, "save", lambda *given: (saved.append(given[-1].step), save(*given)))
    run("a", checkpoint_minutes=1e-9)
    assert saved == list(range(1, 13))


def test_every_step_uses_the_learning_rate_of_its_time(run, monkeypatch):
    asked = []

    def share(done):
        asked.append(done)
        return 0.0

    monkeypatch.setattr("specdec_drafters.training.loop.learning_rate_share", share)
    assert equal(run("a"), Toy())
    assert asked == pytest.approx([(step + 0.5) / 12 for step in range(12)])


def test_gradients_are_cut_and_cleared(run):
    norms = []

    def note(optimizer, *_):
        weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        norms.append(sum(float(weight.grad.square().sum()) for weight in weights) ** 0.5)

    class Steep(Toy):
        def gradients(self, step, done):
            assert all(weight.grad is None for weight in self.parameters.values())
            result = super().gradients(step, done)
            for weight in self.parameters.values():
                weight.grad.mul_(1e4)
            return result

    hook = register_optimizer_step_pre_hook(note)
    try:
        run("a", toy=Steep())
    finally:
        hook.remove()
    assert norms
    assert max(norms) < 1.001


def test_what_a_killed_process_left_is_cleared_away(run, tmp_path):
    left = tmp_path / "a.training" / ".checkpoint.safetensors.x.part"
    left.mkdir(parents=True)
    run("a")
    assert not left.exists()


def test_a_loss_that_is_no_number(run):
    toy = Toy()
    toy.loss = float("nan")
    with pytest.raises(NumericsError, match=r"the loss became nan in step 1; lower --learning-rate \(0.05"):
        run("a", toy=toy)


def test_the_learning_rate_rises_stays_and_falls_to_zero():
    assert learning_rate_share(0) == 0
    assert learning_rate_share(0.01) == pytest.approx(0.5)
    assert learning_rate_share(0.02) == learning_rate_share(0.5) == 1
    assert learning_rate_share(0.75) == pytest.approx(0.5)
    assert learning_rate_share(1) == learning_rate_share(1.1) == 0


def interrupted(run, **changes):
    with pytest.raises(KeyboardInterrupt):
        run("cut", interrupting(7), checkpoint_minutes=1e-9, **changes)


def test_a_checkpoint_of_other_settings(run):
    interrupted(run)
    with pytest.raises(ConfigError, match="has other settings: --width was 3, is 4"):
        run("cut", resume=True, settings={**SETTINGS, "width": 4})


def test_a_checkpoint_of_other_weights(run):
    interrupted(run)
    other = Toy()
    other.parameters["vector"] = torch.nn.Parameter(torch.zeros(9))
    with pytest.raises(ConfigError, match="has other weights than this run"):
        run("cut", resume=True, toy=other)


def test_resuming_what_never_began_and_beginning_what_never_ended(run):
    with pytest.raises(ConfigError, match=r"a\.training has no checkpoint to resume from"):
        run("a", resume=True)
    interrupted(run)
    with pytest.raises(ConfigError, match="--resume continues it, --overwrite starts over"):
        run("cut")
