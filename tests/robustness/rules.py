"""Acceptance rules that answer nonsense, and write to what they are given, at any temperature.

From some call on, a rule does something wrong. The text must be what the target generates with Algorithm 1 and the
same random numbers, and the rule must be named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from random import Random
from typing import Any

import torch

from specdec_core.interface import AcceptanceResult
from specdec_core.verification import SpeculativeSampling
from tests.robustness.attack import BrokenError
from tests.robustness.controllers import NEVER, compare, decode
from tests.robustness.plugins import ERRORS, Script, expected
from tests.robustness.proposals import TENSORS


class FaultyRule(SpeculativeSampling):
    """Algorithm 1, until its script says otherwise."""

    def __init__(self, script: Script) -> None:
        super().__init__()
        self.script = script

    def sample(self, *given: Any) -> Any:
        return self.script.at("rule", given, super().sample(*given))

    def greedy(self, *given: Any) -> Any:
        return self.script.at("rule", given, super().greedy(*given))


def _answer(given: Sequence[Any]) -> AcceptanceResult:
    method = SpeculativeSampling().sample if len(given) == 4 else SpeculativeSampling().greedy
    made = method(*given)
    return replace(made, deviation=torch.zeros(given[0].tokens.shape))


WHOLE: dict[str, Callable[[Any], Any]] = {
    "None": lambda _: None,
    "the class": lambda _: AcceptanceResult,
    "a tuple": lambda made: tuple(getattr(made, field.name) for field in fields(made)),
    "a dict": asdict,
    "nothing is sound": lambda made: replace(made, sound=made.sound & False),
    "a deviation of 1e300": lambda made: replace(made, deviation=made.deviation.double() + 1e300),
}
SAME = {"zero", "overlapping", "not contiguous", "transposed"}
"""Ways to change a tensor after which an answer may be legal."""
EDITS: dict[str, Callable[[Sequence[Any]], Any]] = {
    "p becomes NaN": lambda given: given[1].fill_(float("nan")),
    "p is reversed": lambda given: given[1].copy_(given[1].flip(-1)),
    "draft tokens become 10**6": lambda given: given[0].tokens.fill_(10**6),
    "draft tokens become 3": lambda given: given[0].tokens.fill_(3),
    "random numbers become 2": lambda given: given[-1].fill_(2) if len(given) == 4 else None,
}


def rules(random: Random, _: Path) -> Iterator[str]:
    """An acceptance rule answers nonsense, raises, or writes to what it was given."""
    call, temperature = random.randrange(3), random.choice([0, 1])
    kind = random.choice(["answer", "field", "field", "edit", "edit", "raise"])
    named = kind in ("answer", "raise")
    if kind == "answer":
        what = random.choice(sorted(WHOLE))

        def act(given: Any) -> Any:
            return WHOLE[what](_answer(given))
    elif kind == "field":
        field = random.choice(["accepted", "token", "sound", "deviation"])
        change = random.choice(sorted(TENSORS.keys() - SAME))
        what = f"{field} is {change}"

        def act(given: Any) -> Any:
            made = _answer(given)
            return replace(made, **{field: TENSORS[change](getattr(made, field))})
    elif kind == "edit":
        edit, raises = random.choice(sorted(EDITS)), random.random() < 0.5
        what = edit + (" and it raises" if raises else "")

        def act(given: Any) -> Any:
            made = _answer(given)
            EDITS[edit](given)
            if raises:
                raise ValueError("after an edit")
            return made
    else:
        make = random.choice(ERRORS)
        what = f"raises {type(make()).__name__}"

        def act(_: Any) -> Any:
            raise make()

    yield f"rule: {what}, from call {call + 1} on, temperature {temperature}"
    script = Script("rule", call, act)
    result = decode(temperature, rule=FaultyRule(script))
    compare(result, decode(temperature, rule=FaultyRule(NEVER)), "FaultyRule" if named and script.done else "")
    if not temperature and tuple(one.tokens for one in result) != expected():
        raise BrokenError("not the target's own tokens")
