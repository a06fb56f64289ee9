"""The network: k heads on a target's last hidden state, for drafting and training."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

_EPSILON = 1e-6


@dataclass(frozen=True)
class HeadsShape:
    """The sizes of a set of heads.

    Attributes:
        heads: k, the number of tokens drafted at once.
        hidden_size: D, the size of the hidden state that the target's output embedding reads.
        width: H, the width of each head's feed-forward layer.
        token_size: E, the size of the target's input embedding; 0 if the heads do not read the last token.
    """

    heads: int
    hidden_size: int
    width: int
    token_size: int

    @property
    def reads_token(self) -> bool:
        """Whether the heads also read the last committed token."""
        return self.token_size > 0

    @property
    def tensors(self) -> dict[str, tuple[int, ...]]:
        """The names and shapes of the weights."""
        k, D, H = self.heads, self.hidden_size, self.width
        return {
            "inner.weight": (k * H, D + self.token_size),
            "inner.bias": (k * H,),
            "outer.weight": (k, H, D),
            "outer.bias": (k, D),
        }


class Heads(nn.Module):
    """k residual blocks from one hidden state to the target's output embedding.

    Head i turns h into `|h| (n(h) + f_i([n(h); n(e)]))` with n(h) = h / |h| and |h| the root mean square of h, so
    the same learning rate suits every target: f_i is one feed-forward layer of width H, e the target's embedding
    of the last committed token. The last layer is initialized to zero, so each head starts as the target's own
    output.

    Args:
        shape: The sizes.
        seed: Seed of the initial weights.

    References:
        Stern, Shazeer and Uszkoreit 2018, sections 4 and 6 (arXiv 1811.03115): one layer of k times the width
        for all heads, a residual connection from the input to each, the original projection after it. Their
        p_1 is the target itself, so head i here is their p_(i+1). Differences: the heads may read the last token,
        which the hidden state it was sampled from does not determine; the input is normalized; and the activation
        is SiLU, which did slightly better than ReLU.
    """

    def __init__(self, shape: HeadsShape, seed: int = 0) -> None:
        super().__init__()
        self.shape = shape
        generator = torch.Generator().manual_seed(seed)
        inner = torch.empty(shape.tensors["inner.weight"])
        nn.init.kaiming_uniform_(inner, nonlinearity="relu", generator=generator)
        self.inner = nn.ParameterDict({"weight": inner, "bias": torch.zeros(shape.tensors["inner.bias"])})
        self.outer = nn.ParameterDict(
            {
                "weight": torch.zeros(shape.tensors["outer.weight"]),
                "bias": torch.zeros(shape.tensors["outer.bias"]),
            }
        )

    def forward(self, hidden: Tensor, embedded: Tensor | None, count: int | None = None) -> Tensor:
        """Return the input of the output embedding for each head.

        Args:
            hidden: `[B, D]`, of the weights' dtype and device.
            embedded: `[B, E]`, the target's embeddings of the last committed tokens; None if the heads do not read
                them.
            count: Number of heads, from the first; all by default.

        Returns:
            `[B, count, D]`, the state of head i at i - 1.
        """
        count = self.shape.heads if count is None else count
        width = count * self.shape.width
        size = _size(hidden)
        state = hidden / size
        read = state if embedded is None else torch.cat([state, embedded / _size(embedded)], dim=-1)
        inner = functional.silu(functional.linear(read, self.inner["weight"][:width], self.inner["bias"][:width]))
        inner = inner.view(-1, count, self.shape.width).transpose(0, 1)
        change = torch.baddbmm(self.outer["bias"][:count, None], inner, self.outer["weight"][:count])
        return (size * (state + change)).transpose(0, 1)


def head_logits(states: Tensor, output_embeddings: Tensor) -> Tensor:
    """Return the logits of each head.

    A bias of the output embedding and a `final_logits_bias` are left out: q may be any distribution.

    Args:
        states: `[B, k, D]`.
        output_embeddings: `[V, D]`, of the target.

    Returns:
        `[B, k, V]`.
    """
    return functional.linear(states, output_embeddings)


def _size(vectors: Tensor) -> Tensor:
    """Return the root mean square of each vector, `[..., 1]`."""
    return vectors.float().square().mean(dim=-1, keepdim=True).add_(_EPSILON**2).sqrt_().to(vectors.dtype)
