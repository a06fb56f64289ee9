"""The drafter's side of the border: request in, proposal out, outcome back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from specdec_core.border.spec import PluginConfig

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from specdec_core.border.proposal import Proposal


@dataclass(frozen=True)
class TargetInfo:
    """What a drafter may know of the target when its weights or tables are loaded.

    Attributes:
        vocab_size: V, the number of logits the target returns.
        eos_ids: Ids that end a sequence.
        device: Where the target computes.
        tokenizer: The target's tokenizer (a Hugging Face one), or None when ids are given directly.
        encoder_decoder: Whether the target reads a source with an encoder.
        folder: Folder that relative paths in a config are meant from.
    """

    vocab_size: int
    eos_ids: tuple[int, ...] = ()
    device: torch.device | str = "cpu"
    tokenizer: Any = None
    encoder_decoder: bool = False
    folder: Path = Path()


@dataclass(frozen=True)
class SessionInfo:
    """What a drafter may know when a batch begins.

    Attributes:
        batch_size: B.
        vocab_size: V.
        capacity: The most committed tokens a row will ever hold, prompt included.
        max_gamma: The most tokens a proposal of this session will be asked for.
        device: Where the target computes.
        sources: The encoder's input ids of each row for encoder-decoder targets, else None.
    """

    batch_size: int
    vocab_size: int
    capacity: int
    max_gamma: int
    device: torch.device | str
    sources: Sequence[Sequence[int]] | None = None


class DraftSampler(Protocol):
    """Draws draft tokens for a request and records the q each came from. Implemented by the core."""

    def sample(self, logits: Tensor) -> Tensor:
        """Standardise logits `[B, V]`, draw one token a row, record both; return tokens `[B]`."""

    def draw(self, probabilities: Tensor) -> Tensor:
        """Draw one token a row from probabilities `[B, V]` as they are, record both; return tokens `[B]`."""

    def wants_more(self) -> bool:
        """Whether any row may still take a token."""

    def proposal(self) -> Proposal:
        """Return all that was drawn so far as a proposal."""


@dataclass(frozen=True)
class DraftRequest:
    """What the core asks of a drafter in one step.

    Attributes:
        tokens: The committed tokens of each row, prompt first (read only). For encoder-decoder targets these
            are the decoder's tokens, start token first.
        budget: The most tokens each row may draft in this step; 0 is legal.
        sampler: Draws tokens and keeps the record; use the methods below.
    """

    tokens: Sequence[Sequence[int]]
    budget: tuple[int, ...]
    sampler: DraftSampler

    def sample(self, logits: Tensor) -> Tensor:
        """Draw the next draft token of every row from a model's logits.

        The logits are standardised with the run's settings for drafts (section 2.2), each row with its own
        prefix; the draw uses the row's own generator; q is recorded, so that q and the draw cannot disagree.
        Propose what is drawn: a token withheld because of what it is was not drawn from q any more.

        Args:
            logits: `[B, V]`, any float type.

        Returns:
            The drawn tokens `[B]` int64, on the device of the logits.
        """
        return self.sampler.sample(logits)

    def draw(self, probabilities: Tensor) -> Tensor:
        """Draw the next draft token of every row from a finished distribution q `[B, V]`; return `[B]`."""
        return self.sampler.draw(probabilities)

    def wants_more(self) -> bool:
        """Whether a further token is wanted: some row has budget left and no controller stopped it."""
        return self.sampler.wants_more()

    def proposal(self) -> Proposal:
        """Return what `sample` and `draw` recorded in this step, ready to be handed back."""
        return self.sampler.proposal()


@dataclass(frozen=True)
class Outcome:
    """What became of a step: the only truth about what was kept.

    Attributes:
        drafted: How many tokens of each row were verified.
        accepted: How many of them were kept.
        committed: The tokens appended to each row: the accepted ones, then the recovered or bonus token.
            Empty for a row that had already finished. Shorter where an end of sequence came first.
        finished: Whether each row has ended.
        used: False when another drafter's proposal (or none) was verified in this step.
    """

    drafted: tuple[int, ...]
    accepted: tuple[int, ...]
    committed: tuple[tuple[int, ...], ...]
    finished: tuple[bool, ...]
    used: bool = True


class DraftSession(ABC):
    """What one batch needs while it is decoded (caches, positions in tables)."""

    @abstractmethod
    def propose(self, request: DraftRequest) -> Proposal:
        """Return at most `request.budget[b]` draft tokens for each row b."""

    def commit(self, outcome: Outcome) -> None:  # noqa: B027  (most drafters keep no state)
        """Learn what was kept. Called after every step, also when this drafter was not asked."""

    def close(self) -> None:  # noqa: B027
        """Free what the session holds."""


class Drafter(ABC):
    """Weights or tables that guess tokens: loaded once, shared by all sequences.

    Attributes:
        Config: What a study may say about this drafter.
        config: What it said.
        target: The target it drafts for.
    """

    Config: ClassVar[type[PluginConfig]] = PluginConfig

    def __init__(self, config: Any, target: TargetInfo) -> None:
        self.config = config
        self.target = target

    @abstractmethod
    def open(self, session: SessionInfo) -> DraftSession:
        """Begin a batch."""
