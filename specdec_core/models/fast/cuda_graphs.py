"""Forward passes captured as CUDA graphs, one for each number of rows and columns and each length of the cache.

A graph reads and writes the addresses that it was captured with, so caches outlive sessions: one that is closed
leaves its cache, with all graphs captured on it, to the next session that it fits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from specdec_core.models.device import inference_only, uploaded
from specdec_core.models.fast.static import (
    CAPTURING,
    WIDEST,
    CheckedPass,
    Outputs,
    Rows,
    StaticForward,
    StaticPasses,
)
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
"""Captures a function on its arguments, which stay where they are; returns what replays it on their new values."""


class GraphCache(SlotCache):
    """A cache whose addresses are part of graphs.

    Attributes:
        graphs: The captured passes and the arguments of each, by columns, slots, and layers that are kept.
        pool: Of the memory that its graphs share. They are replayed one at a time.
    """

    def __init__(self, batch_size: int, capacity: int) -> None:
        super().__init__(batch_size, capacity, fixed=True)
        self.graphs: dict[tuple[int, int, tuple[int, ...]], tuple[CheckedPass, Sequence[Tensor]]] = {}
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

    def cache(self, rows: int, capacity: int) -> SlotCache:
        """See `StaticPasses`. The capacity may be larger."""
        with self._lock:
            fitting = [cache for cache in self._idle if cache.rows == rows and cache.capacity >= capacity]
            if fitting:
                found = min(fitting, key=lambda cache: cache.capacity)
                self._idle.remove(found)
                return found
        return GraphCache(rows, _rounded(capacity))

    @inference_only
    def give_back(self, cache: SlotCache) -> None:
        """See `StaticPasses`."""
        assert isinstance(cache, GraphCache)
        if cache.kept:  # views of its hidden states may still be read
            return
        for buffer in cache.buffers():
            buffer.zero_()  # masked slots are multiplied by zero, and the last text may have ended in NaN
        with self._lock:
            self._idle = [*self._idle, cache][-IDLE:]

    def _run(
        self, cache: SlotCache, memory: EncoderMemory | None, layers: Sequence[int], tokens: Tensor, rows: Rows
    ) -> Output | None:
        assert isinstance(cache, GraphCache)
        if memory is not None:
            return None
        width = next(width for width in WIDTHS if width >= tokens.shape[1])
        slots = SHORTEST
        while slots < max(length + count for length, _, count in zip(*rows, strict=True)):
            slots *= 2
        slots = min(slots, cache.capacity)
        kind = (width, slots, tuple(layers))
        found = cache.graphs.get(kind)
        arguments = _arguments(cache, width, slots, tokens.device) if found is None else found[1]
        arguments[0][:, : tokens.shape[1]].copy_(tokens)  # columns to the right keep tokens that `rows` leaves out
        arguments[1].copy_(uploaded(rows, arguments[1].device))
        if found is None:
            function = StaticForward(self._loaded, layers, len(arguments) - 3)
            with CAPTURING:
                replay = self._capture(function, arguments, cache)
            cache.graphs[kind] = found = CheckedPass(function, replay, self._tolerance), arguments
        return Output(*found[0](*arguments))


def _rounded(capacity: int) -> int:
    return -(-capacity // SHORTEST) * SHORTEST


def _arguments(cache: GraphCache, width: int, slots: int, device: torch.device) -> Sequence[Tensor]:
    """Return the arguments of `StaticForward`, of which the first two are to be filled."""
    tokens = torch.zeros(cache.rows, width, dtype=torch.long, device=device)
    layout = torch.zeros(3, cache.rows, dtype=torch.long, device=device)
    return tokens, layout, torch.arange(slots, device=device), *cache.buffers()


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
        return tuple(output.clone() for output in outputs)  # the next replay overwrites them

    return replay
