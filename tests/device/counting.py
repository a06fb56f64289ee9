"""What one step costs the host of a GPU: waits, copies and launches, counted on the simulated one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torch import nn

from specdec_core.decoding import Decoder
from tests.device.cases import PROMPTS, TOKENS
from tests.simulated_gpu import Counts, counted

WARM_UP = 2
"""Steps that are not counted: the prompt's, and the first of what is allocated once."""


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


@contextlib.contextmanager
def outside_of_modules() -> Iterator[Callable[[], int]]:
    """Give a function that returns the launches since, without those of modules."""
    from tests.simulated_gpu import launches

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
    stream = decoder.stream(PROMPTS[:rows], max_new_tokens=TOKENS, seed=3, **settings)
    total, most = Counts(""), [0] * 6
    for _ in range(WARM_UP):
        next(stream)
    while True:
        with counted() as counts, outside_of_modules() as outside:
            if next(stream, None) is None:
                break
            launches = outside()
        kinds = (("fetch", "synchronize"), ("upload",), ("upload_pageable",), ("upload_pinned",))
        step = [*(counts.of(*kind) for kind in kinds), launches, counts.allocations]
        most = list(map(max, most, step))
        total.events.update(counts.events)
    return Cost(*most), total
