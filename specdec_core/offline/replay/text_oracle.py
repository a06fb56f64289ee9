"""Recorded texts in place of a model: they answer the drafts of a drafter, whose q of their tokens is read.

The drafter drafts the tokens of the texts, and the core keeps the q that it gave them.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from specdec_core.decoding.answer import Answered
from specdec_core.decoding.drawing import DraftSampler
from specdec_core.decoding.guard import PluginGuard
from specdec_core.decoding.opening import InnerLoop, LoopContext
from specdec_core.decoding.rows import Row, StopRule, TokenView
from specdec_core.decoding.step import Batch, Oracle
from specdec_core.decoding.validation import BAD_TOKEN, FAULTS, FINE, worst
from specdec_core.interface import AcceptanceResult, AcceptanceRule, PluginError, PointMass, Proposal, RuleConfig
from specdec_core.interface.controllers import BatchInfo, GammaController, ScriptedGamma
from specdec_core.interface.drafter import LAST_HIDDEN, Drafter, SessionInfo
from specdec_core.interface.outcome import Outcome, StepReport
from specdec_core.interface.settings import SamplingSettings
from specdec_core.models import LoadedModel
from specdec_core.models.device import inference_only
from specdec_core.offline.record.format import RecordedText
from specdec_core.offline.replay.replayed_metrics import Uncached
from specdec_core.sampling.candidates import TemperedCandidates
from specdec_core.sampling.generators import RowGenerators, Uniforms, draw_with_total, row_seed
from specdec_core.sampling.logits import LogitsToProbs, argmax, with_token_ids
from specdec_core.verification.distributions import dense, density

UNKNOWN = -1
"""Stands for a token beyond the end of a text, where drafts are free."""


def following(text: Sequence[int], length: int, count: int) -> list[int]:
    """Return the next tokens of a text after its first `length`, `UNKNOWN` beyond its end."""
    known = list(text[length : length + count])
    return known + [UNKNOWN] * (count - len(known))


class ForcedSampler(DraftSampler):
    """Draws the next tokens of recorded texts, so that the record keeps the q of these.

    Where drafts are greedy, the drafter is told the text's token too, and the record keeps the argmax: the draft
    that would have been made. Beyond the end of a text, tokens are drawn as ever.

    Args:
        texts: The whole sequences, prompts first.
        device: Device of the proposal.
        root: The sampler of the request that this one's was forked from; None for the first.

    Attributes:
        reach: How many tokens of each sequence's draft are forced, in forks too; None for as many as the text has.
    """

    reach: Sequence[int] | None = None

    def __init__(
        self, texts: Sequence[Sequence[int]], device: torch.device | str, root: "ForcedSampler | None" = None
    ) -> None:
        self._texts = texts
        self._device = device
        self._root = root or self

    def start(self, tokens: Sequence[Sequence[int]], budget: Sequence[int]) -> None:
        """Begin a step along the texts."""
        width = max(budget)
        reach = self._root.reach
        counts = [width] * len(budget) if reach is None else [min(n, width) for n in reach]
        rows = zip(self._texts, tokens, counts, strict=bool(tokens))
        self._ahead = [following(text, len(row), count) + [UNKNOWN] * (width - count) for text, row, count in rows]
        # [K, B]: the tokens of all sequences at each position of the draft.
        self._columns = torch.tensor(self._ahead, dtype=torch.long, device=self._device).view(-1, max(width, 1)).T

    def draw(self, q: Tensor, uniforms: Callable[[], Uniforms], position: int, left: Sequence[int]) -> Tensor:
        """Return the texts' tokens; those beyond a text are drawn."""
        free = [row[position] == UNKNOWN and more > 0 for row, more in zip(self._ahead, left, strict=True)]
        if not any(free):
            return self._columns[position].clamp(min=0)  # drawing from q would read all of it
        return self.all_told(super().draw(q, uniforms, position, left), position)

    def draw_candidate(
        self, row: TemperedCandidates, uniform: float, index: int, position: int
    ) -> tuple[int, float]:
        """Return the text's token, and its probability."""
        token = self._ahead[index][position]
        if token == UNKNOWN:
            return super().draw_candidate(row, uniform, index, position)
        return token, row.probability(token)

    def told(self, token: int, index: int, position: int) -> int:
        """Return the text's token."""
        ahead = self._ahead[index][position] if position < len(self._ahead[index]) else UNKNOWN
        return token if ahead == UNKNOWN else ahead

    def all_told(self, tokens: Tensor, position: int) -> Tensor:
        """Return the texts' tokens `[B]`."""
        column = self._columns[position]
        return torch.where(column == UNKNOWN, tokens.to(column.device), column)

    def fork(self) -> "ForcedSampler":
        """Return a sampler along the same texts."""
        return ForcedSampler(self._texts, self._device, self._root)


