"""One step of an acceptance rule, worked out on a small vocabulary.

Every draft is enumerated with its probability. The random numbers of a step are integrated over a Sobol sequence,
which is deterministic and much more even than random numbers: a distribution is known to about `TOLERANCE`.
"""

import itertools
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from specdec_core.interface import AcceptanceResult, AcceptanceRule, Dense, PointMass, Proposal, Sparse
from specdec_core.interface.proposal import Distribution
from specdec_core.verification import dense

TOLERANCE = 2e-3
"""Total variation that integration may leave at a position, with `POINTS` points."""
POINTS = 4096
"""Points of the Sobol sequence for each draft."""
FORMS = ("dense", "sparse", "point")
"""The forms of q."""


@dataclass(frozen=True)
class Models:
    """A target and a drafter on a few tokens, whose distributions depend on what was drafted before.

    Attributes:
        p: For i = 0 ... gamma, the target's distributions after i draft tokens, `[V ** i, V]` float32.
        q: For i = 0 ... gamma - 1, the drafter's.
    """

    p: tuple[Tensor, ...]
    q: tuple[Tensor, ...]

    @property
    def gamma(self) -> int:
        """Number of draft tokens."""
        return len(self.q)

    @property
    def vocab_size(self) -> int:
        """V."""
        return self.p[0].shape[-1]

    def drafts(self) -> Tensor:
        """Return every draft, `[V ** gamma, gamma]` int64."""
        every = list(itertools.product(range(self.vocab_size), repeat=self.gamma))
        return torch.tensor(every, dtype=torch.long).view(len(every), self.gamma)


def models(vocab_size: int, gamma: int, seed: int) -> Models:
    """Return models with random distributions; some tokens p excludes, others q.

    How much they resemble each other depends on the seed: every third pair has nothing in common.

    Args:
        vocab_size: V.
        gamma: Number of draft tokens.
        seed: Seed of the distributions.
    """
    generator = torch.Generator().manual_seed(seed)

    def level(position: int, like: Tensor | None = None) -> Tensor:
        shape = (vocab_size**position, vocab_size)
        weights = torch.rand(shape, generator=generator, dtype=torch.float64) ** 2 + 1e-3
        if like is not None:
            weights = weights / weights.sum(dim=1, keepdim=True) + like.double() * (seed % 3) / 2
        excluded = torch.rand(shape, generator=generator) < 0.15
        excluded[:, (seed + position) % vocab_size] = False  # one token is always left
        weights = weights.masked_fill(excluded, 0)
        return (weights / weights.sum(dim=1, keepdim=True)).float()

    p = tuple(level(position) for position in range(gamma + 1))
    q = tuple(level(position, p[position]) for position in range(gamma))
    return Models(p, q)


@dataclass(frozen=True)
class Step:
    """All drafts of two models, each with every point of the Sobol sequence: the arguments of a rule.

    Attributes:
        proposal: Draft tokens `[B, gamma]`, the draft of a row in order, and q.
        p: `[B, gamma + 1, V]` float32.
        uniforms: `[B, gamma + 1]` float64.
        weights: `[B]` float64, the probability of each row.
        models: What the drafts come from.
        form: The form of q.
    """

    proposal: Proposal
    p: Tensor
    uniforms: Tensor
    weights: Tensor
    models: Models
    form: str


