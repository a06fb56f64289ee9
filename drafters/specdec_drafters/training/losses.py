"""Losses as functions of logits, with their gradients.

p is the target's distribution, q the drafter's; both are softmax(logits / temperature), as in decoding at that
temperature. The draft token at a position is accepted with probability

    beta = sum_x min(p(x), q(x)) = 1 - TV(p, q),   TV(p, q) = 1/2 sum_x |p(x) - q(x)|

(Definition 3.2, Lemma 3.3 and Theorem 3.5), so alpha = 1 - E[TV(p, q)] (Corollary 3.6): total variation is
the objective itself. Its gradient vanishes if q is far from p, so training from scratch does better to start with
KL(p || q).

With q = softmax(z / T), the gradients in the drafter's logits z are

    d KL(p || q) / dz_x = (q(x) - p(x)) / T
    d TV(p, q)   / dz_x = q(x) (sum_y q(y) [q(y) < p(y)] - [q(x) < p(x)]) / T

The second follows from TV = 1 - sum min(p, q), in which only the y with q(y) < p(y) change the minimum, and
dq(y)/dz_x = q(y) ([x = y] - q(x)) / T. At q(x) = p(x) the minimum has a kink, which counts as not smaller.

References:
    Leviathan et al. 2023, section 3 (arXiv 2211.17192).
"""

from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

TV_SCALE = 4.0
"""Weight of the total variation, which is at most 1 while KL is several nats: it gives steps of similar size."""
MAX_TV_SHARE = 0.9
TV_PACE = 1.5
_CHUNK_ELEMENTS = 1 << 17  # keeps intermediate results in the CPU cache


def cross_entropy(logits: Tensor, tokens: Tensor, *, mean: bool = True) -> Tensor:
    """Return the mean of -log q(token) in nats: a scalar.

    Args:
        logits: The drafter's, `[N, V]`.
        tokens: `[N]` int64, the tokens of the text.
        mean: Return the mean; if not, the sum.
    """
    return functional.cross_entropy(logits.float(), tokens, reduction="mean" if mean else "sum")


def overlap(p_logits: Tensor, logits: Tensor, temperature: float = 1.0) -> Tensor:
    """Return beta = sum_x min(p(x), q(x)), the acceptance probability, `[N]`."""
    p = (p_logits / temperature).softmax(-1)
    q = (logits / temperature).softmax(-1)
    return torch.minimum(p, q).sum(-1)


def tv_share(loss: str, done: float) -> float:
    """Return the share of total variation in the distillation loss, the rest being KL.

    Args:
        loss: `kl`, `tv`, or `kl-then-tv`, which moves from one to the other.
        done: The completed share of the run, 0 to 1.
    """
    if loss == "kl-then-tv":
        return min(MAX_TV_SHARE, TV_PACE * done)
    return 1.0 if loss == "tv" else 0.0


def distillation(
    p_logits: Tensor, logits: Tensor, share: float, temperature: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Return (1 - share) KL(p || q) + `TV_SCALE` share TV(p, q), and TV(p, q), summed over positions.

    Loss and gradient are computed together, a few positions at a time, so that nothing as large as the logits is
    kept except their gradient. Only the first result has a gradient, and only in the drafter's logits.

    Args:
        p_logits: The target's, `[N, V]`, any float type; may come from inference mode.
        logits: The drafter's, `[N, V]`, any float type.
        share: Share of total variation, 0 to 1.
        temperature: Temperature of both.
    """
    loss, tv = _Distillation.apply(logits, p_logits, share, temperature)  # type: ignore[no-untyped-call]
    return loss, tv


class _Distillation(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, p_logits: Tensor, share: float, temperature: float
    ) -> tuple[Tensor, Tensor]:
        gradient = torch.empty_like(logits)
        wide = torch.promote_types(logits.dtype, torch.float32)
        sums = torch.zeros(2, dtype=torch.float64, device=logits.device)
        step = max(1, _CHUNK_ELEMENTS // max(1, logits.shape[1]))
        for first in range(0, len(logits), step):
            part = slice(first, first + step)
            log_p = (p_logits[part].to(wide) / temperature).log_softmax(-1)
            log_q = (logits[part].to(wide) / temperature).log_softmax(-1)
            p, q = log_p.exp(), log_q.exp()
            risen = q * (q < p)
            total = risen.sum(-1, keepdim=True)
            tv = (1.0 - torch.minimum(p, q).sum(-1)).sum()
            kl = torch.where(p > 0, p * (log_p - log_q), 0.0).sum()
            sums += torch.stack([(1.0 - share) * kl + TV_SCALE * share * tv, tv])
            slope = (1.0 - share) * (q - p) + TV_SCALE * share * (q * total - risen)
            gradient[part] = slope / temperature
        ctx.save_for_backward(gradient)
        loss, tv_sum = sums.to(wide)
        ctx.mark_non_differentiable(tv_sum)
        return loss, tv_sum

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * grads[0], None, None, None


@dataclass(frozen=True)
class Scores:
    """Acceptance at each depth of a draft, summed over positions; the sums of several readings add up.

    Depth i is that of head i, or of the i-th token that a head drafts.

    Attributes:
        positions: `[k]`, number of positions at which there was a token to predict at each depth.
        overlap: `[k]`, the sum of sum_x min(p(x), q_i(x)).
        agreement: `[k]`, how often p and q_i have the same argmax.
        accepted: `[k]`, the sum of the probability that the tokens at depths 1 ... i are all accepted.
    """

    positions: Tensor
    overlap: Tensor
    agreement: Tensor
    accepted: Tensor

    def __add__(self, other: "Scores") -> "Scores":
        sums = (getattr(self, field.name) + getattr(other, field.name) for field in fields(self))
        return Scores(*sums)

    @property
    def alpha(self) -> list[float]:
        """Corollary 3.6 at each depth: E(sum_x min(p, q_i)); of arXiv 2211.17192."""
        return (self.overlap / self.positions.clamp(min=1)).tolist()

    @property
    def greedy_alpha(self) -> list[float]:
        """How often the token at each depth is the target's argmax."""
        return (self.agreement / self.positions.clamp(min=1)).tolist()

    @property
    def accepted_up_to(self) -> list[float]:
        """The probability that the tokens at depths 1 ... i are all accepted, for each i."""
        return (self.accepted / self.positions.clamp(min=1)).tolist()

    @property
    def block_efficiency(self) -> float:
        """Expected tokens per target forward pass with drafts of k tokens: 1 plus the accepted draft tokens."""
        return 1 + sum(self.accepted_up_to)

    def point(self) -> dict[str, float]:
        """Return the values for a point of the learning curve: over all depths, and at each.

        `alpha` is the accepted share of the verified tokens of drafts of k tokens, the acceptance rate that a run
        shows: depth i is verified if all depths before it were accepted.
        """
        accepted = self.accepted_up_to
        alpha = sum(accepted) / (1 + sum(accepted[:-1]))
        values = {"alpha": alpha, "block_efficiency": self.block_efficiency}
        for name, each in (("alpha", self.alpha), ("greedy_alpha", self.greedy_alpha)):
            values |= {f"{name}_{depth}": value for depth, value in enumerate(each, start=1)}
        return values
