"""Forward passes, and what is decided from their logits, captured as CUDA graphs.

There is one graph for each number of rows and columns, each length of the cache and each kind of decision.

A graph reads and writes the addresses that it was captured with, so caches outlive sessions: one that is closed
leaves its cache, with all graphs captured on it, to the next session that it fits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor

from specdec_core.models.device import inference_only, upload
from specdec_core.models.fast.static import (
    CAPTURING,
    WIDEST,
    CheckedPass,
    Outputs,
    Rows,
    StaticForward,
    StaticPasses,
)
from specdec_core.models.fast.static_step import READ, Decision, Line, StaticDecision, StaticLine
from specdec_core.models.loaded import LoadedModel
from specdec_core.models.run.cache import SlotCache
from specdec_core.models.run.encoder import EncoderMemory
from specdec_core.models.run.forward import Output

WIDTHS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, WIDEST)
"""Numbers of columns that are captured. A block is padded to the next."""
SHORTEST = 128
"""Number of slots that the shortest graphs attend to. Others attend to twice as many, four times, and so on."""
IDLE = 2
"""Number of caches that are kept for later sessions."""

Function: TypeAlias = Callable[..., Outputs]
Capture: TypeAlias = Callable[[Function, Sequence[Tensor], "GraphCache"], Function]
"""Captures a function on its arguments, which stay where they are; returns what replays it on their new values.

