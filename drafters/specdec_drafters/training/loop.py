"""The training loop: steps, learning rate, clipping, evaluation, checkpoints, and a budget of steps or time."""

import importlib.util
import json
import math
import shutil
import signal
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic
from types import FrameType
from typing import Any, Protocol, Self

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.optim import Optimizer

from specdec_core.interface import ConfigError, Progress
from specdec_core.interface.errors import NumericsError
from specdec_core.interface.files import writing_file
from specdec_drafters.settings import TrainingConfig
from specdec_drafters.training.rows import Rows
from specdec_drafters.training.sources import TrainingData

HINT = "pip install 'specdec-core[report]' draws curve.svg"


class Curve:
    """Points of a training run, saved as one JSON object per line.

    Args:
        path: The file to append to.
        progress: Receives every new point.
    """

    def __init__(self, path: Path, progress: Progress) -> None:
        self._path = path
        self._progress = progress
        self.points: list[dict[str, float]] = []

    def resume(self, step: int) -> None:
        """Load the points up to a step; later ones will be measured again."""
        lines = self._path.read_text(encoding="utf-8").splitlines() if self._path.is_file() else []
        self.points = [point for point in map(_point, lines) if point is not None and point["step"] <= step]
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_points(self.points, self._path)

    def add(self, point: Mapping[str, float]) -> None:
        """Append a point, which must have a `step`."""
        self.points.append(dict(point))
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(_line(point))
        self._progress.measured(point)


def _line(point: Mapping[str, float]) -> str:
    return json.dumps(dict(point)) + "\n"


def _point(line: str) -> dict[str, float] | None:
    """Return the point of a line, or None if the line is truncated."""
    try:
        point = json.loads(line)
    except json.JSONDecodeError:
        return None
    return point if isinstance(point, dict) and "step" in point else None


def write_points(points: Iterable[Mapping[str, float]], path: Path) -> None:
    """Write a file with one JSON object per point."""
    path.write_text("".join(map(_line, points)), encoding="utf-8")


def write_curve(points: list[dict[str, float]], folder: Path) -> str:
    """Write `curve.jsonl` and, with matplotlib, `curve.svg` to a folder; return a description."""
    write_points(points, folder / "curve.jsonl")
    if importlib.util.find_spec("matplotlib") is None:
        return f"curve.jsonl ({HINT})"
    _draw(points, folder / "curve.svg")
    return "curve.jsonl, curve.svg"


