"""The training loop: steps, learning rate, clipping, measurements, checkpoints, an end by steps or by time."""

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

from specdec_core.border import TrainingObserver
from specdec_core.errors import NumericsError
from specdec_drafters.configs.training import TrainingConfig
from specdec_drafters.training.checkpoints import Progress, TrainingFolder
from specdec_drafters.training.curve import Curve
from specdec_drafters.training.optimisers import learning_rate_share, make_optimisers

LARGEST_GRADIENT = 1.0
"""The gradient's norm is cut to this."""


@dataclass(frozen=True)
class StepResult:
    """What one step's gradients were made from: the mean loss, and how many tokens it is the mean of."""

    loss: float
    tokens: int


@dataclass(frozen=True)
class Task:
    """What is trained.

    Attributes:
        parameters: Their names and themselves; changed in place.
        gradients: Called with the number of the step and the share of the training that is done (0 to 1); adds the
            gradients of the step's mean loss to the parameters'. The same step must give the same batch.
        evaluate: Measures on held-out text; what it returns goes into the learning curve (`alpha` and so on).
        apart: Names of matrices that are embeddings.
    """

    parameters: Mapping[str, Tensor]
    gradients: Callable[[int, float], StepResult]
    evaluate: Callable[[], Mapping[str, float]]
    apart: Collection[str] = ()


@dataclass(frozen=True)
class Trained:
    """How a training went.

    Attributes:
        progress: Steps, tokens and seconds.
        curve: Its points; the first was measured before the first step, the last after the last.
    """

    progress: Progress
    curve: list[dict[str, float]]


def train(
    task: Task,
    config: TrainingConfig,
    learning_rate: float,
    folder: TrainingFolder,
    observer: TrainingObserver,
) -> Trained:
    """Train to the end of the budget.

    Ctrl-C ends the step that is running, writes a checkpoint and raises; a second one raises at once. A training
    that goes on from a checkpoint does the same steps as one that was never interrupted: with a budget of steps
    the weights are equal bit for bit on a CPU. (On a GPU some sums are taken in no fixed order.)

    Args:
        task: What is trained and how.
        config: Its budget, intervals and whether it goes on.
        learning_rate: The highest.
        folder: Its checkpoints and curve; `begin` was called on it.
        observer: Told of a stage `training`, in steps or seconds.

    Raises:
        NumericsError: The loss is no number any more.
        ConfigError: The checkpoint cannot be gone on from.
    """
    device = next(iter(task.parameters.values())).device
    with torch.random.fork_rng([device] if device.type == "cuda" else []), _Interrupt() as interrupt:
        torch.manual_seed(config.seed)
        loop = _Loop(task, config, learning_rate, folder, observer)
        loop.start()
        while not loop.finished:
            loop.step()
            if interrupt.asked:
                loop.save()
                raise KeyboardInterrupt
        # Also at the end: what follows, writing the result, may fail for want of room.
        loop.save()
        return Trained(loop.progress, loop.curve.points)


class _Loop:
    def __init__(
        self,
        task: Task,
        config: TrainingConfig,
        learning_rate: float,
        folder: TrainingFolder,
        observer: TrainingObserver,
    ) -> None:
        self._task = task
        self._config = config
        self._rate = learning_rate
        self._folder = folder
        self._observer = observer
        self._optimisers = make_optimisers(task.parameters, learning_rate, task.apart)
        self.progress = Progress()
        self.curve = Curve(folder.curve, observer)
        self._began = self._saved = 0.0
        self._saved_step = -1

    def start(self) -> None:
        """Go on from the checkpoint, or measure where a new training begins."""
        if self._config.resume:
            self.progress = self._folder.load(self._task.parameters, self._optimisers)
            self._saved_step = self.progress.step
            self.curve.resume(self.progress.step)
        else:
            self.curve.add({"step": 0, "tokens": 0, "seconds": 0.0, **self._task.evaluate()})
        self._observer.stage("training", self._config.steps or self._config.seconds)
        self._began = monotonic() - self.progress.seconds
        self._saved = monotonic()

    @property
    def finished(self) -> bool:
        """Whether the budget is spent."""
        return self._done(self.progress.step) >= 1.0

    def _done(self, step: float) -> float:
        if self._config.steps is not None:
            return step / self._config.steps
        assert self._config.seconds is not None
        return self.progress.seconds / self._config.seconds

    def step(self) -> None:
        """Take one step, and what is due after it."""
        progress = self.progress
        done = min(1.0, self._done(progress.step + 0.5))
        result = self._task.gradients(progress.step, done)
        if not math.isfinite(result.loss):
            raise NumericsError(
                f"the loss became {result.loss} in step {progress.step + 1}; lower --learning-rate "
                f"({self._rate:g} was used). The last checkpoint is of a step before."
            )
        self._update(self._rate * learning_rate_share(done))
        progress.step += 1
        progress.tokens += result.tokens
        progress.loss_sum += result.loss
        progress.loss_count += 1
        progress.seconds = monotonic() - self._began
        self._tell(result)
        if self.finished or progress.step % self._config.evaluate_every == 0:
            self._measure()
        if not self.finished and monotonic() - self._saved > 60.0 * self._config.checkpoint_minutes:
            self.save()

    def _update(self, rate: float) -> None:
        parameters = list(self._task.parameters.values())
        torch.nn.utils.clip_grad_norm_(parameters, LARGEST_GRADIENT)
        for optimiser in self._optimisers:
            for group in optimiser.param_groups:
                group["lr"] = rate
            optimiser.step()
            optimiser.zero_grad()

    def _tell(self, result: StepResult) -> None:
        progress = self.progress
        note = f"step {progress.step}, loss {result.loss:.3f}, {progress.tokens / progress.seconds:.0f} tokens/s"
        done = progress.step if self._config.steps is not None else progress.seconds
        self._observer.advance(done, note)

    def _measure(self) -> None:
        progress = self.progress
        loss = progress.loss_sum / progress.loss_count
        progress.loss_sum, progress.loss_count = 0.0, 0
        point = {
            "step": progress.step,
            "tokens": progress.tokens,
            "seconds": round(progress.seconds, 3),
            "loss": loss,
        }
        self.curve.add({**point, **self._task.evaluate()})
        progress.seconds = monotonic() - self._began

    def save(self) -> None:
        """Write a checkpoint, unless there is one of this step: the one before it is to be another."""
        if self._saved_step != self.progress.step:
            self._folder.save(self._task.parameters, self._optimisers, self.progress)
        self._saved, self._saved_step = monotonic(), self.progress.step


class _Interrupt:
    """Puts Ctrl-C off to the end of a step, where there is something whole to save; a second one is not."""

    def __init__(self) -> None:
        self.asked = False
        self._before: Callable[[int, FrameType | None], object] | int | None = None

    def __enter__(self) -> _Interrupt:
        # Only the main thread may say what a signal does; elsewhere, or where it is ignored, it stays as it is.
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