def step_of(pair: Models, form: str, points: int = POINTS) -> Step:
    """Return all drafts of two models, with q in one of the `FORMS`; with a point mass, each draft is certain."""
    drafts = pair.drafts()
    prefix = _prefixes(drafts, pair.vocab_size)
    q = [pair.q[position][prefix[:, position]] for position in range(pair.gamma)]
    p = torch.stack([pair.p[position][prefix[:, position]] for position in range(pair.gamma + 1)], dim=1)
    weights = torch.ones(len(drafts), dtype=torch.float64)
    for position, one in enumerate(q) if form != "point" else ():
        weights = weights * one.gather(1, drafts[:, position, None])[:, 0].double()
    kept = weights > 0  # a drafter draws nothing that its q excludes
    drafts, p, weights = drafts[kept], p[kept], weights[kept]

    def each(tensor: Tensor) -> Tensor:
        return tensor.repeat_interleave(points, dim=0)

    stacked = torch.stack(q, dim=1)[kept] if q else torch.zeros(len(drafts), 0, pair.vocab_size)
    proposal = Proposal(each(drafts), (pair.gamma,) * (len(drafts) * points), in_form(each(stacked), form))
    uniforms = _sobol(pair.gamma + 1, points).repeat(len(drafts), 1)
    return Step(proposal, each(p), uniforms, each(weights) / points, pair, form)


def in_form(q: Tensor, form: str) -> Distribution:
    """Return a dense q, `[B, K, V]`, in another form."""
    if form == "point":
        return PointMass()
    if form == "dense":
        return Dense(q)
    # In descending order, then token 0 once more with probability 0, as padding does.
    ids = torch.tensor([*reversed(range(q.shape[2])), 0]).expand(*q.shape[:2], -1).contiguous()
    probabilities = q.gather(2, ids)
    probabilities[..., -1] = 0
    return Sparse(ids, probabilities)


@dataclass(frozen=True)
class StepDeviation:
    """How far the tokens of a step are from the target's distribution.

    Attributes:
        measured: `[gamma + 1]` float64, total variation from p of the token at each position, times the
            probability that the step gets there; of point masses, that of the worst draft.
        declared: `[gamma + 1]` float64, the same from the declared deviations; 0 where none is declared.
        accepted: Mean number of accepted draft tokens.
    """

    measured: Tensor
    declared: Tensor
    accepted: float


@dataclass(frozen=True)
class Following:
    """The tokens that follow the prefixes of drafts at one position, by what has to be told apart before it.

    Attributes:
        group: `[B]` int64, the group of each row: its prefix, or the whole draft where q is a point mass.
        token: `[B]` int64, the token that follows the prefix: the draft's, or the one that was drawn.
        reached: `[B]` bool, whether all of the prefix was accepted.
        groups: Number of groups, G.
    """

    group: Tensor
    token: Tensor
    reached: Tensor
    groups: int

    def mass(self, weights: Tensor, vocab_size: int) -> Tensor:
        """Return the weights of the rows that get there, by group and token, `[G, V]` float64."""
        mass = torch.zeros(self.groups * vocab_size, dtype=torch.float64)
        mass.index_add_(0, self.group * vocab_size + self.token, weights * self.reached)
        return mass.view(self.groups, vocab_size)


