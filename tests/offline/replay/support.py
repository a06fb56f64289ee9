"""Records in memory, and what rules do on average, by enumeration: independent of the code under test."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import cache
from typing import Any

import numpy as np
import torch

from specdec_core.decoding.counts import Metrics, Tally
from specdec_core.interface import Outcome, StepReport
from specdec_core.interface.settings import GenerationSettings, SamplingSettings
from specdec_core.models import LoadedModel, wrap_model
from specdec_core.offline.record.format import RecordedText
from specdec_core.offline.replay.drafter_replay import DrafterReplay
from specdec_core.offline.replay.replayed_metrics import TextAcceptance, expected_metrics
from specdec_core.testing.harness.enumeration import adjusted, continuations
from specdec_core.testing.harness.replaying import memory_record, recorded_texts
from specdec_core.testing.harness.tiny_target import gpt2_config, random_model, uncached_logits

Text = tuple[int, ...]
Kept = tuple[int, int, float]
QOf = Callable[[Text, Text], np.ndarray | int | None]
"""Takes the committed tokens and the draft so far; returns q `[V]`, a certain token, or None at its end."""
PROMPT = (2, 0, 2, 3)
LENGTH = 5
"""Maximum length of the enumerated texts."""


def small_target(vocab: int = 4, seed: int = 0) -> LoadedModel:
    """Return a decoder-only model with so few ids that everything can be enumerated."""
    return wrap_model(random_model(gpt2_config(vocab, pad_token_id=None), seed, sharpness=0.8))


def all_texts(
    target: LoadedModel,
    sampling: SamplingSettings,
    length: int = LENGTH,
    prompt: Text = PROMPT,
    top_k: int = 0,
) -> tuple[list[RecordedText], np.ndarray]:
    """Return every text that the target can generate, and the probability of each."""
    found = continuations(target, sampling, prompt, length)
    texts = recorded_texts(target, prompt, list(found), sampling, length, top_k)
    return texts, np.array(list(found.values()))


def expected_by_replay(
    acceptance: Sequence[TextAcceptance], weights: np.ndarray, gamma: int, **options: Any
) -> dict[str, Any]:
    """Return what replaying every text gives on average."""
    total: dict[str, Any] = defaultdict(lambda: np.zeros(8))
    for one, weight in zip(acceptance, weights, strict=True):
        _add(total, expected_metrics([one], gamma, **options).metrics, float(weight))
    return total


def expected_by_enumeration(
    target: LoadedModel,
    sampling: SamplingSettings,
    q_of: QOf,
    gamma: int,
    length: int = LENGTH,
    prompt: Text = PROMPT,
    rule: str = "token",
) -> dict[str, Any]:
    """Return what a rule counts on average, over all drafts and all outcomes of each step."""
    kinds: Counter[tuple[bool, int, int, int, int]] = Counter()
    begins: dict[Text, float] = {(): 1.0}
    distribution = _distribution(target, sampling, prompt)
    for at in range(length):
        for text, weight in [(text, weight) for text, weight in begins.items() if len(text) == at]:
            asked = min(gamma, length - at - 1)
            for draft, chance in _drafts(q_of, (*prompt, *text), asked):
                for accepted, token, share in OUTCOMES[rule](distribution, q_of, text, draft):
                    new = _clipped((*draft[:accepted], token), target.eos_ids)
                    kept = min(accepted, len(new))
                    kinds[at == 0, asked, len(draft), kept, len(new)] += weight * chance * share
                    if new[-1] not in target.eos_ids and at + len(new) < length:
                        begins[text + new] = begins.get(text + new, 0.0) + weight * chance * share
    total: dict[str, Any] = defaultdict(lambda: np.zeros(8))
    for (first, asked, drafted, accepted, committed), weight in kinds.items():
        _add(total, _counted(first, asked, drafted, accepted, committed), weight)
    return total


class _Distribution:
    """The target's p after each text."""

    def __init__(self, target: LoadedModel, sampling: SamplingSettings, prompt: Text) -> None:
        self._target, self._sampling, self._prompt = target, sampling, prompt
        self._known: dict[Text, np.ndarray] = {}

    def p(self, text: Text) -> np.ndarray:
        if text not in self._known:
            logits = uncached_logits(self._target, [[*self._prompt, *text]])[0, -1]
            self._known[text] = adjusted(logits, self._sampling, [*self._prompt, *text], len(self._prompt)).numpy()
        return self._known[text]

    def pairs(self, q_of: QOf, text: Text, draft: Text) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return p and q at each position of a draft."""
        found = []
        for n in range(len(draft)):
            p, q = self.p(text + draft[:n]), q_of((*self._prompt, *text), draft[:n])
            found.append((p, np.eye(len(p))[q] if isinstance(q, int) else np.asarray(q, dtype=np.float64)))
        return found


_distribution = cache(_Distribution)


def _drafts(q_of: QOf, prefix: Text, asked: int) -> Iterator[tuple[Text, float]]:
    """Yield every draft after a prefix, with its probability."""
    open_drafts: list[tuple[Text, float]] = [((), 1.0)]
    while open_drafts:
        draft, chance = open_drafts.pop()
        q = q_of(prefix, draft) if len(draft) < asked else None
        if q is None:
            yield draft, chance
        elif isinstance(q, int):
            open_drafts.append(((*draft, q), chance))
        else:
            open_drafts += [((*draft, x), chance * float(q[x])) for x in np.flatnonzero(q).tolist()]


def _by_token(distribution: _Distribution, q_of: QOf, text: Text, draft: Text) -> Iterator[Kept]:
    """Yield n, the token that follows, and the probability of both, as in Algorithm 1."""
    reached = 1.0
    for n, (x, (p, q)) in enumerate(zip(draft, distribution.pairs(q_of, text, draft), strict=True)):
        beta = min(1.0, p[x] / q[x])
        residual = np.maximum(p - q, 0)
        if beta < 1:
            residual = residual / residual.sum()
            yield from ((n, t, reached * (1 - beta) * residual[t]) for t in np.flatnonzero(residual).tolist())
        reached *= beta
        if not reached:
            return
        if x in distribution._target.eos_ids:  # nothing that follows is committed
            yield n + 1, x, reached
            return
    p = distribution.p(text + draft)
    yield from ((len(draft), t, reached * p[t]) for t in np.flatnonzero(p).tolist())


def _by_block(distribution: _Distribution, q_of: QOf, text: Text, draft: Text) -> Iterator[Kept]:
    """Yield the same for block verification (arXiv 2403.10444): the last position that passes counts."""
    pairs = distribution.pairs(q_of, text, draft)
    kept, passes, residuals = [1.0], [1.0], []
    for n, (x, (p, q)) in enumerate(zip(draft, pairs, strict=True)):
        residuals.append(np.maximum(kept[n] * p - q, 0))
        if n:
            more = residuals[n].sum()
            # 0 / 0 where p = q and everything so far is kept: the next position passes as well.
            passes.append(more / (more + 1 - kept[n]) if more + 1 - kept[n] > 1e-12 else 1.0)
        kept.append(min(1.0, kept[n] * p[x] / q[x]))
    passes += [kept[-1]] if draft else []
    residuals.append(distribution.p(text + draft))
    later = 1.0
    for n in reversed(range(len(draft) + 1)):
        weights = residuals[n]
        share = later * passes[n]
        later *= 1 - passes[n]
        if share > 0 and weights.sum() > 0:
            yield from ((n, t, share * weights[t] / weights.sum()) for t in np.flatnonzero(weights).tolist())


def _by_rejection(distribution: _Distribution, q_of: QOf, text: Text, draft: Text) -> Iterator[Kept]:
    """Yield the same for rejection sampling: x passes with probability p(x) / (M q(x)), or p is drawn from."""
    reached = 1.0
    for n, (x, (p, q)) in enumerate(zip(draft, distribution.pairs(q_of, text, draft), strict=True)):
        most = max(1.0, max(p[t] / q[t] if q[t] else np.inf for t in np.flatnonzero(p)))
        passes = p[x] / (most * q[x])
        yield from ((n, t, reached * (1 - passes) * p[t]) for t in np.flatnonzero(p).tolist())
        reached *= passes
    p = distribution.p(text + draft)
    yield from ((len(draft), t, reached * p[t]) for t in np.flatnonzero(p).tolist())


OUTCOMES = {"token": _by_token, "block": _by_block, "rejection": _by_rejection}


def _clipped(new: Text, eos_ids: Sequence[int]) -> Text:
    ends = [position for position, token in enumerate(new) if token in eos_ids]
    return new[: ends[0] + 1] if ends else new


def _counted(first: bool, asked: int, drafted: int, accepted: int, committed: int) -> Metrics:
    """Return what a decoder counts for one step."""
    tally = Tally(1)
    outcome = Outcome((drafted,), (accepted,), ((0,) * committed,), (False,))
    tally.add(StepReport(int(not first), (asked,), outcome, ((0,) * drafted,), 0.0, 0.0, 0.0, (0.0,)))
    return tally.metrics


def _add(total: dict[str, Any], metrics: Metrics, weight: float) -> None:
    """Add counts with a weight."""
    for name, value in plain(metrics).items():
        total[name][: len(value)] += weight * value


def plain(metrics: Metrics) -> dict[str, np.ndarray]:
    """Return the counts as arrays; of times, the number of steps of each length."""
    found = {}
    for field in fields(Metrics):
        value = getattr(metrics, field.name)
        if field.name == "times":
            value = tuple(one.steps for one in value)
        found[field.name] = np.array(value if isinstance(value, tuple) else [value], dtype=np.float64)
    return found


def require_equal(got: Mapping[str, Any], expected: Mapping[str, Any], tolerance: float = 1e-6) -> None:
    """Require that all counts are equal."""
    for name in expected:
        np.testing.assert_allclose(got[name], expected[name], rtol=0, atol=tolerance, err_msg=name)


def replayed(
    target: LoadedModel,
    texts: Sequence[RecordedText],
    sampling: SamplingSettings,
    drafter: Any,
    max_gamma: int = 4,
    length: int = LENGTH,
    **options: Any,
) -> DrafterReplay:
    """Return a replay of a drafter on texts."""
    record, part = memory_record(target, texts, sampling, GenerationSettings(max_new_tokens=length))
    return DrafterReplay(record, part, drafter, max_gamma=max_gamma, target=target, **options)


def probabilities(logits: torch.Tensor, sampling: SamplingSettings) -> np.ndarray | int:
    """Return q of logits as a drafter's enumeration needs it: the argmax where it is greedy."""
    if sampling.greedy:
        return int(logits.argmax())
    return adjusted(logits, sampling).numpy()