class _ForcedRule(AcceptanceRule):
    """Emits the next token of each recorded text, for a model that drafts alone.

    Args:
        texts: The whole sequences, prompts first.

    Attributes:
        rows: The sequences so far.
        best: The argmax that a greedy model would have emitted; None where it samples.
    """

    def __init__(self, texts: Sequence[Sequence[int]]) -> None:
        super().__init__(RuleConfig())
        self._texts = texts
        self.rows: Sequence[Row] = ()
        self.best: list[int] | None = None

    def sample(self, proposal: Proposal, p: Tensor, lenience: Tensor | None, uniforms: Tensor) -> AcceptanceResult:  # noqa: ARG002
        """Emit the text's token, or one drawn from p beyond its end."""
        token, total = draw_with_total(p[:, 0], uniforms[:, -1])
        return self._answer(token, total > 0)

    def greedy(self, proposal: Proposal, scores: Tensor, lenience: Tensor | None) -> AcceptanceResult:  # noqa: ARG002
        """Emit the text's token, or the argmax beyond its end."""
        token = argmax(scores[:, 0])
        self.best = token.tolist()
        return self._answer(token, scores[:, 0].gather(1, token[:, None])[:, 0].isfinite())

    def _answer(self, token: Tensor, sound: Tensor) -> AcceptanceResult:
        pairs = zip(self._texts, self.rows, strict=True)
        ahead = torch.tensor([following(text, len(row.tokens), 1)[0] for text, row in pairs], device=token.device)
        return AcceptanceResult(torch.zeros_like(token), torch.where(ahead == UNKNOWN, token, ahead), sound)


class ForcedLoop(InnerLoop):
    """The inner loop of a hierarchy along recorded texts.

    Its model drafts alone: q is its own adjusted distribution, whatever drafts for it.

    Args:
        context: What is shared with the level above.
        above: What drafters know about the batch above.
        model: The model in the middle.
    """

    def __init__(self, context: "ForcedContext", above: SessionInfo, model: LoadedModel) -> None:
        self._rule = _ForcedRule(context.texts)
        super().__init__(context, above, model, None, None, self._rule)
        self._rule.rows = self._batch.rows

    def _drawn(self, report: StepReport) -> Sequence[Sequence[int]]:
        committed = report.outcome.committed
        best = self._rule.best
        return committed if best is None else [(x,) if new else () for x, new in zip(best, committed, strict=True)]


@dataclass(frozen=True)
class ForcedContext(LoopContext):
    """The shared state of the loops of all levels along recorded texts.

    Attributes:
        texts: The whole sequences, prompts first.
    """

    texts: Sequence[Sequence[int]] = ()

    def with_loop(self, info: SessionInfo) -> SessionInfo:
        """Return the same information for drafters, with the means to open an inner loop along the texts."""

        def open_loop(
            model: LoadedModel,
            drafter: Drafter,  # noqa: ARG001
            gamma: GammaController,  # noqa: ARG001
            session: SessionInfo | None = None,
        ) -> ForcedLoop:
            if session is not None:
                raise PluginError(
                    "a hierarchy with another tokenizer than the target's cannot be replayed: a record holds the "
                    "target's tokens. Replay its model alone, or compare live."
                )
            return ForcedLoop(self, info, model)

        return replace(info, loop=open_loop)


_CERTAIN = 1 - 1e-6
"""q of a draft token from here on is that of a point mass."""


class OwnTokensError(PluginError):
    """A drafter draws its tokens itself, so that its q of a text's tokens is not known."""


