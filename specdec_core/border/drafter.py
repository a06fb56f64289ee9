"""The drafter's side of the border: request in, proposal out, outcome back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from specdec_core.border.spec import PluginConfig, PluginKind

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from specdec_core.border.controller import GammaController
    from specdec_core.border.overlay import OverlayRow
    from specdec_core.border.proposal import Proposal


class TargetFeatures(Protocol):
    """What a drafter that works on the target's hidden states may see of it: its weights, read only."""

    @property
    def hidden_size(self) -> int:
        """D, the size of the hidden state that the output embedding reads."""

    @property
    def input_embeddings(self) -> Tensor:
        """Weights `[V', E]` of the embedding that (decoder) tokens are read with; V' may exceed V."""

    @property
    def output_embeddings(self) -> Tensor:
        """Weights `[V, D]` that turn a hidden state into logits."""

    def fingerprint(self) -> str:
        """Return a digest of the model's weights, to know it again; independent of dtype and device."""


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
        features: Its weights, for drafters that work on its hidden states; None where it has no such.
        build: Makes a further plugin from its settings, for drafters that are made of others: takes the kind
            (`drafter` or `gamma`), the settings, and the target that the further drafter works for. None where a
            drafter is made by hand.
    """

    vocab_size: int
    eos_ids: tuple[int, ...] = ()
    device: torch.device | str = "cpu"
    tokenizer: Any = None
    encoder_decoder: bool = False
    folder: Path = Path()
    features: TargetFeatures | None = None
    build: Callable[[PluginKind, PluginConfig, TargetInfo], Any] | None = None


class DraftLoop(Protocol):
    """Drafts with a model that is itself accelerated by a drafter. Implemented by the core.

    What it proposes is drawn from the model's own adjusted distribution, which is therefore q.
    """

    def propose(self, request: DraftRequest) -> Proposal:
        """Decode with the model, until each row has its budget or a controller has stopped it."""

    def commit(self, outcome: Outcome) -> None:
        """Take back what was refused, and take in what came instead."""

    def rollback(self, lengths: Sequence[int]) -> None:
        """Forget all but the first `lengths[b]` committed tokens of each row b."""

    def close(self) -> None:
        """Free what it holds."""


class LoopFactory(Protocol):
    """Opens a `DraftLoop` for a batch."""

    def __call__(self, model: Any, drafter: Drafter, gamma: GammaController) -> DraftLoop:
        """Return a loop in which a drafter guesses for a `LoadedModel`, as many tokens as `gamma` says."""


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
        loop: Opens an inner decoding loop, for hierarchies; None where a session is opened by hand.
    """

    batch_size: int
    vocab_size: int
    capacity: int
    max_gamma: int
    device: torch.device | str
    sources: Sequence[Sequence[int]] | None = None
    loop: LoopFactory | None = None


class DraftSampler(Protocol):
    """Draws draft tokens for a request and records the q each came from. Implemented by the core."""

    def sample(self, logits: Tensor) -> Tensor:
        """Standardise logits `[B, V]`, draw one token a row, record both; return tokens `[B]`."""

    def draw(self, probabilities: Tensor) -> Tensor:
        """Draw one token a row from probabilities `[B, V]` as they are, record both; return tokens `[B]`."""

    def sample_overlay(self, rows: Sequence[OverlayRow | None]) -> list[int]:
        """Standardise rows given as overlays, draw one token a row, record both; return B tokens."""

    def wants_more(self) -> bool:
        """Whether any row may still take a token."""

    def proposal(self) -> Proposal:
        """Return all that was drawn so far as a proposal."""

    def take(self, tokens: Sequence[Sequence[int]], q: Tensor | None) -> Sequence[bool]:
        """Record tokens that an inner loop drew; see `DraftRequest.take`."""

    def fork(self, budget: tuple[int, ...]) -> DraftSampler:
        """Return a sampler with a record and a budget of its own, over the same rows and random numbers."""


