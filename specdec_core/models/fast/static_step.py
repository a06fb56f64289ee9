"""The two parts of a step as functions that can be captured: a draft, and the pass that verifies it.

Both consist of forward passes of fixed shape, and of functions of the logits, which their callers give.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from specdec_core.models.fast.static import Outputs, StaticForward


class Decision(NamedTuple):
    """What is decided from the logits of a pass, in the same captured function.

    Attributes:
        function: Pure, and equal to each other that computes the same. It takes the logits `[B, W, V']` of a pass
            over the last committed token and a draft, the draft `[B, W - 1]` int64, the lengths of its rows `[B]`
            int64, the numbers `[C, B, W]` float64, and the tensors; it returns tensors. W may be larger than
            K + 1: what lies beyond is undefined.
        numbers: C lists with at most W numbers for each row.
        tensors: `[B, K, ...]` each, on the device.
        fixed: Whether the draft and the tensors are outputs of a captured line, so that they need not be copied.
    """

    function: Callable[..., Outputs]
    numbers: Sequence[Sequence[Sequence[float]]]
    tensors: Sequence[Tensor]
    fixed: bool = False


class StaticDecision:
    """A pass with a decision after it, as one function; see `StaticForward`.

    Args:
        forward: The pass.
        function: That of the decision.
        tensors: Number of tensors that the decision takes.
    """

    def __init__(self, forward: StaticForward, function: Callable[..., Outputs], tensors: int) -> None:
        self._forward, self._function, self._tensors = forward, function, tensors

    def __call__(self, known: Tensor, keys: Tensor, draft: Tensor, *others: Tensor) -> Outputs:
        """Run the pass and decide.

        Args:
            known: `[B, 4 + C * W]` float64: of each row the layout, the last committed token, and the numbers.
            keys: As for `StaticForward`.
            draft: `[B, W - 1]` int64.
            *others: The decision's tensors, then the buffers of the cache.

        Returns:
            Logits, hidden states if the model has features, and what was decided.
        """
        batch, width = draft.shape[0], draft.shape[1] + 1
        layout = known[:, :3].long().T
        tokens = torch.cat([known[:, 3:4].long(), draft], dim=1)
        numbers = known[:, 4:].view(batch, (known.shape[1] - 4) // width, width).transpose(0, 1)
        output = self._forward(tokens, layout, keys, *others[self._tensors :])
        lengths = (layout[2] - 1).clamp(min=0)  # a row that has ended reads nothing
        return *output, *self._function(output[0], draft, lengths, numbers, *others[: self._tensors])


class LineSampler(Protocol):
    """Draws draft tokens; equal to each other that computes the same."""

    def draw(self, logits: Tensor, uniforms: Tensor) -> Outputs:
        """Return a token of each row `[B]`, and what else belongs to it.

        Args:
            logits: `[B, V]`, after the token before it.
            uniforms: `[B]` float64.
        """

    def finish(self, drawn: Sequence[Outputs]) -> Outputs:
        """Return what becomes of the tokens.

        Args:
            drawn: What `draw` returned for each position.
        """


class Line(NamedTuple):
    """A line of draft tokens to be drawn in one call.

    Attributes:
        sampler: Draws them.
        lengths: The number of tokens of each row.
        numbers: The random numbers of each row, or none.
        device: Where they are needed.
        draw: Draws and records a token `[B]` of each row, given the logits `[B, V]` after the one before: what
            takes the place of `sampler` between passes that are not captured together.
    """

    sampler: LineSampler
    lengths: Sequence[int]
    numbers: Sequence[Sequence[float]]
    device: torch.device
    draw: Callable[[Tensor], Tensor]


READ = 2
"""Number of committed tokens that a captured line reads at most: the last two."""


class StaticLine:
    """Forward passes that draft token by token, as one function; see `StaticForward`.

    Args:
        forward: The pass.
        sampler: Draws the tokens.
        count: G, the number of tokens.
    """

    def __init__(self, forward: StaticForward, sampler: LineSampler, count: int) -> None:
        self._forward, self._sampler, self._count = forward, sampler, count

    def __call__(self, known: Tensor, keys: Tensor, *buffers: Tensor) -> Outputs:
        """Draft.

        Args:
            known: `[B, 4 + READ + G]` float64: of each row the layout of the committed tokens that are read, the
                length of the draft, these tokens, and the random numbers.
            keys: As for `StaticForward`.
            *buffers: Those of the cache.
        """
        whole = known[:, : 4 + READ].long()
        layout, lengths, tokens = whole[:, :3].T, whole[:, 3], whole[:, 4:]
        end, drawn = layout[0] + layout[2], []
        for position in range(self._count):
            logits = self._forward(tokens, layout, keys, *buffers)[0]
            drawn.append(self._sampler.draw(logits[:, -1], known[:, 4 + READ + position]))
            tokens = drawn[-1][0][:, None]
            # The last token of a draft is not read.
            layout = torch.stack([end + position, torch.zeros_like(end), (lengths > position + 1).long()])
        return self._sampler.finish(drawn)