def following(step: Step, answer: AcceptanceResult, position: int) -> Following:
    """Return what follows the first `position` draft tokens where they are all accepted."""
    pair, drafts, n = step.models, step.proposal.tokens, answer.accepted
    own = drafts[:, min(position, max(pair.gamma - 1, 0))] if pair.gamma else answer.token
    token = torch.where(n > position, own, answer.token)
    if step.form != "point":
        return Following(
            _prefixes(drafts, pair.vocab_size)[:, position], token, n >= position, pair.vocab_size**position
        )
    # With a point mass each draft stands for itself, and weighs 1.
    groups = pair.vocab_size**pair.gamma
    return Following(torch.arange(len(n)) // (len(n) // groups), token, n >= position, groups)


def deviation_of(step: Step, answer: AcceptanceResult) -> StepDeviation:
    """Return how far a rule's answer to all drafts of a step is from the target's distribution.

    The token after each prefix s of the draft must follow p(. | s), given that the step gets to s, that is: that
    all of s is accepted. Then a text has the distribution of the target whatever number of steps it takes.
    """
    pair, n = step.models, answer.accepted
    vocab_size, certain = pair.vocab_size, step.form == "point"
    prefix = _prefixes(step.proposal.tokens, vocab_size)
    deviation = answer.deviation
    measured, declared = [], []
    for position in range(pair.gamma + 1):
        found = following(step, answer, position)
        group, groups, reached = found.group, found.groups, found.reached
        mass = found.mass(step.weights, vocab_size)
        after = torch.zeros(groups, dtype=torch.long).index_copy_(0, group, prefix[:, position])
        expected = mass.sum(dim=1, keepdim=True) * pair.p[position][after].double()
        apart = (mass - expected).abs().sum(dim=1) / 2
        measured.append(apart.max() if certain else apart.sum())
        cost = torch.zeros(groups, dtype=torch.float64)
        if deviation is not None and position < pair.gamma:
            cost.index_add_(0, group, step.weights * reached * deviation[:, position].double())
        declared.append(cost[apart.argmax()] if certain else cost.sum())
    accepted = float((step.weights * n).sum() / step.weights.sum())
    return StepDeviation(torch.stack(measured), torch.stack(declared), accepted)


def replay_error(step: Step, answer: AcceptanceResult, rule: AcceptanceRule) -> Tensor:
    """Return how far a rule's `acceptance_given_text` is from what its answer to all drafts of a step amounts to.

    Of the texts that begin with a prefix s and the token y, those in which s is accepted are counted, and those in
    which y is, too. Their ratio is the acceptance of y given the text.

    Returns:
        `[gamma]` float64, the difference of the two at each position, weighted with the probability that a step
        gets there; of point masses, that of the worst draft.
    """
    pair = step.models
    vocab_size, gamma, certain = pair.vocab_size, pair.gamma, step.form == "point"
    q = dense(step.proposal.q, step.proposal.tokens, vocab_size).double()
    p, drafts = step.p[:, :gamma].double(), step.proposal.tokens
    by_token = q / p.clamp(min=1e-30)  # [B, gamma, V]
    least = by_token.where(p > 0, torch.inf).amin(dim=2)
    along = by_token.gather(2, drafts[..., None])[..., 0]
    errors = []
    for position in range(gamma):
        found = following(step, answer, position)
        every = found.mass(step.weights, vocab_size)
        kept = replace(found, reached=answer.accepted > position).mass(step.weights, vocab_size)
        row = torch.zeros(found.groups, dtype=torch.long).index_copy_(0, found.group, torch.arange(len(drafts)))
        # Along the prefix of each group, then each token: [G, V, position + 1].
        before = along[row, None, :position].expand(-1, vocab_size, -1)
        ratio = torch.cat([before, by_token[row, position, :, None]], dim=2).numpy()
        smallest = least[row, None, : position + 1].expand(-1, vocab_size, -1).numpy()
        own = rule.acceptance_given_text(ratio, smallest if rule.config.replays_from == "all" else None)
        apart = (kept - every * torch.from_numpy(own[..., position])).abs().sum(dim=1)
        errors.append(apart.max() if certain else apart.sum())
    return torch.stack(errors) if errors else torch.zeros(0, dtype=torch.float64)


def _prefixes(drafts: Tensor, vocab_size: int) -> Tensor:
    """Return the number of the prefix before each position and of the whole draft, `[B, gamma + 1]` int64."""
    number = torch.zeros(len(drafts), dtype=torch.long)
    numbers = [number]
    for token in drafts.unbind(dim=1):
        number = number * vocab_size + token
        numbers.append(number)
    return torch.stack(numbers, dim=1)


@lru_cache(maxsize=8)
def _sobol(columns: int, points: int) -> Tensor:
    """Return points of a scrambled Sobol sequence, `[points, columns]` float64 in [0, 1)."""
    engine: Any = torch.quasirandom.SobolEngine
    drawn: Tensor = engine(columns, scramble=True, seed=7).draw(points, dtype=torch.float64)
    return drawn.clamp(max=1 - 2.0**-52)
