"""A forward pass of fixed shape, which can be captured once and replayed.

Capturing records what a function does to tensors, and nothing else: numbers and branches of Python are decided
when it is captured. So all that differs from pass to pass is in tensors here. A pass reads tokens, the layout
of each row and the positions of the keys, and writes keys and values by index.
"""

from __future__ import annotations

import threading
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import torch
from torch import Tensor

from specdec_core.interface.errors import ModelError
from specdec_core.models.device import synchronize
from specdec_core.models.loaded import LoadedModel
from specdec_core.models.run.cache import SlotCache, WritePlan
from specdec_core.models.run.encoder import EncoderMemory
from specdec_core.models.run.forward import ModelForward, Output

if TYPE_CHECKING:
    from specdec_core.models.fast.static_step import Decision, Line

T = TypeVar("T")

WIDEST = 32
"""Number of columns up to which a pass is static. Wider ones, such as prompts, spend their time on products."""
CHECKED = 2
"""Passes of each captured function that also run eagerly, to be compared."""

CAPTURING = threading.Lock()
"""Held while a pass is captured: tracing and compiling change what belongs to all threads."""

Outputs: TypeAlias = tuple[Tensor, ...]
"""Logits `[B, W, V']`, and hidden states `[B, W, D]` if the model has features."""


class StaticError(Exception):
    """A pass cannot be captured, or its replay differs. The message says why."""