@dataclass(frozen=True, eq=False)
class ForcedText:
    """A recorded text as a sequence to decode.

    Attributes:
        text: The text.
        begin: The tokens before it: the prompt, or the start token where there is an encoder.
        limit: The most tokens that the text could have had.
        reach: The most tokens that the text and a draft may have together: one less than the limit, since the last
            position is for the target's own token, or what the drafter's `max_length` leaves of it.
        uncached: What a recurrent target reads again; None for others.
        hidden: `[L, D]` float, what each token was predicted from; None if no drafter needs it.
        all_p: Tokens `[L, k]` int64 and their p `[L, k]` float32, if they are all tokens that p does not exclude;
            None where the record does not say so.
        hidden_states: The outputs of layers at all tokens but the last, prompt included, `[T, D]` each.
    """

    text: RecordedText
    begin: tuple[int, ...]
    limit: int
    reach: int
    uncached: Uncached | None = None
    hidden: Tensor | None = None
    all_p: tuple[NDArray[np.int64], NDArray[np.float32]] | None = None
    hidden_states: Mapping[int, Tensor] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.text.tokens)

    def room(self, position: int) -> int:
        """Return the number of tokens that may be drafted at a position."""
        return max(self.reach - position, 0)


@dataclass(frozen=True, eq=False)
class ForcedDraft:
    """A drafter's answer for one sequence.

    Attributes:
        ratio: `[n]` float64, q(y) / p(y) of each token y of the text, as far as it goes.
        least: `[n]` float64, the smallest q(x) / p(x) of all tokens x that p does not exclude; None where they are
            not known.
        confidence: `[n]` float32, what `keep_drafting` would be told after each token; NaN where it would not be
            asked.
        offered: Number of tokens, beyond the text too.
    """

    ratio: NDArray[np.float64]
    least: NDArray[np.float64] | None
    confidence: NDArray[np.float32]
    offered: int