def _draw(points: list[dict[str, float]], path: Path) -> None:
    """Plot the loss (top) and the held-out alpha with its standard error (bottom) over tokens."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 6), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    trained = [point for point in points if "loss" in point]
    above.plot([point["tokens"] for point in trained], [point["loss"] for point in trained], color="C1")
    above.set_ylabel("loss")
    for name, label, color in (("alpha", "alpha", "C0"), ("greedy_alpha", "greedy alpha", "C2")):
        there = [point for point in points if name in point]
        x, y = [point["tokens"] for point in there], [point[name] for point in there]
        errors = [point.get(f"{name}_error", 0.0) for point in there]
        below.errorbar(x, y, errors, label=label, color=color, marker="o", markersize=3)
    below.set(xlabel="tokens trained on", ylabel="held out", ylim=(0, 1))
    below.legend()
    figure.savefig(path)


WARM_UP, FALL = 0.02, 0.5  # shares of the run


def learning_rate_share(done: float) -> float:
    """Return the learning rate after the share `done` of the run, relative to its peak."""
    return max(0.0, min(1.0, done / WARM_UP, (1.0 - done) / FALL))


def make_optimizers(
    parameters: Mapping[str, Tensor], learning_rate: float, embedding_names: Collection[str] = ()
) -> list[Optimizer]:
    """Return Muon for matrices and AdamW for the rest.

    Muon's steps are scaled to the size of AdamW's, so that one learning rate suits both. It helps short runs; it
    does not suit embeddings, of which a step touches only a few rows.

    Args:
        parameters: The parameters by name.
        learning_rate: Learning rate of both.
        embedding_names: Names of input and output embedding matrices, which AdamW trains.
    """
    body = [weight for name, weight in parameters.items() if weight.dim() == 2 and name not in embedding_names]
    inside = {id(weight) for weight in body}
    rest = [weight for weight in parameters.values() if id(weight) not in inside]
    found: list[Optimizer] = []
    if body:
        found += [torch.optim.Muon(body, lr=learning_rate, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")]
    if rest:
        found += [torch.optim.AdamW(rest, lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.0)]
    return found


def flatten(optimizers: Sequence[Optimizer]) -> dict[str, Tensor]:
    """Return the state of optimizers, which is all in tensors, by name."""
    return {
        f"{index}.{weight}.{name}": value
        for index, optimizer in enumerate(optimizers)
        for weight, state in optimizer.state_dict()["state"].items()
        for name, value in state.items()
    }


def restore(optimizers: Sequence[Optimizer], tensors: Mapping[str, Tensor]) -> None:
    """Load the result of `flatten` into optimizers made in the same way.

    Raises:
        ValueError: The state belongs to other optimizers.
    """
    states: list[dict[int, dict[str, Tensor]]] = [{} for _ in optimizers]
    for key, value in tensors.items():
        index, weight, name = key.split(".", 2)
        if int(index) >= len(states):
            raise ValueError("it has the state of more optimizers")
        states[int(index)].setdefault(int(weight), {})[name] = value
    for optimizer, state in zip(optimizers, states, strict=True):
        optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


_ROW_PARTS = ("tokens", "mask", "sources", "source_mask")


@dataclass
class TrainingState:
    """State of a training run.

    Attributes:
        step: Steps done.
        tokens: Tokens trained on.
        seconds: Time spent, evaluation included.
        loss_sum: Sum of the losses since the last point of the curve.
        loss_count: Number of those losses.
    """

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    loss_sum: float = 0.0
    loss_count: int = 0


class TrainingFolder:
    """Stores what a training run needs to continue after an interruption.

    Args:
        output: Path of the result.
        settings: Options that must be unchanged to resume, with JSON values.
    """

    def __init__(self, output: Path, settings: Mapping[str, Any]) -> None:
        self.path = output.with_name(f"{output.name}.training")
        self._settings = json.loads(json.dumps(dict(settings)))
        self._checkpoint = self.path / "checkpoint.safetensors"
        self._rows = self.path / "rows.safetensors"
        self.curve = self.path / "curve.jsonl"

    def begin(self, *, resume: bool, overwrite: bool) -> None:
        """Check that there is a run to resume, or none in the way of a new one.

        Raises:
            ConfigError: There is nothing to resume; or there is an unfinished run, and neither `resume` nor
                `overwrite` is set.
        """
        if resume:
            if not self._checkpoint.is_file():
                raise ConfigError(
                    f"{self.path} has no checkpoint to resume from; check --output, or start without --resume."
                )
            self._header()
            return
        if self._checkpoint.is_file() and not overwrite:
            raise ConfigError(
                f"{self.path} holds an unfinished training run; --resume continues it, --overwrite starts over."
            )
        self.remove()

    def tidy(self) -> None:
        """Delete the folder if it has no checkpoint."""
        if not self._checkpoint.is_file():
            self.remove()

    def remove(self) -> None:
        """Delete the folder and everything that belongs to the run."""
        for path in (self._checkpoint, self._rows, self.curve):
            path.unlink(missing_ok=True)
        for left in self.path.glob(".*.part"):  # left by a killed process
            shutil.rmtree(left, ignore_errors=True)
        if self.path.is_dir() and not any(self.path.iterdir()):
            self.path.rmdir()

    def save(
        self, parameters: Mapping[str, Tensor], optimizers: Sequence[Optimizer], state: TrainingState
    ) -> None:
        """Write a checkpoint atomically.

        Raises:
            ConfigError: The file cannot be written.
        """
        tensors = {f"weight.{name}": weight for name, weight in parameters.items()}
        tensors |= {f"optimizer.{name}": one for name, one in flatten(optimizers).items()}
        tensors["random.cpu"] = torch.get_rng_state()
        device = _device(parameters)
        if device.type == "cuda":
            tensors["random.cuda"] = torch.cuda.get_rng_state(device)
        header = json.dumps({"settings": self._settings, "state": asdict(state)})
        with writing_file(self._checkpoint) as path:
            save_file(_on_cpu(tensors), path, metadata={"training": header})

    def load(self, parameters: Mapping[str, Tensor], optimizers: Sequence[Optimizer]) -> TrainingState:
        """Load the last checkpoint, in place.

        Raises:
            ConfigError: It is truncated, or has other settings or weights; the message says what to do.
        """
        header = self._header()
        tensors = _read(self._checkpoint)
        saved, states = (_named(tensors, kind) for kind in ("weight.", "optimizer."))
        shapes = {name: weight.shape for name, weight in parameters.items()}
        if {name: weight.shape for name, weight in saved.items()} != shapes:
            raise ConfigError(f"checkpoint {self._checkpoint} has other weights than this run. {_ANEW}")
        with torch.no_grad():
            for name, weight in parameters.items():
                weight.copy_(saved[name])
        try:
            restore(optimizers, states)
        except (ValueError, KeyError) as error:
            raise ConfigError(
                f"checkpoint {self._checkpoint} has another optimizer state (another torch version?): {error}. "
                f"{_ANEW}"
            ) from error
        torch.set_rng_state(tensors["random.cpu"])
        device = _device(parameters)
        if "random.cuda" in tensors and device.type == "cuda":
            torch.cuda.set_rng_state(tensors["random.cuda"], device)
        return TrainingState(**header["state"])

    def save_rows(self, data: TrainingData) -> None:
        """Save the training data: sampling from the target takes time, and a text file may change."""
        tensors: dict[str, Tensor] = {}
        pools = {f"pool.{number}": pool for number, pool in enumerate(data.pools)}
        for name, rows in {**pools, "held": data.held_out}.items():
            parts = ((part, getattr(rows, part)) for part in _ROW_PARTS)
            tensors |= {f"{name}.{part}": tensor for part, tensor in parts if tensor is not None}
        with writing_file(self._rows) as path:
            save_file(_on_cpu(tensors), path)

    def load_rows(self) -> TrainingData:
        """Return the saved training data.

        Raises:
            ConfigError: It is missing or truncated.
        """
        tensors = _read(self._rows)
        names = sorted({name.rsplit(".", 1)[0] for name in tensors} - {"held"})
        return TrainingData(tuple(_rows(tensors, name) for name in names), _rows(tensors, "held"))

    def _header(self) -> dict[str, Any]:
        """Return the header of the checkpoint, whose settings must be those of this run."""
        path = self._checkpoint
        try:
            with safe_open(path, framework="pt") as file:
                header: dict[str, Any] = json.loads(file.metadata()["training"])
        except (SafetensorError, OSError, KeyError, TypeError) as error:
            raise ConfigError(f"{path} is truncated or no checkpoint ({error}). {_ANEW}") from error
        saved, now = header["settings"], self._settings
        others = "; ".join(
            f"--{name.replace('_', '-')} was {saved.get(name)}, is {now.get(name)}"
            for name in sorted(saved.keys() | now.keys())
            if saved.get(name) != now.get(name)
        )
        if others:
            raise ConfigError(
                f"checkpoint {path} has other settings: {others}. Use the original settings, or start over with "
                "--overwrite and without --resume."
            )
        return header


_ANEW = "Start over with --overwrite and without --resume."


def _on_cpu(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}


def _read(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise ConfigError(f"{path} is missing or truncated ({error}). {_ANEW}") from error


def _named(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _device(parameters: Mapping[str, Tensor]) -> torch.device:
    return next(iter(parameters.values())).device


def _rows(tensors: Mapping[str, Tensor], name: str) -> Rows:
    tokens, mask, sources, source_mask = (tensors.get(f"{name}.{part}") for part in _ROW_PARTS)
    assert tokens is not None
    assert mask is not None
    return Rows(tokens, mask, sources, source_mask)


MAX_GRADIENT_NORM = 1.0
"""Gradients are clipped to this norm."""


@dataclass(frozen=True)
class StepResult:
    """The mean loss of a step and its number of tokens."""

    loss: float
    tokens: int


class Objective(Protocol):
    """The parameters to train, their gradients and their evaluation.

    Attributes:
        parameters: The parameters by name, changed in place.
        embedding_names: Names of the parameters that are embedding matrices.
    """

    parameters: Mapping[str, Tensor]
    embedding_names: Collection[str]

    def gradients(self, step: int, done: float) -> StepResult:
        """Accumulate the gradients of a step's mean loss. The same step must use the same batch.

        Args:
            step: Number of the step.
            done: The completed share of the run, 0 to 1.
        """

    def measure(self) -> Mapping[str, float]:
        """Evaluate on held-out text; the result goes into the learning curve (`alpha` and so on)."""


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


@dataclass(eq=False)
class _Loop:
    objective: Objective
    config: TrainingConfig
    learning_rate: float
    folder: TrainingFolder
    progress: Progress

    def __post_init__(self) -> None:
        self._optimizers = make_optimizers(
            self.objective.parameters, self.learning_rate, self.objective.embedding_names
        )
        self.state = TrainingState()
        self.curve = Curve(self.folder.curve, self.progress)
        self._began = self._saved = 0.0
        self._saved_step = -1

    def start(self) -> None:
        """Load the checkpoint, or evaluate before the first step of a new run."""
        if self.config.resume:
            self.state = self.folder.load(self.objective.parameters, self._optimizers)
            self._saved_step = self.state.step
            self.curve.resume(self.state.step)
        else:
            self.curve.add({"step": 0, "tokens": 0, "seconds": 0.0, **self.objective.measure()})
        self.progress.stage("training", self.config.steps or self.config.seconds)
        self._began = monotonic() - self.state.seconds
        self._saved = monotonic()

    @property
    def finished(self) -> bool:
        """Whether the budget is used up."""
        return self._done(self.state.step) >= 1.0

    def _done(self, step: float) -> float:
        if self.config.steps is not None:
            return step / self.config.steps
        assert self.config.seconds is not None
        return self.state.seconds / self.config.seconds

    def step(self) -> None:
        """Take one step, with the evaluation and the checkpoint due after it."""
        state = self.state
        done = min(1.0, self._done(state.step + 0.5))
        result = self.objective.gradients(state.step, done)
        if not math.isfinite(result.loss):
            raise NumericsError(
                f"the loss became {result.loss} in step {state.step + 1}; lower --learning-rate "
                f"({self.learning_rate:g} was used). The last checkpoint is from an earlier step."
            )
        self._update(self.learning_rate * learning_rate_share(done))
        state.step += 1
        state.tokens += result.tokens
        state.loss_sum += result.loss
        state.loss_count += 1
        state.seconds = monotonic() - self._began
        self._tell(result)
        if self.finished or state.step % self.config.evaluate_every == 0:
            self._measure()
        if not self.finished and monotonic() - self._saved > 60.0 * self.config.checkpoint_minutes:
            self.save()

    def _update(self, rate: float) -> None:
        parameters = list(self.objective.parameters.values())
        torch.nn.utils.clip_grad_norm_(parameters, MAX_GRADIENT_NORM)
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
            optimizer.zero_grad()

    def _tell(self, result: StepResult) -> None:
        state = self.state
        note = f"step {state.step}, loss {result.loss:.3f}, {state.tokens / state.seconds:.0f} tokens/s"
        done = state.step if self.config.steps is not None else state.seconds
        self.progress.advance(done, note)

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
        self.curve.add({**point, **self.objective.measure()})
        state.seconds = monotonic() - self._began

    def save(self) -> None:
        """Write a checkpoint unless there is one of this step, so that the previous one is from another step."""
        if self._saved_step != self.state.step:
            self.folder.save(self.objective.parameters, self._optimizers, self.state)
        self._saved, self._saved_step = monotonic(), self.state.step


class _Interrupt:
    """Defers Ctrl-C to the end of the step, when the state can be saved; a second Ctrl-C raises at once."""

    def __init__(self) -> None:
        self.asked = False
        self._before: Callable[[int, FrameType | None], object] | int | None = None

    def __enter__(self) -> Self:
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