def block_layout(layout: Tensor, width: int, trash: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the positions and cache slots of the tokens of a block.

    Args:
        layout: `[3, B]` int64: the number of cached tokens of each row, its left padding, and its new tokens.
        width: T, the number of columns.
        trash: The slot for padding, which is never read.

    Returns:
        Positions, slots, and whether each is a token rather than padding: `[B, T]`.
    """
    lengths, padding, counts = layout[:, :, None]  # [B, 1] each
    positions = lengths - padding + torch.arange(width, device=layout.device)
    real = (positions >= lengths) & (positions < lengths + counts)
    return torch.where(real, positions, 0), torch.where(real, positions, trash), real


class StaticForward:
    """The function that is captured. It reads and writes nothing but its arguments and the weights.

    Args:
        loaded: The model.
        layers: Layers whose outputs are written to the cache.
        cached: The number of buffers that belong to the cache; the others are the encoder's.
    """

    def __init__(self, loaded: LoadedModel, layers: Sequence[int], cached: int) -> None:
        self._forward = ModelForward(loaded, keep_hidden=True, layers=layers, captured=True)
        self._layers, self._cached = tuple(layers), cached

    def __call__(self, tokens: Tensor, layout: Tensor, keys: Tensor, *buffers: Tensor) -> Outputs:
        """Run the pass.

        Args:
            tokens: `[B, W]` int64.
            layout: `[3, B]` int64, as in `block_layout`.
            keys: `[E]` int64, the numbers 0 to E - 1: the pass attends to the first E slots.
            *buffers: Those of the cache, then those of the encoder's memory.
        """
        cache = SlotCache.over(buffers[: self._cached], self._layers)
        memory = None
        if len(buffers) > self._cached:
            memory = EncoderMemory.over(self._forward.loaded, cache, buffers[self._cached :])
        positions, slots, _ = block_layout(layout, tokens.shape[1], cache.capacity)
        plan = WritePlan(slice(None), 0, keys.shape[0], slots)
        visible = keys <= positions[..., None]
        output = self._forward.run_ragged(
            cache, memory, tokens, plan, None, positions=positions, visible=visible, keys=keys
        )
        return (output.logits,) if output.hidden is None else (output.logits, output.hidden)


class CheckedPass:
    """A captured function, whose first passes are compared with eager ones.

    Args:
        function: The function.
        replay: What was captured of it.
        tolerance: The largest difference allowed, relative to the largest value of an output.
    """

    def __init__(self, function: Callable[..., Outputs], replay: Callable[..., Outputs], tolerance: float) -> None:
        self._function, self._replay, self._tolerance = function, replay, tolerance
        self._left = CHECKED

    def __call__(self, *inputs: Tensor) -> Outputs:
        """Return the outputs.

        Raises:
            StaticError: They differ from eager ones.
        """
        if self._left <= 0:  # less if threads have ended the checks together
            return self._replay(*inputs)
        expected = self._function(*inputs)  # writes the same keys and values to the same slots
        outputs = self._replay(*inputs)
        for wanted, found in zip(expected, outputs, strict=True):
            tolerance = self._tolerance if wanted.is_floating_point() else 0
            error, largest = (found.double() - wanted.double()).abs().max(), wanted.double().abs().max()
            if not error <= tolerance * largest:
                raise StaticError(f"relative error {float(error / largest):.1e}, tolerance {tolerance:.0e}")
        self._left -= 1
        return outputs


Rows: TypeAlias = tuple[Sequence[int], Sequence[int], Sequence[int]]
"""The number of cached tokens of each row, its left padding, and its new tokens."""


class StaticPasses(ABC):
    """The captured passes of one model. Threads share them.

    Args:
        loaded: The model.
        tolerance: As for `CheckedPass`.

    Attributes:
        failed: Why a pass could not be captured, or was wrong; None as long as none was. From then on, all passes
            run eagerly.
    """

    decides = False
    """Whether decisions can be captured together with passes, and all passes of a line."""

    def __init__(self, loaded: LoadedModel, tolerance: float) -> None:
        self.failed: str | None = None
        self._loaded = replace(loaded, passes=None)
        self._tolerance = tolerance

    @property
    def model(self) -> LoadedModel:
        """The model, with these passes."""
        return replace(self._loaded, passes=self)

    def cache(self, rows: int, capacity: int, layers: Sequence[int]) -> SlotCache:  # noqa: ARG002
        """Return a cache for a batch: one that was given back with the same `layers`, or a new one."""
        return SlotCache(rows, capacity, fixed=True)

    def give_back(self, cache: SlotCache) -> None:  # noqa: B027  (most keep none)
        """Take back a cache that is no longer used."""

    def attempt(self, cache: SlotCache, layers: Sequence[int], function: Callable[[], T | None]) -> T | None:
        """Return the result of a function that runs static passes; None if they have to run eagerly."""
        found = None
        # The first pass, which runs eagerly, determines what is in the cache.
        if self.failed is None and cache.layers and cache.kept == tuple(layers):
            with self.guarded():
                found = function()
        return found

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Turn an error into a warning, after which all passes run eagerly.

        Raises:
            ModelError: A capture went wrong in such a way that this process cannot use the GPU any more.
        """
        try:
            yield
        except Exception as error:  # of a compiler or a driver; whatever it is, eager passes do without
            self.failed = str(error) if isinstance(error, StaticError) else f"{type(error).__name__}: {error}"
            try:
                synchronize(self._loaded.device)
            except Exception as unusable:
                raise ModelError(
                    f"{self._loaded.name}: a forward pass could not be captured ({self.failed}), and since then "
                    f"the process cannot use {self._loaded.device} ({unusable}). Run it again with compile: false."
                ) from unusable
            warnings.warn(
                f"{self._loaded.name}: its forward passes are not compiled ({self.failed}). Decoding goes on "
                "without, with the same output, but slower. compile: false avoids this warning.",
                RuntimeWarning,
                stacklevel=2,
            )

    @abstractmethod
    def run(
        self, cache: SlotCache, memory: EncoderMemory | None, layers: Sequence[int], tokens: Tensor, rows: Rows
    ) -> Output | None:
        """Run a pass, capturing it if there is none of its kind yet. May raise anything.

        Args:
            cache: Keys and values of earlier tokens.
            memory: What the encoder said, for encoder-decoder models.
            layers: Layers whose outputs are written to the cache.
            tokens: `[B, T]` int64, T at most `WIDEST`.
            rows: Where the rows are.

        Returns:
            Logits and hidden states of at least T columns; None if the pass has to run eagerly.
        """

    def decide(
        self,
        cache: SlotCache,
        layers: Sequence[int],
        last: Sequence[int],
        draft: Tensor,
        rows: Rows,
        decision: Decision,
    ) -> tuple[Output, Outputs]:
        """Run a pass over the last committed token of each row and a draft, and decide, as one captured function.

        Only for passes that have `decides`. May raise anything.

        Args:
            cache: Keys and values of earlier tokens.
            layers: Layers whose outputs are written to the cache.
            last: The last committed token of each row; any where `rows` counts none.
            draft: `[B, K]` int64, on the device.
            rows: Where the rows are.
            decision: What is decided.

        Returns:
            Logits and hidden states of at least K + 1 columns, and what was decided, in memory that the next pass
            overwrites.
        """
        raise NotImplementedError

    def draft(
        self, cache: SlotCache, layers: Sequence[int], tokens: Sequence[Sequence[int]], rows: Rows, line: Line
    ) -> Outputs | None:
        """Draft a line in one call. Only for passes that have `decides`. May raise anything.

        Args:
            cache: Keys and values of earlier tokens.
            layers: Layers whose outputs are written to the cache.
            tokens: `READ` tokens of each row, padded on the left.
            rows: Where the rows are.
            line: What is drawn.

        Returns:
            What the sampler made of at least as many tokens as the longest row has, in memory that the next pass
            overwrites; None if passes have to run eagerly.
        """
        raise NotImplementedError
