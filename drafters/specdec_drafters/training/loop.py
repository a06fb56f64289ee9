"""The training loop: steps, learning rate, clipping, evaluation, checkpoints, and a budget of steps or time."""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from time import monotonic
from types import FrameType

import torch
from torch import Tensor

from specdec_core.interface import Progress
from specdec_core.interface.errors import NumericsError
from specdec_drafters.settings import TrainingConfig
from specdec_drafters.training.checkpoints import TrainingFolder, TrainingState
from specdec_drafters.training.curve import Curve
from specdec_drafters.training.optimizers import learning_rate_share, make_optimizers

MAX_GRADIENT_NORM = 1.0
"""Gradients are clipped to this norm."""


@dataclass(frozen=True)
class StepResult:
    """The mean loss of a step and its number of tokens."""

    loss: float
    tokens: int


@dataclass(frozen=True)
class Objective:
    """The parameters to train, their gradients and their evaluation.

    Attributes:
        parameters: The parameters by name, changed in place.
        gradients: Called with the step number and the completed share of the run (0 to 1); accumulates the
            gradients of the step's mean loss. The same step must use the same batch.
        evaluate: Evaluates on held-out text; the result goes into the learning curve (`alpha` and so on).
        embedding_names: Names of the parameters that are embedding matrices.
    """

    parameters: Mapping[str, Tensor]
    gradients: Callable[[int, float], StepResult]
    evaluate: Callable[[], Mapping[str, float]]
    embedding_names: Collection[str] = ()


@dataclass(frozen=True)
class Trained:
    """The result of a training run.

    Attributes:
        state: Steps, tokens and seconds.
        curve: Points of the learning curve, from before the first step to after the last.
    """

    state: TrainingState
    curve: list[dict[str, float]]


def train(
    objective: Objective,
    config: TrainingConfig,
    learning_rate: float,
    folder: TrainingFolder,
    progress: Progress,
) -> Trained:
    """Train to the end of the budget.

    Ctrl-C finishes the current step, writes a checkpoint and raises; a second Ctrl-C raises at once. A resumed run
    takes the same steps as an uninterrupted one: with a budget of steps, the weights are bit for bit equal on a
    CPU. (On a GPU, some sums have no fixed order.)

    Args:
        objective: What to train.
        config: The budget, the intervals, and whether to resume.
        learning_rate: The peak learning rate.
        folder: Its checkpoints and curve, after `begin`.
        progress: Receives a stage `training`, in steps or seconds.

    Raises:
        NumericsError: The loss became infinite or NaN.
        ConfigError: The checkpoint cannot be resumed.
    """
    device = next(iter(objective.parameters.values())).device
    with torch.random.fork_rng([device] if device.type == "cuda" else []), _Interrupt() as interrupt:
        torch.manual_seed(config.seed)
        loop = _Loop(objective, config, learning_rate, folder, progress)
        loop.start()
        while not loop.finished:
            loop.step()
            if interrupt.asked:
                loop.save()
                raise KeyboardInterrupt
        # Also at the end: writing the result may fail, e.g. on a full disk.
        loop.save()
        return Trained(loop.state, loop.curve.points)


class _Loop:
    def __init__(
        self,
        objective: Objective,
        config: TrainingConfig,
        learning_rate: float,
        folder: TrainingFolder,
        progress: Progress,
    ) -> None:
        self._objective = objective
        self._config = config
        self._rate = learning_rate
        self._folder = folder
        self._progress = progress
        self._optimizers = make_optimizers(objective.parameters, learning_rate, objective.embedding_names)
        self.state = TrainingState()
        self.curve = Curve(folder.curve, progress)
        self._began = self._saved = 0.0
        self._saved_step = -1

    def start(self) -> None:
        """Load the checkpoint, or evaluate before the first step of a new run."""
        if self._config.resume:
            self.state = self._folder.load(self._objective.parameters, self._optimizers)
            self._saved_step = self.state.step
            self.curve.resume(self.state.step)
        else:
            self.curve.add({"step": 0, "tokens": 0, "seconds": 0.0, **self._objective.evaluate()})
        self._progress.stage("training", self._config.steps or self._config.seconds)
        self._began = monotonic() - self.state.seconds
        self._saved = monotonic()

    @property
    def finished(self) -> bool:
        """Whether the budget is used up."""
        return self._done(self.state.step) >= 1.0

    def _done(self, step: float) -> float:
        if self._config.steps is not None:
            return step / self._config.steps
        assert self._config.seconds is not None
        return self.state.seconds / self._config.seconds

    def step(self) -> None:
        """Take one step, with the evaluation and the checkpoint due after it."""
        state = self.state
        done = min(1.0, self._done(state.step + 0.5))
        result = self._objective.gradients(state.step, done)
        if not math.isfinite(result.loss):
            raise NumericsError(
                f"the loss became {result.loss} in step {state.step + 1}; lower --learning-rate "
                f"({self._rate:g} was used). The last checkpoint is from an earlier step."
            )
        self._update(self._rate * learning_rate_share(done))
        state.step += 1
        state.tokens += result.tokens
        state.loss_sum += result.loss
        state.loss_count += 1
        state.seconds = monotonic() - self._began
        self._tell(result)
        if self.finished or state.step % self._config.evaluate_every == 0:
            self._measure()
        if not self.finished and monotonic() - self._saved > 60.0 * self._config.checkpoint_minutes:
            self.save()

    def _update(self, rate: float) -> None:
        parameters = list(self._objective.parameters.values())
        torch.nn.utils.clip_grad_norm_(parameters, MAX_GRADIENT_NORM)
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
            optimizer.zero_grad()

    def _tell(self, result: StepResult) -> None:
        state = self.state
        note = f"step {state.step}, loss {result.loss:.3f}, {state.tokens / state.seconds:.0f} tokens/s"
        done = state.step if self._config.steps is not None else state.seconds
        self._progress.advance(done, note)

    def _measure(self) -> None:
        state = self.state
        loss = state.loss_sum / state.loss_count
        state.loss_sum, state.loss_count = 0.0, 0
        point = {
            "step": state.step,
            "tokens": state.tokens,
            "seconds": round(state.seconds, 3),
            "loss": loss,
        }
        self.curve.add({**point, **self._objective.evaluate()})
        state.seconds = monotonic() - self._began

    def save(self) -> None:
        """Write a checkpoint unless there is one of this step, so that the previous one is from another step."""
        if self._saved_step != self.state.step:
            self._folder.save(self._objective.parameters, self._optimizers, self.state)
        self._saved, self._saved_step = monotonic(), self.state.step


class _Interrupt:
    """Defers Ctrl-C to the end of the step, when the state can be saved; a second Ctrl-C raises at once."""

    def __init__(self) -> None:
        self.asked = False
        self._before: Callable[[int, FrameType | None], object] | int | None = None

    def __enter__(self) -> _Interrupt:
        # Only the main thread can set signal handlers; elsewhere, or if SIGINT is ignored, nothing changes.
        if threading.current_thread() is threading.main_thread():
            self._before = signal.getsignal(signal.SIGINT)
        if callable(self._before):
            signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        if callable(self._before):
            signal.signal(signal.SIGINT, self._before)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
