"""Where a step's time goes: the two models' forwards, and what the framework adds around them.

A target and a drafter with random weights and a large vocabulary decode one sequence and eight. The forwards are
timed by wrapping them; the rest of a step is the framework's, split by function. With `--against`, another
checkout runs the same cells in turns with this one. Beside them, what each controller that is installed takes a
step, by itself. Prints one JSON object.

    python benchmarks/overhead.py --vocab 128000 --gamma 8 --rows 1
    python benchmarks/overhead.py --part steps --against ../specdec-before
    python benchmarks/overhead.py --part controllers
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import chain, product
from pathlib import Path
from statistics import median
from subprocess import PIPE, Popen
from time import perf_counter
from typing import Any, NamedTuple

import torch
from _common import floor_seconds, random_llama, ratios, report, spread
from pydantic import ValidationError

from specdec_core import default_registry
from specdec_core.decoding import proposer
from specdec_core.decoding.decoder import Decoder
from specdec_core.decoding.drawing import DraftRecorder
from specdec_core.decoding.proposer import Proposer
from specdec_core.decoding.step import Batch
from specdec_core.interface import BatchInfo, GammaSession, LenienceSession, Outcome, PluginConfig, StepReport
from specdec_core.interface.settings import GenerationSettings, SamplingSettings
from specdec_core.interface.spec import PluginKind
from specdec_core.models import LoadedModel, ModelSession, wrap_model
from specdec_core.registry.registry import Registry
from specdec_core.sampling.generators import RowGenerators
from specdec_core.sampling.logits import LogitsToProbs
from specdec_core.verification import SpeculativeSampling
from specdec_drafters.settings import TransformerConfig
from specdec_drafters.transformer import TransformerDrafter


def main() -> None:
    """Measure what was asked for."""
    options = parse()
    torch.set_num_threads(options.threads)
    if options.serve:
        serve(Bench(options))
        return
    result: dict[str, Any] = {"benchmark": "overhead"}
    if options.part in ("steps", "both"):
        result |= of_steps(options)
    if options.part in ("controllers", "both"):
        result["controllers"] = {
            "limit_microseconds_a_step": CONTROLLER_LIMIT,
            "microseconds_a_step": [cell for rows in (1, 8) for cell in of_controllers(rows, options.gamma)],
        }
    report(result)


def of_steps(options: argparse.Namespace) -> dict[str, Any]:
    """Measure steps at each temperature, context and number of rows; in turns with another checkout."""
    cells = [Cell(*each) for each in product(options.temperatures, options.contexts, options.rows)]
    bench = Bench(options)
    sides: dict[str, Callable[[Cell], Steps]] = {"after": bench.run}
    with ExitStack() as entered:
        if options.against:
            sides = {"before": entered.enter_context(other_checkout(options.against)), **sides}
        results = [measure(cell, sides, options.rounds) for cell in cells]
    return {
        "vocab": options.vocab,
        "gamma": options.gamma,
        "target_bytes": sum(weight.nbytes for weight in bench.target.model.parameters()),
        "floor_ms_a_target_call": round(1e3 * floor_seconds(bench.target.model), 3),
        "results": results,
    }


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=("steps", "controllers", "both"), default="both")
    parser.add_argument("--vocab", type=int, default=32_000)
    parser.add_argument("--gamma", type=int, default=4)
    parser.add_argument("--layers", type=int, default=4, help="layers of the target; the drafter has one")
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 1.0])
    parser.add_argument("--contexts", type=int, nargs="+", default=[100, 1000, 4000], help="tokens of the prompt")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8], help="sequences decoded together")
    parser.add_argument("--steps", type=int, default=150, help="new tokens of a sequence in each round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--compile", action="store_true", help="compile the passes of both models")
    parser.add_argument("--against", type=Path, metavar="CHECKOUT", help="another checkout, to take turns with")
    parser.add_argument(SERVE, action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    return parser.parse_args()


def small_drafter(options: argparse.Namespace, target: LoadedModel) -> TransformerDrafter:
    """Return the transformer drafter on a random model of one layer."""
    with tempfile.TemporaryDirectory() as folder:
        random_llama(options.vocab, 1, options.hidden).save_pretrained(folder)
        return TransformerDrafter(TransformerConfig(model=folder), target.info())


class Clock:
    """Adds up the seconds spent in wrapped functions; inner ones are taken off the outer ones' account."""

    def __init__(self) -> None:
        self.totals: dict[str, float] = defaultdict(float)
        self._inner: list[float] = []

    def wrap(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, timed."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            self._inner.append(0.0)
            begun = perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                spent = perf_counter() - begun
                self.totals[name] += spent - self._inner.pop()
                if self._inner:
                    self._inner[-1] += spent

        return timed


Part = tuple[Any, str, str]
"""Owner, attribute, label."""


INNER_PARTS: list[Part] = [
    (ModelSession, "forward", "laying out blocks"),
    (DraftRecorder, "sample", "sampling drafts"),
    (RowGenerators, "numbers", "random numbers"),
    (proposer, "validate", "validating the proposal"),
    (LogitsToProbs, "__call__", "standardizing"),
    (SpeculativeSampling, "sample", "acceptance"),
    (SpeculativeSampling, "greedy", "acceptance"),
    (Batch, "_append", "committing"),
    (Proposer, "propose", "asking the drafter"),
    (Batch, "step", "rest of the step"),
]


@contextmanager
def timed_parts(clock: Clock, parts: list[Part]) -> Iterator[None]:
    """Wrap some parts of a step for a while."""
    kept = [(owner, name, getattr(owner, name)) for owner, name, _ in parts]
    for owner, name, label in parts:
        setattr(owner, name, clock.wrap(label, getattr(owner, name)))
    try:
        yield
    finally:
        for owner, name, function in kept:
            setattr(owner, name, function)


class Cell(NamedTuple):
    """The settings that are varied."""

    temperature: float
    context: int
    rows: int


class Steps(NamedTuple):
    """Milliseconds of the steps of one round: the framework's, the whole, and each part in a separate run."""

    framework: list[float]
    whole: list[float]
    parts: dict[str, list[float]]


class Bench:
    """Two random models, and the runs of cells with them."""

    def __init__(self, options: argparse.Namespace) -> None:
        torch.manual_seed(0)
        self._options = options
        self.target = wrap_model(random_llama(options.vocab, options.layers, options.hidden))
        self._drafter = small_drafter(options, self.target)
        self._passes: list[Part] = []
        if options.compile:
            # Imported here: the other checkout may be too old to have it.
            from specdec_core.models import compile_model
            from specdec_core.models.fast.static import CheckedPass

            self.target = compile_model(self.target)
            self._drafter.loaded = compile_model(self._drafter.loaded)
            self._passes = [(CheckedPass, "__call__", "compiled passes")]

    def run(self, cell: Cell) -> Steps:
        """Time the steps after prompts of some length: the whole first, with as little in the way as can be."""
        sampling = SamplingSettings(temperature=cell.temperature)
        decoder = Decoder(self.target, self._drafter, gamma=self._options.gamma, sampling=sampling, strict=True)
        prompts = torch.randint(0, self._options.vocab, (cell.rows, cell.context)).tolist()
        drafter = self._drafter.loaded.model
        models: list[Part] = [
            (self.target.model, "forward", "target forward"),
            (drafter, "forward", "drafter forward"),
        ]
        models += self._passes
        self._watch(decoder, prompts, models)  # warm up
        alone = self._watch(decoder, prompts, models)
        inner = self._watch(decoder, prompts, models + INNER_PARTS)
        names = dict.fromkeys(label for _, _, label in models + INNER_PARTS)
        parts = {name: [spent.get(name, 0.0) for _, spent in inner] for name in names}
        return Steps([whole - sum(spent.values()) for whole, spent in alone], [whole for whole, _ in alone], parts)

    def _watch(
        self, decoder: Decoder, prompts: list[list[int]], parts: list[Part]
    ) -> list[tuple[float, dict[str, float]]]:
        """Return the milliseconds of each step with drafts of full length, and of the wrapped parts in it."""
        clock, before, steps = Clock(), dict[str, float](), []
        settings = GenerationSettings(max_new_tokens=self._options.steps, ignore_eos=True)
        with timed_parts(clock, parts):
            for report in decoder.stream(prompts, settings):
                spent = {name: 1e3 * (total - before.get(name, 0.0)) for name, total in clock.totals.items()}
                before = dict(clock.totals)
                # Not the prompt's step, nor the last ones, in which there is less room.
                if report.step and min(report.outcome.drafted) == self._options.gamma:
                    steps.append((1e3 * report.step_seconds, spent))
        return steps


def measure(cell: Cell, sides: Mapping[str, Callable[[Cell], Steps]], rounds: int) -> dict[str, Any]:
    """Run a cell on each side in turns; return the spreads, and the ratio of the framework's medians by round."""
    made: dict[str, list[Steps]] = {side: [] for side in sides}
    for _ in range(rounds):
        for side, run in sides.items():
            made[side].append(run(cell))
    result: dict[str, Any] = cell._asdict()
    for side, steps in made.items():
        parts = {name: list(chain.from_iterable(one.parts[name] for one in steps)) for name in steps[0].parts}
        result[side] = {
            "framework_ms_a_step": spread([ms for one in steps for ms in one.framework]),
            "step_ms": spread([ms for one in steps for ms in one.whole]),
            "parts_ms_a_step": {name: round(median(ms), 4) for name, ms in parts.items()},
        }
    if "before" in made:
        medians = {side: [median(one.framework) for one in steps] for side, steps in made.items()}
        result["before_over_after"] = ratios(medians["before"], medians["after"])
    return result


# --- another checkout, in a separate process ---------------------------------------------------------------

SERVE = "--serve"


def serve(bench: Bench) -> None:
    """Answer each cell that comes as a line of JSON with its steps."""
    for line in sys.stdin:
        print(json.dumps(bench.run(Cell(*json.loads(line)))), flush=True)


@contextmanager
def other_checkout(folder: Path) -> Iterator[Callable[[Cell], Steps]]:
    """Run this benchmark as it is in another checkout; yield a function that runs a cell there."""
    packages = [folder.resolve() / part for part in (".", "drafters", "plugins", "models")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, packages))}
    command = [sys.executable, str(folder / "benchmarks" / "overhead.py"), *sys.argv[1:], SERVE]
    with Popen(command, stdin=PIPE, stdout=PIPE, text=True, env=environment) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        answers = process.stdout

        def run(cell: Cell) -> Steps:
            print(json.dumps(cell), file=process.stdin, flush=True)
            answer = answers.readline()
            if not answer:
                raise SystemExit(f"the checkout in {folder} ended early: see its messages above")
            return Steps(*json.loads(answer))

        yield run
        process.stdin.close()