@dataclass(frozen=True)
class DraftRequest:
    """What the core asks of a drafter in one step.

    Attributes:
        tokens: The committed tokens of each row, prompt first (read only). For encoder-decoder targets these
            are the decoder's tokens, start token first.
        budget: The most tokens each row may draft in this step; 0 is legal.
        sampler: Draws tokens and keeps the record; use the methods below.
        hidden: `[B, D]` float on the target's device, for drafters that declare the need: the hidden state from
            which each row's last committed token was predicted, so that of the token before it. None in the
            first step, when the target has read nothing yet.
    """

    tokens: Sequence[Sequence[int]]
    budget: tuple[int, ...]
    sampler: DraftSampler
    hidden: Tensor | None = None

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

    def sample_overlay(self, rows: Sequence[OverlayRow | None]) -> list[int]:
        """Draw the next draft token of every row from log weights given as a few ids on top of a background.

        Does what `sample` does with the rows written out, in time that does not grow with V where the settings
        are argmax or a temperature alone. Other settings need the whole row, and get it.

        Args:
            rows: B rows of log weights; None in rows whose budget is spent.

        Returns:
            The drawn tokens; 0 in rows that wanted none.
        """
        return self.sampler.sample_overlay(rows)

    def wants_more(self) -> bool:
        """Whether a further token is wanted: some row has budget left and no controller stopped it."""
        return self.sampler.wants_more()

    def proposal(self) -> Proposal:
        """Return what was drawn and recorded in this step, ready to be handed back."""
        return self.sampler.proposal()

    def take(self, tokens: Sequence[Sequence[int]], q: Tensor | None) -> Sequence[bool]:
        """Record tokens that were drawn elsewhere with the row's own random numbers, as an inner loop does.

        Args:
            tokens: The next tokens of each row, as many as it has; those beyond its budget, or behind the one
                at which a controller stops the row, are left out.
            q: `[B, K, V]`, what the token at each place was drawn from; None where that was one-hot (argmax).

        Returns:
            For each row whether it wants more.
        """
        return self.sampler.take(tokens, q)

    def fork(self, budget: Sequence[int]) -> DraftRequest:
        """Return a request to be handed on to another drafter, with a record and a budget of its own.

        Args:
            budget: The most tokens each row may draft, none above this request's.
        """
        own = tuple(budget)
        return replace(self, budget=own, sampler=self.sampler.fork(own))


@dataclass(frozen=True)
class Outcome:
    """What became of a step: the only truth about what was kept.

    Attributes:
        drafted: How many tokens of each row were verified.
        accepted: How many of them were kept.
        committed: The tokens appended to each row: the accepted ones, then the recovered or bonus token.
            Empty for a row that had already finished. Shorter where an end of sequence came first.
        finished: Whether each row has ended. Within a hierarchy it may go on: after a `rollback`, the next commit
            says so.
        used: False when another drafter's proposal (or none) was verified in this step. Where drafters share a
            batch row by row, `drafted` and `accepted` are 0 in the rows of others.
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

    def rollback(self, lengths: Sequence[int]) -> None:  # noqa: B027  (most drafters keep no state)
        """Take commits back: forget all but the first `lengths[b]` committed tokens of each row b.

        Called within a hierarchy only, where the level above may refuse what was committed here. A `commit` with
        `used=False` follows, with the tokens that came instead. A session that keeps state between steps
        (overrides `commit`, or remembers `request.tokens`) must override this too.
        """

    @property
    def can_roll_back(self) -> bool:
        """Whether commits can be taken back: not where `commit` keeps what `rollback` does not know of."""
        kind = type(self)
        return kind.commit is DraftSession.commit or kind.rollback is not DraftSession.rollback

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

    needs_hidden_states: bool = False
    """Whether requests shall bring the target's hidden states; its specification declares the same."""

    def __init__(self, config: Any, target: TargetInfo) -> None:
        self.config = config
        self.target = target

    @abstractmethod
    def open(self, session: SessionInfo) -> DraftSession:
        """Begin a batch."""
