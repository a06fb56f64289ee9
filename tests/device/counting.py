"""Costs of a step to the host of a GPU: waits, copies and launches, counted on the simulated one.

python -m tests.device.counting    count again, and write launches.json
"""

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from torch import nn

from specdec_core.decoding.decoder import Decoder
from specdec_core.models import compile_model
from specdec_drafters.common.model_drafter import ModelDrafter
from tests import simulated_gpu
from tests.catalogue import plugin_of
from tests.device.cases import PROMPTS, catalogue_on, target_on
from tests.simulated_gpu import Counts, counted, launches
from tests.toys import Gamma

TOKENS = 24
WARM_UP = 2
"""Steps that are not counted: the prompt's, and the first of what is allocated once."""
CAPTURES = 3
"""Texts after which nothing is left to capture, or to compare with an eager pass."""


@dataclass(frozen=True)
class Cost:
    """The most that a step took after the first ones.

    Attributes:
        fetches: How often the host waited for a value.
        blocking: Copies to the device for which it waited.
        pageable: Copies to the device, not blocking, from memory that is not pinned.
        pinned: The same from pinned memory.
        launches: Kernels and copies outside of models.
        allocations: Tensors that got memory of the device, within models too.
    """

    fetches: int
    blocking: int
    pageable: int
    pinned: int
    launches: int
    allocations: int


LINES = (
    *(None, "random", "bigram", "copy-recent", "suffix", "datastore", "transformer", "early-exit", "heads"),
    *("eagle3", "eagle3-parallel", "parallel", "dflash", "mtp", "chain", "hierarchy-bigram"),
    *("translated", "translated-text"),
)
TREES = (
    *("trigram", "copy-recent", "transformer", "early-exit", "heads", "eagle3", "eagle3-parallel"),
    *("parallel", "dflash", "mtp"),
)
CAPTURED = (None, "bigram", "copy-recent", "transformer", "early-exit", "heads", "eagle3")
"""With the forward passes of the target, and of a draft model, captured."""
OTHER_NAMES = {None: "no drafter", "translated-text": "translated, slem", "eagle3-parallel": "eagle3, parallel"}
"""What the table calls them, if not by the name of their plugin."""
RULES = ("block", "typical", "top-k", "rejection")
SETTINGS = {"greedy, 1 sequence": (0, 1), "temperature 1, 4 sequences": (1, 4)}
"""Temperature and sequences, by what the table calls them."""


@dataclass(frozen=True)
class Case:
    """What is decoded: a name for the table, and arguments of the decoder."""

    name: str
    temperature: float
    rows: int
    who: str | None
    family: str = "llama"
    widths: tuple[int, ...] | None = None
    rule: str | None = None
    beams: int = 1
    captured: bool = False

    def cost(self) -> tuple[Cost, Counts]:
        """Return what a step costs, and where."""
        gamma = {"name": "tree", "widths": self.widths} if self.widths else Gamma(3)
        drafted = {}
        if self.who:
            drafter = catalogue_on("cuda", self.family).make(self.who, afresh=True)
            if self.captured and isinstance(drafter, ModelDrafter):
                drafter.loaded = compile_model(drafter.loaded)
            drafted = {"drafter": drafter, "gamma": gamma}
        target = target_on("cuda", self.family, graphs=self.captured)
        made = Decoder(target, temperature=self.temperature, rule=self.rule, strict=True, **drafted)
        for _ in range(CAPTURES if self.captured else 0):
            made.generate(PROMPTS[: self.rows], max_new_tokens=TOKENS, seed=3, ignore_eos=True)
        return cost_of(made, self.rows, **({"beams": self.beams} if self.beams > 1 else {}))


def _name(who: str | None, rest: str = "") -> str:
    return (OTHER_NAMES.get(who) or plugin_of(who)) + rest


def cases() -> Iterator[tuple[str, Case]]:
    """Give each case with the name of its settings."""
    for setting, (temperature, rows) in SETTINGS.items():
        for who in LINES:
            yield setting, Case(_name(who), temperature, rows, who)
        for who in CAPTURED:
            yield setting, Case(_name(who, ", captured"), temperature, rows, who, captured=True)
        for who in TREES:
            yield setting, Case(_name(who, ", tree"), temperature, rows, who, widths=(2, 2))
        yield setting, Case("T5: no drafter", temperature, rows, None, "t5")
        yield setting, Case("T5: transformer", temperature, rows, "transformer", "t5")
        if temperature:
            for rule in RULES:
                yield setting, Case(f"transformer, rule {rule}", temperature, rows, "transformer", rule=rule)
        else:
            for who in (None, "copy-recent", "transformer"):
                yield setting, Case(_name(who, ", 3 beams"), temperature, rows, who, beams=3)


@contextlib.contextmanager
def outside_of_modules() -> Iterator[Callable[[], int]]:
    """Give a function that returns the launches since, without those of modules."""
    depth, begun, inside, start = 0, 0, 0, launches()

    def enter(*_: object) -> None:
        nonlocal depth, begun
        depth += 1
        if depth == 1:
            begun = launches()

    def leave(*_: object) -> None:
        nonlocal depth, inside
        depth -= 1
        if depth == 0:
            inside += launches() - begun

    hooks = (
        nn.modules.module.register_module_forward_pre_hook(enter),
        nn.modules.module.register_module_forward_hook(leave, always_call=True),
    )
    try:
        yield lambda: launches() - start - inside
    finally:
        for hook in hooks:
            hook.remove()


def cost_of(decoder: Decoder, rows: int, **settings) -> tuple[Cost, Counts]:
    """Return what a step costs, and the counts of all counted steps with their lines."""
    stream = decoder.stream(PROMPTS[:rows], max_new_tokens=TOKENS, seed=3, ignore_eos=True, **settings)
    total, most = Counts(""), [0] * 6
    for _ in range(WARM_UP):
        next(stream)
    while True:
        with counted() as counts, outside_of_modules() as outside:
            if next(stream, None) is None:
                break
            own = outside()
        kinds = (("fetch", "synchronize"), ("upload",), ("upload_pageable",), ("upload_pinned",))
        step = [*(counts.of(*kind) for kind in kinds), own, counts.allocations]
        most = list(map(max, most, step))
        total.events.update(counts.events)
    return Cost(*most), total


if __name__ == "__main__":
    simulated_gpu.install()
    found: dict[str, dict[str, dict[str, int]]] = {}
    for setting, case in cases():
        found.setdefault(setting, {})[case.name] = asdict(case.cost()[0])
    Path(__file__).with_name("launches.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