# --- controllers by themselves -------------------------------------------------------------------------------

CONTROLLER_LIMIT = 20
"""Microseconds a step that a controller may take."""
CONTROLLER_KINDS: tuple[PluginKind, ...] = ("gamma", "lenience")
CONTROLLER_STEPS = 2000
CONTROLLER_ROUNDS = 7

SETTINGS: dict[str, list[dict[str, Any]]] = {
    "optimal": [{"alpha": 0.7, "c": 0.1}],
    "confidence": [{}, {"learn": True}],
    "greedy": [{"lenience": 0.3}],
    "schedule": [{"points": [[0, 1.0], [5000, 0.1]]}],
    "budgeted": [{"max_deviation": 5.0}],
}
"""Settings of the controllers that need some, or are worth timing with others than their own."""


def of_controllers(rows: int, gamma: int) -> Iterator[dict[str, Any]]:
    """Yield what each installed controller takes a step; `gamma`: of the drafts that lenience judges."""
    registry = default_registry()
    for kind in CONTROLLER_KINDS:
        for name in registry.names(kind):
            for settings in SETTINGS.get(name, [{}]):
                cell = {"kind": kind, "name": name, "settings": settings, "rows": rows}
                try:
                    config = registry.spec(kind, name).config(**settings)
                except ValidationError:
                    yield {**cell, "left_out": "needs settings that are not in SETTINGS of this script"}
                    continue
                times = [
                    time_controller(registry, kind, name, config, rows, gamma) for _ in range(CONTROLLER_ROUNDS)
                ]
                yield {**cell, **spread(times, 2)}


