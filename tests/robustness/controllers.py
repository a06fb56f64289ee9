"""Controllers that answer nonsense, at any temperature.

From some call on, a controller does something wrong. The text must be what the target generates with the
controller's last valid answer, and the controller must be named.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch

from specdec_core.decoding import BatchResult, Decoder
from specdec_core.interface import (
    Drafter,
    DraftRequest,
    DraftSession,
    PluginConfig,
    Proposal,
    SessionInfo,
    TargetInfo,
    TokenTree,
)
from tests.robustness.attack import BrokenError
from tests.robustness.plugins import (
    BATCH,
    GAMMA,
    LENGTH,
    PROMPTS,
    VOCAB,
    FaultyDrafter,
    FaultyGamma,
    FaultyLenience,
    Script,
    target,
)

LENIENCE = 0.5
NEVER = Script("nowhere", 0, None)
"""Does nothing wrong."""


class DrawingDrafter(Drafter):
    """Draws lines and trees from one distribution."""

    drafts_trees = True

    def __init__(self) -> None:
        super().__init__(PluginConfig(), TargetInfo(vocab_size=VOCAB))

    def open(self, session: SessionInfo) -> DraftSession:
        return _DrawingSession()


class _DrawingSession(DraftSession):
    def propose(self, request: DraftRequest) -> Proposal:
        logits = torch.linspace(0, 2, VOCAB).expand(BATCH, VOCAB)
        width = 1
        while request.wants_more():
            if request.tree is None:
                request.sample(logits)
            else:
                width = request.branch(logits[:, None].expand(-1, width, -1)).tokens.shape[1]
        return request.proposal()


WRONG: dict[str, dict[str, Callable[[], Any]]] = {
    "gamma.plan": {
        "a number": lambda: 4,
        "floats": lambda: [2.0] * BATCH,
        "None": lambda: None,
        "10**9": lambda: [10**9] * BATCH,
        "negative": lambda: [-1] * BATCH,
        "numpy floats": lambda: np.full(BATCH, 2.5),
        "a float tensor": lambda: torch.full((BATCH,), 2.5),
        "too few": lambda: [4] * (BATCH - 1),
        "too many": lambda: [4] * (BATCH + 1),
        "a generator": lambda: (4 for _ in range(BATCH + 1)),
        "text": lambda: "444",
        "nested": lambda: [[4]] * BATCH,
        "the class": lambda: TokenTree,
        "a large tree": lambda: TokenTree((-1,) * (GAMMA + 1)),
    },
    "gamma.keep_drafting": {
        "None": lambda: None,
        "True": lambda: True,
        "too few": lambda: [True] * (BATCH - 1),
        "too many": lambda: [True] * (BATCH + 1),
        "a matrix": lambda: np.ones((BATCH, 2)),
    },
    "lenience.lenience": {
        "a number": lambda: 0.9,
        "NaN": lambda: [float("nan")] * BATCH,
        "infinity": lambda: [float("inf")] * BATCH,
        "0": lambda: [0.0] * BATCH,
        "negative": lambda: [-0.5] * BATCH,
        "above 1": lambda: [1.5] * BATCH,
        "1e-60": lambda: [1e-60] * BATCH,
        "nested NaN": lambda: [[0.5, float("nan")]] * BATCH,
        "empty": lambda: [[]] * BATCH,
        "nested twice": lambda: [[[0.5]]] * BATCH,
        "too few": lambda: [0.5] * (BATCH - 1),
        "too many": lambda: [0.5] * (BATCH + 1),
        "text": lambda: ["half"] * BATCH,
        "None": lambda: None,
        "complex": lambda: [0.5j] * BATCH,
    },
}
"""Wrong answers of a controller."""


def controllers(random: Random, _: Path) -> Iterator[str]:
    """A controller answers nonsense."""
    call, temperature = random.randrange(3), random.choice([0, 1])
    point = random.choice(list(WRONG))
    what = random.choice(sorted(WRONG[point]))
    yield f"{point}: {what}, from call {call + 1} on, temperature {temperature}"
    script = Script(point, call, lambda _: WRONG[point][what]())
    shape = random.choice([None, TokenTree((-1, -1, 0))]) if point == "gamma.plan" else None
    last = {
        "gamma.plan": (shape or [GAMMA] * BATCH) if call else [0] * BATCH,
        "gamma.keep_drafting": [True] * BATCH,
        "lenience.lenience": [LENIENCE if call else 1.0] * BATCH,
    }[point]
    of_lenience = point.startswith("lenience")

    def decoded(script: Script) -> BatchResult:
        lenience = FaultyLenience(script, LENIENCE) if of_lenience else None
        gamma = FaultyGamma(script, shape)
        return decode(temperature, drafter=DrawingDrafter(), gamma=gamma, lenience=lenience)

    name = "FaultyLenience" if of_lenience else "FaultyGamma"
    compare(decoded(script), decoded(Script(point, call, lambda _: last)), name if script.done else "")


def decode(temperature: float, **plugins: Any) -> BatchResult:
    """Decode with some plugins instead of those that behave; check that the numbers of the result are numbers."""
    plugins = {"drafter": FaultyDrafter(NEVER), "gamma": FaultyGamma(NEVER)} | plugins
    result = Decoder(target(), temperature=temperature, **plugins).generate(PROMPTS, seed=3, **LENGTH)
    numbers = [asdict(result.metrics), [one.tokens for one in result], [str(one) for one in result.failures]]
    json.dumps(numbers, allow_nan=False)
    deviation = result.metrics.deviation
    if not 0 <= deviation <= 1000:
        raise BrokenError(f"a deviation of {deviation}")
    return result


def compare(result: BatchResult, right: BatchResult, name: str) -> None:
    """Raise `BrokenError` if the texts differ, or a plugin with this name is not in the list of failures."""
    if [one.tokens for one in result] != [one.tokens for one in right]:
        raise BrokenError("other tokens")
    if name and name not in {one.plugin for one in result.failures}:
        raise BrokenError(f"{name} is not named: {[str(one) for one in result.failures]}")
    if wrong := {one.plugin for one in result.failures} - {name, "FaultyRule", "FaultyGamma", "FaultyLenience"}:
        raise BrokenError(f"blamed: {wrong}")