The next replay on the cache may overwrite what a replay returns."""


class GraphCache(SlotCache):
    """A cache whose addresses are part of graphs.

    Attributes:
        graphs: The captured functions and the inputs of each, by columns, slots, layers that are kept, and the
            function of a decision. Their arguments are the inputs and then the buffers of the cache.
        pool: Of the memory that its graphs share. They are replayed one at a time.
    """

    def __init__(self, batch_size: int, capacity: int) -> None:
        super().__init__(batch_size, capacity, fixed=True)
        self.graphs: dict[Hashable, tuple[CheckedPass, Sequence[Tensor]]] = {}
        self.pool: Any = None

    def resume(self, rows: Sequence[int], maximum: int) -> None:
        """See `SlotCache.resume`. Buffers that move take their graphs with them, so they at least double."""
        if list(rows) == list(range(self.rows)) and maximum <= self.capacity:
            return
        self.graphs.clear()
        self.pool = None
        if maximum > self.capacity:
            maximum = _rounded(max(maximum, 2 * self.capacity))
        super().resume(rows, maximum)

    def clear(self) -> None:
        """Zero what masks leave out by multiplying it by zero: the last text may have ended in NaN."""
        inputs = (tensor for _, inputs in self.graphs.values() for tensor in inputs if tensor.is_floating_point())
        for tensor in (*self.buffers(), *inputs):
            tensor.zero_()

    def slots(self, rows: Rows) -> int:
        """Return the number of slots that a graph attends to for a pass."""
        slots = SHORTEST
        while slots < max(length + count for length, _, count in zip(*rows, strict=True)):
            slots *= 2
        return min(slots, self.capacity)


class GraphPasses(StaticPasses):
    """Passes captured as graphs, on first use.

    Args:
        loaded: The model, on a GPU.
        tolerance: As for `CheckedPass`.
        capture: How a function is captured.
    """

    def __init__(self, loaded: LoadedModel, tolerance: float, capture: Capture | None = None) -> None:
        super().__init__(loaded, tolerance)
        self._capture = capture or capture_graph
        self._idle: list[GraphCache] = []
        self._lock = threading.Lock()

    def cache(self, rows: int, capacity: int, layers: Sequence[int]) -> SlotCache:
        """See `StaticPasses`. The capacity may be larger."""
        kind = rows, tuple(layers)
        with self._lock:
            fitting = [one for one in self._idle if (one.rows, one.kept) == kind and one.capacity >= capacity]
            if fitting:
                found = min(fitting, key=lambda cache: cache.capacity)
                self._idle.remove(found)
                return found
        return GraphCache(rows, _rounded(capacity))

    @inference_only
    def give_back(self, cache: SlotCache) -> None:
        """See `StaticPasses`."""
        assert isinstance(cache, GraphCache)
        cache.clear()
        with self._lock:
            self._idle = [*self._idle, cache][-IDLE:]

    def run(
        self, cache: SlotCache, memory: EncoderMemory | None, layers: Sequence[int], tokens: Tensor, rows: Rows
    ) -> Output | None:
        """See `StaticPasses`."""
        assert isinstance(cache, GraphCache)
        if memory is not None:
            return None
        width, slots = _width(tokens.shape[1]), cache.slots(rows)
        kind = (width, slots, tuple(layers))
        found = cache.graphs.get(kind)
        if found is None:
            zeros = partial(torch.zeros, dtype=torch.long, device=tokens.device)
            numbers = torch.arange(slots, device=tokens.device)
            inputs: Sequence[Tensor] = (zeros(cache.rows, width), zeros(3, cache.rows), numbers)
        else:
            inputs = found[1]
        inputs[0][:, : tokens.shape[1]].copy_(tokens)  # columns to the right keep tokens that `rows` leaves out
        upload(rows, inputs[1])
        if found is None:
            function = StaticForward(self._loaded, layers, len(cache.buffers()))
            found = self._captured(cache, kind, function, inputs)
        return Output(*found[0](*inputs, *cache.buffers())).map(Tensor.clone)

    @property
    def decides(self) -> bool:  # type: ignore[override]
        """See `StaticPasses`. On a CPU, where tests trace passes, drafts are verified one row at a time."""
        return self._loaded.device.type == "cuda"

    def decide(
        self,
        cache: SlotCache,
        layers: Sequence[int],
        last: Sequence[int],
        draft: Tensor,
        rows: Rows,
        decision: Decision,
    ) -> tuple[Output, Outputs]:
        """See `StaticPasses`."""
        assert isinstance(cache, GraphCache)
        width, slots = _width(1 + draft.shape[1]), cache.slots(rows)
        tensors = (draft, *decision.tensors)
        fixed = decision.fixed and draft.shape[1] == width - 1
        kind = (width, slots, tuple(layers), decision.function, fixed)
        found = cache.graphs.get(kind)
        if found is not None and fixed and _addresses(found[1][2:]) != _addresses(tensors):
            found = None  # they were captured with another cache of the drafter
        if found is None:
            size = cache.rows, 4 + len(decision.numbers) * width
            of_rows = torch.zeros(size, dtype=torch.double, device=draft.device)
            columns = [tensor.new_zeros(cache.rows, width - 1, *tensor.shape[2:]) for tensor in tensors]
            keys = torch.arange(slots, device=draft.device)
            inputs: Sequence[Tensor] = (of_rows, keys, *(tensors if fixed else columns))
        else:
            inputs = found[1]
        known: list[list[float]] = [list(row) for row in zip(*rows, last, strict=True)]
        for numbers in decision.numbers:
            for row, new in zip(known, numbers, strict=True):
                row += [*new, *[0.0] * (width - len(new))]
        upload(known, inputs[0])
        for column, tensor in zip(inputs[2:], () if fixed or not draft.shape[1] else tensors, strict=False):
            column[:, : tensor.shape[1]].copy_(tensor)
        if found is None:
            forward = StaticForward(self._loaded, layers, len(cache.buffers()))
            function = StaticDecision(forward, decision.function, len(decision.tensors))
            found = self._captured(cache, kind, function, inputs)
        outputs = found[0](*inputs, *cache.buffers())
        count = 1 if self._loaded.features is None else 2
        return Output(*outputs[:count]), outputs[count:]

    def draft(
        self, cache: SlotCache, layers: Sequence[int], tokens: Sequence[Sequence[int]], rows: Rows, line: Line
    ) -> Outputs:
        """See `StaticPasses`."""
        assert isinstance(cache, GraphCache)
        count = _width(max(line.lengths))
        lengths, padding, counts = rows
        ends = [new + drafted for new, drafted in zip(counts, line.lengths, strict=True)]
        slots = cache.slots((lengths, padding, ends))
        kind = (count, slots, tuple(layers), line.sampler)
        found = cache.graphs.get(kind)
        if found is None:
            size, device = (cache.rows, 4 + READ + count), line.device
            known = torch.zeros(size, dtype=torch.double, device=device)
            inputs: Sequence[Tensor] = (known, torch.arange(slots, device=device))
        else:
            inputs = found[1]
        parts = zip(*rows, line.lengths, tokens, line.numbers, strict=True)
        upload([[*row, *read, *new, *[0.5] * (count - len(new))] for *row, read, new in parts], inputs[0])
        if found is None:
            forward = StaticForward(self._loaded, layers, len(cache.buffers()))
            found = self._captured(cache, kind, StaticLine(forward, line.sampler, count), inputs)
        return found[0](*inputs, *cache.buffers())

    def _captured(
        self, cache: GraphCache, kind: Hashable, function: Function, inputs: Sequence[Tensor]
    ) -> tuple[CheckedPass, Sequence[Tensor]]:
        """Capture a function on its inputs, which hold what they will hold; return the new entry of `graphs`."""
        with CAPTURING:
            replay = self._capture(function, (*inputs, *cache.buffers()), cache)
        made = cache.graphs[kind] = CheckedPass(function, replay, self._tolerance), inputs
        return made


def _rounded(capacity: int) -> int:
    return -(-capacity // SHORTEST) * SHORTEST


def _addresses(tensors: Sequence[Tensor]) -> list[int]:
    return [tensor.data_ptr() for tensor in tensors]


def _width(columns: int) -> int:
    """Return the number of columns that are captured for a block."""
    return next(width for width in WIDTHS if width >= columns)


def capture_graph(function: Function, arguments: Sequence[Tensor], cache: GraphCache) -> Function:
    """Capture a function as a CUDA graph; see `Capture`.

    References:
        `torch.cuda.graph` asks for a warm-up on another stream.
    """
    device = arguments[0].device
    with torch.cuda.device(device):
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            function(*arguments)
        torch.cuda.current_stream().wait_stream(stream)
        cache.pool = cache.pool or torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        # Other threads may allocate memory meanwhile.
        with torch.cuda.graph(graph, pool=cache.pool, capture_error_mode="thread_local"):
            outputs = function(*arguments)

    def replay(*_: Tensor) -> Outputs:
        graph.replay()
        return outputs

    return replay