def time_controller(
    registry: Registry, kind: PluginKind, name: str, config: PluginConfig, rows: int, gamma: int
) -> float:
    """Return the microseconds a step of a controller that has just been made."""
    controller = registry.create(kind, name, config)
    most = controller.max_gamma if kind == "gamma" else gamma
    batch = BatchInfo(rows, most, (CONTROLLER_STEPS * (most + 1),) * rows, greedy=False)
    time_session = time_gamma if kind == "gamma" else time_lenience
    return 1e6 * time_session(controller.open(batch), rows, most)


def made_up_steps(rows: int, gamma: int) -> list[StepReport]:
    """Return steps with drafts of `gamma` tokens, each accepted with 0.7, on a machine that is not quite even."""
    chance = random.Random(gamma)
    steps = []
    for number in range(1, 65):
        accepted = tuple(next((n for n in range(gamma) if chance.random() > 0.7), gamma) for _ in range(rows))
        draft = 0.003 * gamma * chance.uniform(0.9, 1.2)
        verify = (0.045 + 0.006 * gamma) * chance.uniform(0.9, 1.2)
        steps.append(
            StepReport(
                step=number,
                asked=(gamma,) * rows,
                outcome=Outcome(
                    drafted=(gamma,) * rows,
                    accepted=accepted,
                    committed=tuple((7,) * (n + 1) for n in accepted),
                    finished=(False,) * rows,
                ),
                draft_tokens=((7,) * gamma,) * rows,
                draft_seconds=draft,
                verify_seconds=verify,
                step_seconds=draft + verify + 0.001,
                deviation=(0.001,) * rows,
            )
        )
    return steps


def time_gamma(session: GammaSession, rows: int, most: int) -> float:
    """Return the seconds a step of `gamma`, `keep_drafting` for each token and `observe`."""
    chance = random.Random(1)
    confidence = [[chance.uniform(0.3, 1.0) for _ in range(rows)] for _ in range(64)]
    steps = [made_up_steps(rows, gamma) for gamma in range(most + 1)]
    begun = perf_counter()
    for number in range(CONTROLLER_STEPS):
        gamma = max(session.plan())
        if session.uses_confidence:
            for token in range(gamma):
                session.keep_drafting(confidence[(number + token) % 64])
        session.observe(steps[gamma][number % 64])
    return (perf_counter() - begun) / CONTROLLER_STEPS


def time_lenience(session: LenienceSession, rows: int, gamma: int) -> float:
    """Return the seconds a step of `lenience` and `observe`."""
    steps = made_up_steps(rows, gamma)
    begun = perf_counter()
    for number in range(CONTROLLER_STEPS):
        session.lenience()
        session.observe(steps[number % 64])
    return (perf_counter() - begun) / CONTROLLER_STEPS


if __name__ == "__main__":
    main()
