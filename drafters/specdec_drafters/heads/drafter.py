"""The heads drafter: k tokens at once, from the target's last hidden state."""

from dataclasses import dataclass
from pathlib import Path

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from specdec_core.interface import (
    LAST_HIDDEN,
    Drafter,
    DraftRequest,
    DraftSession,
    ModelError,
    Proposal,
    SessionInfo,
    TargetFeatures,
    TargetInfo,
)
from specdec_core.models import moved
from specdec_drafters.common.parallel_draft import draw_at_each_depth
from specdec_drafters.common.weights_file import WeightsCard, WeightsFormat, require_sizes, target_features
from specdec_drafters.settings import HeadsConfig

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


class HeadsCard(WeightsCard):
    """The header of a file of heads: also the sizes of `HeadsShape`.

    Attributes:
        vocab_size: V of the target.
    """

    heads: int = Field(ge=1)
    hidden_size: int = Field(ge=1)
    width: int = Field(ge=1)
    token_size: int = Field(ge=0)
    vocab_size: int = Field(ge=1)

    @property
    def shape(self) -> HeadsShape:
        """The sizes."""
        return HeadsShape(self.heads, self.hidden_size, self.width, self.token_size)


HEADS_FILE = WeightsFormat(
    what="heads",
    name="heads.safetensors",
    key="specdec_heads",
    card=HeadsCard,
    how_to_train="Heads of others, such as Medusa's, are not supported; train some with `specdec train heads "
    "--target TARGET --output heads.safetensors`.",
)


def write_heads(path: Path, heads: Heads, card: HeadsCard, dtype: torch.dtype = torch.float16) -> None:
    """Write heads to a file; see `WeightsFormat.write`."""
    HEADS_FILE.write(path, heads.state_dict(), card, dtype)


def read_heads(path: Path) -> tuple[Heads, HeadsCard]:
    """Read heads from a file.

    Returns:
        The heads in float32 on the CPU, and their header.

    Raises:
        ModelError: The file is missing, truncated, not a file of heads, or of an unknown version.
    """
    tensors, card = HEADS_FILE.read(path)
    given = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if given != card.shape.tensors:
        raise ModelError(
            f"{path}: the weights are {given}, but the header says {card.shape.tensors}. {HEADS_FILE.how_to_train}"
        )
    heads = Heads(card.shape)
    heads.load_state_dict(tensors)
    return heads.eval().requires_grad_(requires_grad=False), card


class HeadsDrafter(Drafter):
    """Drafts k tokens at once: head i reads the target's last hidden state and predicts i tokens ahead.

    After x_1 ... x_n the target has read all tokens but x_n, and its last hidden state h is the one x_n was
    sampled from. Head i predicts x_(n+i) from h and, if trained that way, from x_n. No head sees the tokens of the
    others, so all are computed together. q_i, standardized by the core, is still exactly the distribution that the
    i-th token was sampled from, which is all Algorithm 1 requires. In a tree, head i draws
    all nodes at depth i.

    References:
        Section 6 of arXiv 2211.17192 (non-autoregressive approximation models); Stern, Shazeer and Uszkoreit 2018
        (arXiv 1811.03115).
    """

    hidden_layers = (LAST_HIDDEN,)
    drafts_trees = True

    def __init__(self, config: HeadsConfig, target: TargetInfo) -> None:
        super().__init__(config, target)
        features = target_features(target, "heads")
        path = HEADS_FILE.find(config.model, target.folder)
        heads, card = read_heads(path)
        _check_target(card, path, target, features)
        if config.count is not None and config.count > card.shape.heads:
            raise ModelError(
                f"drafter 'heads': count is {config.count}, but {path} holds {card.shape.heads} heads. Lower it, "
                "or train more heads."
            )
        self.card = card
        self.count = config.count or card.shape.heads
        # Some models have more embeddings than logits.
        self._output = features.output_embeddings[: target.vocab_size]
        self._input = features.input_embeddings if card.shape.reads_token else None
        self._heads = heads.to(self._output.device, self._output.dtype)

    def open(self, session: SessionInfo) -> DraftSession:  # noqa: ARG002  (stateless)
        """Start a batch; nothing is kept between steps."""
        return _HeadsSession(self)

    @torch.inference_mode()
    def logits(self, hidden: Tensor, last: Tensor, count: int) -> Tensor:
        """Return the logits of the first heads.

        Args:
            hidden: `[B, D]`, the input of the target's output embedding when the last tokens were sampled.
            last: `[B]` int64, those tokens.
            count: Number of heads.

        Returns:
            `[B, count, V]`, on the device of the output embedding.
        """
        embedded = None
        if self._input is not None:
            embedded = functional.embedding(moved(last, self._input.device), self._input).to(self._output)
        return head_logits(self._heads(hidden.to(self._output), embedded, count), self._output)


class _HeadsSession(DraftSession):
    def __init__(self, drafter: HeadsDrafter) -> None:
        self._drafter = drafter

    def propose(self, request: DraftRequest) -> Proposal:
        if not request.wants_more():
            return request.proposal()
        count = min(self._drafter.count, max(request.depth))
        last = torch.tensor([row[-1] for row in request.tokens])
        return draw_at_each_depth(request, self._drafter.logits(request.hidden_states[LAST_HIDDEN], last, count))


def _check_target(card: HeadsCard, path: Path, target: TargetInfo, features: TargetFeatures) -> None:
    """Raise a ModelError if the heads were trained for another target."""
    HEADS_FILE.check_target(card, features, path, "heads")
    shape = card.shape
    # The fingerprint implies these; they catch a header written by hand.
    sizes = {
        "hidden states": (shape.hidden_size, features.hidden_size),
        "a vocabulary": (card.vocab_size, target.vocab_size),
    }
    if shape.reads_token:
        sizes["input embeddings"] = (shape.token_size, features.input_embeddings.shape[1])
    require_sizes(sizes, path, "heads", HEADS_FILE.how_to_train)
