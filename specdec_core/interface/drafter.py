"""The drafter's side of the plugin interface: a request comes in, a proposal goes out, the outcome comes back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from specdec_core.interface.spec import PluginConfig, PluginKind
from specdec_core.interface.tree import Branches, TreeShape

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from specdec_core.interface.controllers import GammaController
    from specdec_core.interface.outcome import Outcome
    from specdec_core.interface.proposal import Candidates, Proposal


LAST_HIDDEN = -1
"""In `Drafter.hidden_layers`: the state that the output embedding reads, after the final norm. In
`DraftRequest.hidden_states`: that which the last committed token was predicted from."""


class TargetFeatures(Protocol):
    """Copies of the target's embeddings, for drafters that work on its hidden states.

    All drafters of a target share them, so do not write to them. They take V·D numbers of memory, twice if the
    embeddings are not tied, from when they are first read.
    """

    @property
    def hidden_size(self) -> int:
        """D, the size of the hidden state that the output embedding reads."""

    @property
    def num_layers(self) -> int | None:
        """Number of the (decoder's) layers; None where the target is not loaded, as in the replay of a record."""

    @property
    def input_embeddings(self) -> Tensor:
        """Weights `[V', E]` of the (decoder's) input embedding; V' may exceed V."""

    @property
    def output_embeddings(self) -> Tensor:
        """Weights `[V, D]` of the language-model head."""

    def fingerprint(self) -> str:
        """Return a digest that identifies the model's weights, independent of dtype and device.

        A copy quantized to 8 or 4 bits has that of its original with `-int8` or `-int4` behind it.
        """


@dataclass(frozen=True)
class TargetInfo:
    """Facts about the target for a drafter, when its weights or tables are loaded.

    Attributes:
        vocab_size: V, the number of logits the target returns.
        eos_ids: Ids that end a sequence.
        device: Device the target computes on.
        tokenizer: The target's Hugging Face tokenizer, or None when token ids are passed directly.
        encoder_decoder: Whether the target reads a source with an encoder.
        folder: Base for relative paths in a config.
        features: The target's weights, for drafters that work on its hidden states; None if it has no output
            embedding.
        model: The target itself, a `LoadedModel`, for drafters made of its weights. They share or copy them, and
            never change them. None where it is not loaded, as in the replay of a record, or where the drafter does
            not draft its tokens.
        build: Creates a nested plugin from its settings, for drafters composed of others. Takes the kind
            (`drafter` or `gamma`), the settings, and the target that the nested drafter works for. None for a
            drafter that is constructed directly.
    """

    vocab_size: int
    eos_ids: tuple[int, ...] = ()
    device: torch.device | str = "cpu"
    tokenizer: Any = None
    encoder_decoder: bool = False
    folder: Path = Path()
    features: TargetFeatures | None = None
    model: Any = None
    build: Callable[[PluginKind, PluginConfig, TargetInfo], Any] | None = None


class LoopFactory(Protocol):
    """Opens a session that drafts with a model which a drafter accelerates. Implemented by the core.

    Its tokens are drawn from the model's own adjusted distribution, which is therefore q.
    """

    def __call__(
        self, model: Any, drafter: Drafter, gamma: GammaController, session: SessionInfo | None = None
    ) -> DraftSession:
        """Return a session in which `drafter` proposes for a `LoadedModel`, as many tokens as `gamma` allows.

        Args:
            model: The model in the middle.
            drafter: Drafts for it.
            gamma: Decides how many tokens that drafter drafts.
            session: What the drafter around the model knows about its batch, where its vocabulary is not the
                target's; None where it is what the core said.
        """


@dataclass(frozen=True)
class SessionInfo:
    """Facts about a batch for a drafter, when it starts.

    Attributes:
        batch_size: B.
        vocab_size: V.
        capacity: Maximum number of committed tokens of a sequence, prompt included.
        max_gamma: Maximum number of draft tokens of a proposal in this session.
        device: Device the target computes on.
        sources: The encoder's input ids of each sequence for encoder-decoder targets whose encoder reads ids;
            else None, as with audio.
        loop: Opens an inner decoding loop, for hierarchies; None for a session opened directly.
        trees: Whether a proposal may be a tree: whether target and acceptance rule verify one.
        metadata: What the caller said of each sequence, such as its user; empty mappings where that was nothing.
        note: Has the result say a text, once, such as why there were no drafts.
        encoded: The output of the target's encoder, for a draft model's `ModelSession`, which runs its own encoder
            only if that is another; None without an encoder.
    """

    batch_size: int
    vocab_size: int
    capacity: int
    max_gamma: int
    device: torch.device | str
    sources: Sequence[Sequence[int]] | None = None
    loop: LoopFactory | None = None
    trees: bool = False
    metadata: Sequence[Mapping[str, Any]] = ()
    note: Callable[[str], None] = lambda _: None
    encoded: Any = None

    def __post_init__(self) -> None:
        if not self.metadata:
            object.__setattr__(self, "metadata", ({},) * self.batch_size)


class DraftRequest(Protocol):
    """A request for a draft in one step, and the means to draw its tokens. Implemented by the core.

    Draw tokens with `sample` (from logits), `draw` (from probabilities) or `sample_candidates` (from those of
    a few tokens), then return `proposal()`. Each method draws one token per sequence and records the distribution
    q that it came from, so the draw and q cannot disagree. Propose every token that you draw: withholding one
    because of its value changes q. A deterministic drafter ignores these methods and returns
    `Proposal.from_rows`.

    Nothing of it can be changed: `tokens` is the core's own state, and assigning to it, or appending, raises.
    """

    @property
    def tokens(self) -> Sequence[Sequence[int]]:
        """The committed tokens of each sequence, prompt first.

        For encoder-decoder targets these are the decoder's tokens, start token first. They grow with the sequence,
        cannot be changed, and are otherwise like lists: slices, `tokens + [x]` and `list(tokens)` are new ones.
        """

    @property
    def budget(self) -> tuple[int, ...]:
        """The maximum number of tokens to draft for each sequence in this step; 0 is legal."""

    @property
    def tree(self) -> TreeShape | None:
        """The shape of the tree to draft; None for a line. Only a drafter with `drafts_trees` is asked for one.

        The budget is then the maximum number of its nodes. A drafter that draws calls `branch`; another returns
        `Proposal.from_continuations`, of about this width and depth.
        """

    @property
    def depth(self) -> tuple[int, ...]:
        """The maximum length of a path of each sequence; for a line, the budget."""

    @property
    def hidden_states(self) -> Mapping[int, Tensor]:
        """The target's hidden states, for drafters that name `hidden_layers`; float, on the target's device.

        `LAST_HIDDEN` maps to `[B, D]`: the state that the last committed token of each sequence was predicted
        from, which is that of the token before it. Each other layer maps to `[B, T, D]`, its outputs at all
        committed tokens: of row b, the first `len(tokens[b]) - 1` columns hold the states of its tokens but the
        last, which the target has not read. The other columns are undefined, and so is the whole row of a sequence
        without budget.
        """

    def sample(self, logits: Tensor) -> Tensor:
        """Draw the next draft token of every sequence from a model's logits.

        Applies the run's sampling settings for drafts (section 2.2) with each sequence's own prefix, and draws
        with the sequence's own random generator. Tokens that a sequence's constraint excludes are not drawn.

        Args:
            logits: `[B, V]`, any float type.

        Returns:
            The drawn tokens `[B]` int64, on the device of the logits.
        """

    def sample_line(self, run: Callable[[Any], Any]) -> bool:
        """Draw the whole line in one call of a model, if that is possible.

        Args:
            run: Called with a `Line`; returns what `ModelSession.draft` returns for it, perhaps None.

        Returns:
            Whether the line was drawn, so that `wants_more` is False. If not, draw with `sample`.
        """

    def draw(self, probabilities: Tensor) -> Tensor:
        """Draw the next draft token of every sequence from q itself, `[B, V]`; return tokens `[B]` int64.

        Where a sequence has a constraint, q without the tokens that it excludes, renormalized, takes its place.
        """

    def sample_candidates(self, rows: Sequence[Candidates | None]) -> list[int]:
        """Draw the next draft token of every sequence from a few candidates.

        Equivalent to `sample` on log weights that are minus infinity elsewhere. The cost does not grow with V for
        greedy decoding or when temperature is the only sampling setting. Other settings need V log weights; tokens
        that are not candidates then get a very low one, since a constraint may exclude all candidates.

        Args:
            rows: B rows of log weights; None for sequences whose budget is spent.

        Returns:
            B tokens; 0 for sequences that take no further token.
        """

    def branch(self, logits: Tensor) -> Branches:
        """Draw the next level of the tree from a model's logits; `tree` must not be None.

        Siblings are drawn without replacement. Which node gets how many children is up to the core, and sequences
        may differ in the number of nodes of a level: `Branches.lengths`.

        Args:
            logits: `[B, P, V]`, any float type: after each of the P nodes that the last call drew, in its order.
                At first P = 1: after the committed tokens.

        Returns:
            The nodes drawn, whose continuations the next call draws.
        """

    def wants_more(self) -> bool:
        """Return whether any sequence can take another token: budget is left and no controller stopped it."""

    def proposal(self) -> Proposal:
        """Return everything drawn in this step, ready to be returned from `propose`."""

    def extend(self, tokens: Sequence[Sequence[int]], q: Tensor | None) -> Sequence[bool]:
        """Record tokens that an inner decoding loop drew with the sequences' own generators.

        Args:
            tokens: The next tokens of each sequence, any number of them. Tokens beyond the budget, or after the
                one at which a controller stops the sequence, are dropped.
            q: `[B, K, V]`, the distribution of each token; None where it was one-hot (greedy).

        Returns:
            Whether each sequence can take more.
        """

    def fork(self, budget: Sequence[int], after: Sequence[Sequence[int]] | None = None) -> DraftRequest:
        """Return a request to pass on to another drafter, with its own record and budget.

        With `after`, the other is asked what would follow further tokens, for example to mix its q with others'.
        Its proposal is no part of the draft. Tell its session of these tokens with `commit`, and take back those
        that are not committed with `rollback`. Such a fork has no hidden states and asks for a line.

        Args:
            budget: The maximum number of tokens of each sequence, at most this request's. With `after`, it is cut
                to what the sequence may still take, so that one that a controller has stopped has 0.
            after: Tokens that the text of each sequence continues with, at most as many as the budget here.
        """


class DraftSession(ABC):
    """A drafter's state for one batch: caches, positions in tables.

    Raises:
        TypeError: A subclass defines `commit` and neither defines nor inherits a `rollback`; raised when the class
            is defined.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.commit is not DraftSession.commit and cls.rollback is DraftSession.rollback:
            raise TypeError(
                f"{cls.__qualname__} defines commit(), so it keeps state, and must also define rollback(lengths), "
                "which keeps the first lengths[b] committed tokens of each row b: inside a hierarchy the level "
                "above rejects tokens that were committed, and with beams a row takes over the text of another."
            )

    @abstractmethod
    def propose(self, request: DraftRequest) -> Proposal:
        """Return at most `request.budget[b]` draft tokens for each sequence b.

        A proposal without tokens, such as `Proposal.from_rows([[]] * B)`, skips the step. So does an exception;
        after three in a row, the session is closed.
        """

    def commit(self, outcome: Outcome) -> None:  # noqa: B027  (most drafters keep no state)
        """Learn which tokens were committed. Called after every step, even one without a request."""

    def rollback(self, lengths: Sequence[int]) -> None:  # noqa: B027  (most drafters keep no state)
        """Undo commits: keep only the first `lengths[b]` committed tokens of each sequence b.

        Called inside a hierarchy, where the level above may reject tokens that were committed here, and with
        beams, where a sequence is a beam, which may take over the text of another. A `commit` of the
        replacement tokens, if there are any, follows. Override this in every session that keeps
        state between steps, that is, one that overrides `commit` or remembers `request.tokens`.
        """

    def close(self) -> None:  # noqa: B027
        """Free everything the session holds."""


class Drafter(ABC):
    """Weights or tables that propose tokens: loaded once and shared by all sequences.

    Attributes:
        Config: The pydantic model of the drafter's settings in a study.
        config: Its validated settings.
        target: The target it drafts for.
    """

    hidden_layers: Sequence[int] = ()
    """Layers of the target whose outputs requests must carry in `hidden_states`: `LAST_HIDDEN`, or numbers as in
    `hidden_states` of transformers. There n is the output of the first n layers, 0 that of the embedding, and the
    largest is the one before the model's final norm.
    A drafter that names any is not asked in steps without hidden states: in the first one, before the target has
    read anything, and after a constraint forced the last token of a sequence; see `ready`. Its settings declare
    `needs_hidden_states`, so that a study is checked before anything is loaded."""

    max_length: int | None = None
    """The most tokens that a sequence and its draft may have together, or None for no limit. It counts
    `DraftRequest.tokens`: the prompt, or for encoder-decoder targets the decoder's tokens from the start token on.
    A model with P positions reads every token but the last that it drafts, so its limit is P + 1.

    The core asks for no draft beyond it: after n tokens the budget is at most `max_length - n`, and 0 from there
    on. A drafter composed of others does the same for each of them, with `clipped`."""

    drafts_trees: bool = False
    """Whether it drafts a tree where `DraftRequest.tree` asks for one. If not, it is asked for a line instead."""

    autoregressive: bool = False
    """Whether q of a draft token depends on the tokens before it alone, not on where the draft began, and its
    drafts are as long as asked. A replay then asks it once per text, not at every token; the tokens come from the
    request."""

    drafts_by_budget: bool = False
    """Whether a smaller budget gives another draft than the beginning of the one for a larger budget. A replay
    then asks it for every budget."""

    remembers: bool = False
    """Whether it keeps knowledge between requests, so that its proposals for a request depend on earlier requests.

    Its sessions then work as follows, in any number of threads:

    - A session reads what was known when it was opened. Its proposals depend on its tokens and on that snapshot
      only.
    - What its sequences taught, prompt and output, becomes known when it is closed. `DraftRequest.tokens` grows
      with the sequences, so a session that keeps it has all tokens in `close`. Add them under a lock. A session
      that was never asked for a draft has seen no tokens and teaches nothing.
    - `reset` forgets everything.

    Drafts are verified as ever: knowledge changes the speed, never the distribution of the text."""

    def __init__(self, config: Any, target: TargetInfo) -> None:
        self.config = config
        self.target = target

    @abstractmethod
    def open(self, session: SessionInfo) -> DraftSession:
        """Start a batch."""

    def ready(self, hidden_states: Mapping[int, Tensor]) -> bool:
        """Return whether it can be asked for a draft.

        It can if it names no `hidden_layers`, or if there are hidden states. A drafter composed of others
        overrides this if some of them can draft without.

        Args:
            hidden_states: Those of the step's request; empty in steps without.
        """
        return bool(hidden_states) or not self.hidden_layers

    def clipped(
        self, tokens: Sequence[Sequence[int]], budget: Sequence[int], note: Callable[[str], None] = lambda _: None
    ) -> tuple[int, ...]:
        """Return a budget without what goes beyond `max_length`.

        Args:
            tokens: The committed tokens of each sequence.
            budget: A number of draft tokens for each sequence.
            note: Told if nothing is left of the budget of a sequence; see `SessionInfo`.
        """
        if self.max_length is None:
            return tuple(budget)
        pairs = zip(tokens, budget, strict=True)
        left = tuple([max(min(most, self.max_length - len(row)), 0) for row, most in pairs])
        if left.count(0) > budget.count(0):
            most = self.max_length
            note(f"{type(self).__name__} takes at most {most} tokens: in longer texts it drafts nothing.")
        return left

    def reset(self) -> None:  # noqa: B027  (most drafters remember nothing)
        """Forget everything that requests have taught; the drafter then proposes what a new one would.

        Override it in a drafter that `remembers`. Open sessions keep their snapshots.
        """