class TextOracle(Oracle):
    """A batch in which recorded texts answer the drafts of a drafter, whatever it drafts; see `Oracle`.

    Args:
        drafter: The drafter.
        texts: The texts.
        max_gamma: The longest draft.
        sampling: The target's sampling settings.
        draft_sampling: Those of drafts.
        follow: Returns how many tokens of each draft are accepted; the next one is always the text's.
        live: Open inner loops as they are, which draw for themselves; those of hierarchies are forced otherwise.

    Raises:
        PluginError: The drafter fails. So do steps.

    Attributes:
        device: Where drafts are read.
        sampler: Draws the draft tokens: those of the texts.
        batch: The batch.
    """

    def __init__(
        self,
        drafter: Drafter,
        texts: Sequence[ForcedText],
        max_gamma: int,
        sampling: SamplingSettings,
        draft_sampling: SamplingSettings | None,
        follow: Callable[[Proposal], list[int]],
        *,
        live: bool = False,
    ) -> None:
        self._drafter, self._texts, self._follow, self._greedy = drafter, texts, follow, sampling.greedy
        self._whole = [[*one.begin, *one.text.tokens.tolist()] for one in texts]
        self._probabilities = [one.text.probabilities.astype(np.float64) for one in texts]
        begins = [len(one.begin) for one in texts]
        self._rows = [
            Row(list(one.begin), begin, begin + one.limit, "length")
            for one, begin in zip(texts, begins, strict=True)
        ]
        capacity = max(row.limit for row in self._rows)
        info = SessionInfo(
            batch_size=len(texts),
            vocab_size=drafter.target.vocab_size,
            capacity=capacity,
            max_gamma=min(max_gamma, capacity),
            device=drafter.target.device,
            sources=tuple(one.text.prompt for one in texts) if drafter.target.encoder_decoder else None,
            metadata=[one.text.metadata for one in texts],
        )
        self.device = torch.device(info.device)
        self._guard = PluginGuard(strict=True)
        # Draws beyond the end of a text are free.
        generators = RowGenerators([row_seed(row_seed(0, one.text.number), one.text.sample) for one in texts])
        make = LoopContext if live else partial(ForcedContext, texts=self._whole)
        settings = with_token_ids(draft_sampling or sampling, drafter.target.tokenizer, info.vocab_size)
        context = make(LogitsToProbs(settings).for_batch(begins), generators, self._guard)
        self.sampler = ForcedSampler(self._whole, info.device)
        self._budget: Sequence[int] = ()
        self._told: list[list[float]] = []  # what a controller would be told of the tokens of each row
        gamma = ScriptedGamma(max_gamma, lambda: list(self._budget), self._note_confidence)
        about = BatchInfo(len(texts), max_gamma, tuple(one.limit for one in texts), self._greedy)
        self._proposer = context.open_drafting(drafter, gamma, info, about, sampler=self.sampler)
        self.batch = Batch(self._rows, self, self._proposer, StopRule(frozenset()))

    @property
    def position(self) -> list[int]:
        """The position of each sequence in its text."""
        return [len(row.tokens) - len(one.begin) for row, one in zip(self._rows, self._texts, strict=True)]

    def step(self, budget: Sequence[int]) -> StepReport:
        """Ask for drafts of at most so many tokens for each sequence, and commit what follows of the texts."""
        self._budget, self._told = budget, [[] for _ in budget]
        return self.batch.step()

    def _note_confidence(self, confidence: Sequence[float]) -> Sequence[bool]:
        for row, value in zip(self._told, confidence, strict=True):
            if not math.isnan(value):
                row.append(value)
        return [True] * len(confidence)

    @inference_only
    def teach(self) -> None:
        """Let a drafter that remembers learn the texts, without asking for more than a draft."""
        self._budget, self._told = [1] * len(self._rows), [[] for _ in self._rows]
        views = [TokenView(row.tokens) for row in self._rows]
        proposal, _ = self._proposer.propose(
            views, [row.room for row in self._rows], self.hidden_states(self._rows)
        )
        texts = tuple(tuple(one.text.tokens.tolist()) for one in self._texts)
        nothing = (0,) * len(texts)
        self.batch.commit(Outcome(proposal.lengths, nothing, texts, (True,) * len(texts)))

    def answer(self, rows: Sequence[Row], proposal: Proposal, faults: Tensor | None) -> Answered:
        """Accept as much of the drafts as is to be followed, and go on with the texts' tokens."""
        code = FINE if faults is None else worst(faults.tolist(), proposal.lengths)
        # That q gives nothing to a token of the text is not a fault here: it would not have been drafted.
        if code not in (FINE, BAD_TOKEN):
            self.fail(FAULTS[code].format(last=self._drafter.target.vocab_size - 1))
        accepted = self._follow(proposal)
        # A row that has ended takes no more tokens.
        ahead = [[*whole[len(row.tokens) :], 0] for row, whole in zip(rows, self._whole, strict=True)]
        token = [tokens[min(n, len(tokens) - 1)] for tokens, n in zip(ahead, accepted, strict=True)]
        sound = [True] * len(token)
        return Answered(proposal.lengths, ahead, accepted, token, [], None, None, sound, FINE)

    def keep(self, rows: Sequence[Row], answered: Answered) -> None:  # noqa: ARG002
        """End the sequences whose texts end here."""
        for row, whole in zip(rows, self._whole, strict=True):
            if len(row.tokens) >= len(whole):
                row.reason = "length"

    def read(self, proposal: Proposal, *, drawn: bool = False) -> list[ForcedDraft]:
        """Return what the acceptance of drafts depends on.

        Args:
            proposal: The drafts.
            drawn: Require that the request drew every token, as it does for autoregressive drafters.

        Raises:
            PluginError: The drafter drew tokens itself, or q is not a number.
        """
        if drawn and not self._proposer.request.drew(proposal):
            self.fail(
                "it declares `autoregressive`, but drafts tokens that the request did not draw. Draw them with "
                "the request's methods, or set `autoregressive = False`."
            )
        width = proposal.tokens.shape[1]
        tokens = proposal.tokens.cpu()
        y, p = self._ahead(tokens)
        if isinstance(proposal.q, PointMass):
            q = (tokens == y).double()
            certain = torch.ones_like(q)
        else:
            on_device = y.to(proposal.tokens.device)
            both = torch.stack([density(proposal.q, on_device), density(proposal.q, proposal.tokens)])
            q, certain = both.double().cpu()
        least = self._least(proposal)
        left = [len(one) - at for one, at in zip(self._texts, self.position, strict=True)]
        drafts = []
        for index, length in enumerate(proposal.lengths):
            count = max(min(length, left[index]), 0)
            ratio = (q[index, :count] / p[index, :count]).numpy()
            other = (tokens[index, :count] != y[index, :count]).numpy()
            if other.any():
                self._refuse_own(certain[index], int(other.argmax()))
                ratio = np.where(other, 0.0, ratio)
            if np.isnan(ratio).any():
                self.fail("q of a token is NaN: its logits or probabilities are.")
            told = np.full(count, math.nan, dtype=np.float32)
            heard = self._told[index][:count] if width else []
            told[: len(heard)] = heard
            own = None if least is None else least[index, :count].numpy()
            drafts.append(ForcedDraft(ratio, own, told, length))
        return drafts

    def _ahead(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return the texts' next tokens `[B, K]` and the target's p of them; the draft's own and 1 beyond."""
        y, p = tokens.clone(), torch.ones(tokens.shape, dtype=torch.float64)
        for index, (row, whole) in enumerate(zip(self._rows, self._whole, strict=True)):
            at = len(row.tokens) - len(self._texts[index].begin)
            known = whole[len(row.tokens) : len(row.tokens) + tokens.shape[1]]
            y[index, : len(known)] = torch.tensor(known, dtype=torch.long)
            if not self._greedy:
                p[index, : len(known)] = torch.from_numpy(self._probabilities[index][at : at + len(known)])
        return y, p

    def _least(self, proposal: Proposal) -> Tensor | None:
        """Return the smallest q(x) / p(x) of all tokens that p does not exclude, `[B, K]`; 1 beyond the texts.

        None where these are not known of all texts.
        """
        batch, width = proposal.tokens.shape
        known = [one.all_p for one in self._texts]
        if not width or any(one is None for one in known):
            return None
        q = dense(proposal.q, proposal.tokens, self._drafter.target.vocab_size)
        least = torch.ones(batch, width, dtype=torch.float64)
        for index, (all_p, at) in enumerate(zip(known, self.position, strict=True)):
            assert all_p is not None
            ids, p = (torch.from_numpy(values[at : at + width]) for values in all_p)
            own = q[index, : len(ids)].gather(1, ids.to(q.device)).double().cpu() / p
            least[index, : len(ids)] = own.where(p > 0, math.inf).amin(dim=1)
        return least

    def hidden_states(self, rows: Sequence[Row]) -> Mapping[int, Tensor]:  # noqa: ARG002
        """Return the hidden states of the sequences; none in the first step."""
        if not (self._drafter.hidden_layers and all(self.position)):
            return {}
        last = []
        for one, at in zip(self._texts, self.position, strict=True):
            assert one.hidden is not None, "hidden states were not read"
            last.append(one.hidden[min(at, len(one)) - 1])
        return {LAST_HIDDEN: torch.stack(last).to(self.device), **self._layer_outputs}

    @cached_property
    def _layer_outputs(self) -> dict[int, Tensor]:
        """The outputs of layers at the tokens of all sequences, `[B, T, D]` each."""
        layers = [layer for layer in self._drafter.hidden_layers if layer != LAST_HIDDEN]
        rows = {layer: [one.hidden_states[layer] for one in self._texts] for layer in layers}
        return {layer: pad_sequence(states, batch_first=True).to(self.device) for layer, states in rows.items()}

    def _refuse_own(self, certain: Tensor, index: int) -> None:
        """Reject a token that differs from the text's, unless it was certain, as a copied one is."""
        if not float(certain[index]) >= _CERTAIN:
            raise OwnTokensError(
                f"{type(self._drafter).__name__} draws its tokens itself, and returned others than the request's "
                "methods did. A replay needs q of the text's tokens: draw with the request's sample(), draw() or "
                "sample_candidates()."
            )

    def fail(self, message: str) -> None:
        """Raise a `PluginError` that names the drafter."""
        self._guard.fail(self._drafter, PluginError(message))
