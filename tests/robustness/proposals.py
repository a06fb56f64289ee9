"""Proposals with one part that is not what it must be. Greedy decoding must return the target's own tokens."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch

from specdec_core.interface import Candidates, Dense, DraftRequest, PointMass, Proposal, Sparse
from tests.robustness.plugins import VOCAB, Script, decode


def _quantized(tensor: torch.Tensor) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.quantize_per_tensor(tensor.float(), 0.01, 0, torch.quint8)


TENSORS: dict[str, Callable[[torch.Tensor], Any]] = {
    "numpy": lambda t: t.numpy(),
    "a list": lambda t: t.tolist(),
    "None": lambda _: None,
    "float": lambda t: t.float(),
    "int32": lambda t: t.int(),
    "bool": lambda t: t.bool(),
    "complex": lambda t: t.to(torch.complex64),
    "half": lambda t: t.half(),
    "double": lambda t: t.double(),
    "on meta": lambda t: t.to("meta"),
    "sparse": lambda t: t.to_sparse(),
    "quantized": _quantized,
    "with gradients": lambda t: t.float().requires_grad_(),
    "transposed": lambda t: t.transpose(0, 1),
    "one dimension more": lambda t: t[None],
    "one dimension less": lambda t: t[0],
    "a column short": lambda t: t[:, :-1],
    "a row short": lambda t: t[:-1],
    "empty": lambda t: t[:0],
    "negative": lambda t: -t - 1,
    "too large": lambda t: t + VOCAB,
    "huge": lambda t: t + 2**40,
    "NaN": lambda t: t.float() * float("nan"),
    "infinite": lambda t: t.float() + float("inf"),
    "zero": lambda t: t * 0,
    "not contiguous": lambda t: torch.stack([t, t], -1)[..., 0],
    "overlapping": lambda t: t[:1].expand_as(t),
}
LENGTHS: dict[str, Callable[[tuple[int, ...]], Any]] = {
    "a list": list,
    "numpy": lambda n: tuple(np.array(n)),
    "a numpy array": lambda n: np.array(n),
    "a tensor": lambda n: torch.tensor(n),
    "fractional": lambda n: tuple(one - 0.5 for one in n),
    "floats": lambda n: tuple(map(float, n)),
    "bools": lambda n: tuple(one > 0 for one in n),
    "a generator": lambda n: (one for one in n),
    "a dict": lambda n: dict.fromkeys(n),
    "None": lambda _: None,
    "a number": lambda n: n[0],
    "one too many": lambda n: (*n, 1),
    "one too few": lambda n: n[:-1],
    "negative": lambda n: tuple(-one for one in n),
    "huge": lambda n: tuple(one + 2**70 for one in n),
    "NaN": lambda n: tuple(float("nan") for _ in n),
    "strings": lambda n: tuple(map(str, n)),
}
QS: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "a class": lambda: Dense,
    "a string": lambda: "dense",
    "a tensor": lambda: torch.ones(3, 4, VOCAB) / VOCAB,
    "an empty tuple": tuple,
}


def sound(form: str, request: DraftRequest) -> Proposal:
    """Return a proposal with one form of q that is in order."""
    batch, width = len(request.budget), max(request.budget)
    tokens = torch.full((batch, width), 3)
    return Proposal(tokens, tuple(request.budget), _q(form, batch, width))


def _q(form: str, batch: int, width: int) -> Any:
    if form == "dense":
        return Dense(torch.full((batch, width, VOCAB), 1 / VOCAB))
    ids = torch.tensor([2, 3]).expand(batch, width, 2)
    if form == "sparse":
        return Sparse(ids, torch.tensor([0.3, 0.7]).expand(batch, width, 2))
    return PointMass()


def malformed(random: Random, _: Path) -> Iterator[str]:
    """A proposal is malformed in one part."""
    form = random.choice(["point mass", "dense", "sparse"])
    parts = {"point mass": [], "dense": ["probabilities"], "sparse": ["ids", "probabilities"]}
    part = random.choice(["tokens", "lengths", "q", *parts[form] * 3])
    kinds = {"lengths": LENGTHS, "q": QS}.get(part, TENSORS)
    kind = random.choice(sorted(kinds))
    call, temperature = random.randrange(3), random.choice([0, 1])

    def act(request: DraftRequest) -> Proposal:
        proposal = sound(form, request)
        if part == "q":
            return replace(proposal, q=QS[kind]())
        if part == "lengths":
            return replace(proposal, lengths=LENGTHS[kind](proposal.lengths))
        if part == "tokens":
            return replace(proposal, tokens=TENSORS[kind](proposal.tokens))
        q: Any = proposal.q
        return replace(proposal, q=replace(q, **{part: TENSORS[kind](getattr(q, part))}))

    yield f"{form} proposal, {part} is {kind}, at call {call + 1}, temperature {temperature}"
    decode(Script("drafter.propose", call, act), temperature=temperature)


def _candidates(ids: list[int], log_weights: list[float]) -> Candidates:
    return Candidates(np.array(ids, dtype=np.int64), np.array(log_weights))


CALLS: dict[str, Callable[[Any], Any]] = {
    "sample(None)": lambda r: r.sample(None),
    "sample of a list": lambda r: r.sample([[0.0] * VOCAB] * len(r.budget)),
    "sample of one row": lambda r: r.sample(torch.zeros(1, VOCAB)),
    "sample of V - 1 logits": lambda r: r.sample(torch.zeros(len(r.budget), VOCAB - 1)),
    "sample of V + 1 logits": lambda r: r.sample(torch.zeros(len(r.budget), VOCAB + 1)),
    "sample of NaN": lambda r: r.sample(torch.full((len(r.budget), VOCAB), float("nan"))),
    "sample of -inf": lambda r: r.sample(torch.full((len(r.budget), VOCAB), float("-inf"))),
    "sample of integers": lambda r: r.sample(torch.zeros(len(r.budget), VOCAB, dtype=torch.long)),
    "sample of numpy": lambda r: r.sample(np.zeros((len(r.budget), VOCAB))),
    "sample on meta": lambda r: r.sample(torch.zeros(len(r.budget), VOCAB, device="meta")),
    "sample of sparse logits": lambda r: r.sample(torch.eye(len(r.budget), VOCAB).to_sparse()),
    "draw of negative weights": lambda r: r.draw(-torch.ones(len(r.budget), VOCAB)),
    "draw of zeros": lambda r: r.draw(torch.zeros(len(r.budget), VOCAB)),
    "draw of a wrong sum": lambda r: r.draw(torch.ones(len(r.budget), VOCAB)),
    "draw beyond the budget": lambda r: [r.draw(torch.ones(len(r.budget), VOCAB) / VOCAB) for _ in range(20)],
    "extend out of range": lambda r: r.extend([[VOCAB + 5]] * len(r.budget), None),
    "extend of negative ids": lambda r: r.extend([[-1]] * len(r.budget), None),
    "extend of too few rows": lambda r: r.extend([[1]], None),
    "extend with q of another shape": lambda r: r.extend([[1]] * len(r.budget), torch.ones(1, 1, 2)),
    "extend of strings": lambda r: r.extend([["a"]] * len(r.budget), None),
    "sample_candidates of strings": lambda r: r.sample_candidates(["row"] * len(r.budget)),
    "sample_candidates of too few": lambda r: r.sample_candidates([]),
    "sample_candidates of none": lambda r: r.sample_candidates([_candidates([], [])] * len(r.budget)),
    "sample_candidates out of range": lambda r: r.sample_candidates([_candidates([VOCAB], [0])] * len(r.budget)),
    "sample_candidates of NaN": lambda r: r.sample_candidates([_candidates([1], [np.nan])] * len(r.budget)),
    "sample_candidates of strings within": lambda r: r.sample_candidates(
        [Candidates(np.array([1]), np.array(["a"]))] * len(r.budget)
    ),
    "fork beyond the budget": lambda r: r.fork([n + 5 for n in r.budget]),
    "fork of strings": lambda r: r.fork(["a"] * len(r.budget)),
    "fork of too few": lambda r: r.fork([]),
    "a changed budget": lambda r: setattr(r, "budget", tuple(n + 3 for n in r.budget)),
}


def misused(random: Random, _: Path) -> Iterator[str]:
    """A method of the request is called with what it does not take."""
    name, call, temperature = random.choice(sorted(CALLS)), random.randrange(3), random.choice([0, 1])

    def act(request: DraftRequest) -> Proposal:
        CALLS[name](request)
        return request.proposal()

    yield f"{name}, at call {call + 1}, temperature {temperature}"
    decode(Script("drafter.propose", call, act), temperature=temperature)
