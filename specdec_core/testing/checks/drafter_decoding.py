"""Checks of a drafter in the core's own decoding loop: the target's distribution, in no more target calls."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from specdec_core.decoding import BatchResult, Decoder
from specdec_core.interface import Drafter, GammaController
from specdec_core.interface.errors import PluginError
from specdec_core.interface.settings import GenerationSettings, SamplingSettings
from specdec_core.interface.tree import TreeShape
from specdec_core.models import LoadedModel
from specdec_core.testing.causes import what_failed
from specdec_core.testing.checks.drafter_proposals import ROWS, no_trees
from specdec_core.testing.harness.draft_settings import TREE
from specdec_core.testing.harness.enumeration import continuations, require_distribution
from specdec_core.testing.harness.tiny_target import PROMPT, TinyTarget, tiny_loaded_model
from specdec_core.testing.harness.toys import Gamma, Hierarchy
from specdec_core.testing.registration import CheckFailure, check
from specdec_core.testing.subject import DrafterSubject

GREEDY = SamplingSettings(temperature=0)
PROMPTS = (*ROWS, (2, 4, 0, 2, 4, 0, 2, 4))
LENGTH = 4
"""Length of the continuations that are enumerated."""


@functools.cache
def _exact(target: TinyTarget, sampling: SamplingSettings) -> Mapping[tuple[int, ...], float]:
    return continuations(target.loaded, sampling, PROMPT, LENGTH)


def _require_lossless(
    subject: DrafterSubject,
    target: TinyTarget,
    drafter: Drafter,
    gamma: GammaController,
    sampling: SamplingSettings,
    count: int,
    how: str = "",
) -> None:
    """Decode `count` short continuations or more, and compare their counts with their exact probabilities."""
    batch = 500
    count = min(count, 150 * batch)  # one call per continuation is slow where batches are not supported
    least, most = subject.samples(count, 8 * count, batch, seconds=4.0)
    top_k = "" if sampling.top_k is None else f", top-k {sampling.top_k}"
    require_distribution(
        Decoder(target.loaded, drafter, gamma=gamma, sampling=sampling, strict=True),
        _exact(target, sampling),
        f"at temperature {sampling.temperature:g}{top_k}{how} on {target}",
        batch=min(batch, least),
        min_count=least,
        max_count=most,
        seed=subject.seed,
        hint="q is not what the draft tokens were sampled from, or tokens are withheld because of what they are.",
    )


@check("lossless", kind="drafter")
def lossless(subject: DrafterSubject) -> None:
    """Sampled output has the target's exact distribution (chi-square).

    Decoding at temperature 1 samples the target's exact distribution (chi-square).
    """
    for target in subject.targets:
        _require_lossless(subject, target, subject.drafter(target), Gamma(3, 2), SamplingSettings(), 2000)


@check("lossless-top-k", kind="drafter", slow=True)
def lossless_top_k(subject: DrafterSubject) -> None:
    """Output is exact at temperature 0.7 with top-k 3.

    Decoding at temperature 0.7 with top-k 3 samples the target's exact distribution (chi-square).
    """
    settings = SamplingSettings(temperature=0.7, top_k=3)
    for target in subject.targets:
        _require_lossless(subject, target, subject.drafter(target), Gamma(3, 1), settings, 1250)


@check("lossless-early-stop", kind="drafter", slow=True)
def lossless_early_stop(subject: DrafterSubject) -> None:
    """Output is exact if a controller stops drafts.

    Decoding stays lossless when a gamma controller stops drafts at tokens with small q (chi-square).
    """
    for target in subject.targets:
        gamma = Gamma(3, stop_below=0.3)
        drafter = subject.drafter(target)
        if not _asks(target, drafter, gamma):
            continue  # it draws no tokens through the request, so nothing can stop it: as in `lossless`
        how = ", with drafts that stop where q is below 0.3,"
        _require_lossless(subject, target, drafter, gamma, SamplingSettings(), 1250, how)


def _asks(target: TinyTarget, drafter: Drafter, gamma: Gamma) -> bool:
    """Whether the controller is asked while some sequences are decoded."""
    gamma.asked = 0
    decoder = Decoder(target.loaded, drafter, gamma=gamma, strict=True)
    with _decoding(f"decoded 4 sequences with drafts that stop early on {target}"):
        for seed, prompt in enumerate(PROMPTS[:4]):
            decoder.generate([list(prompt)], GenerationSettings(max_new_tokens=12, seed=seed, ignore_eos=True))
    return gamma.asked > 0


@check("lossless-trees", kind="drafter", skip_if=no_trees, slow=True)
def lossless_trees(subject: DrafterSubject) -> None:
    """Output is exact with trees, sampled and greedy."""
    prompts = PROMPTS[: subject.rows(len(PROMPTS))]
    for target in subject.targets:
        drafter, gamma = subject.drafter(target), Gamma(4, 2, tree=TREE)
        _require_lossless(subject, target, drafter, gamma, SamplingSettings(), 1000, ", in trees,")
        expected = _baseline(target, prompts, _tokens(subject), ignore_eos=True)
        _require_baseline(target, prompts, _greedy(subject, target, prompts, TREE, ignore_eos=True), expected)


@check("greedy-equals-baseline", kind="drafter")
def greedy_equals_baseline(subject: DrafterSubject) -> None:
    """Greedy output equals the autoregressive baseline's.

    Greedy decoding gives the tokens of the autoregressive baseline, one by one and in batches.
    """
    together = PROMPTS[: subject.rows(len(PROMPTS))]
    for target in subject.targets:
        for prompts, ignore_eos in (*(((one,), True) for one in together), (together, True), (together, False)):
            got = _greedy(subject, target, prompts, ignore_eos=ignore_eos)
            expected = _baseline(target, prompts, _tokens(subject), ignore_eos=ignore_eos)
            _require_baseline(target, prompts, got, expected)


def _require_baseline(
    target: TinyTarget, prompts: Sequence[Sequence[int]], got: BatchResult, expected: BatchResult
) -> None:
    for prompt, own, baseline in zip(prompts, got.sequences, expected.sequences, strict=True):
        if own.tokens != baseline.tokens:
            raise CheckFailure(
                f"decoded {len(prompts)} sequence(s) greedily on {target}, this one from {list(prompt)}",
                f"the tokens {list(own.tokens)}",
                f"the baseline's tokens {list(baseline.tokens)}",
            )


@check("no-extra-target-calls", kind="drafter")
def no_extra_target_calls(subject: DrafterSubject) -> None:
    """It never takes more target calls than the baseline."""
    prompts = PROMPTS[: subject.rows(len(PROMPTS))]
    for target in subject.targets:
        for ignore_eos in (False, True):
            limit = _baseline(target, prompts, _tokens(subject), ignore_eos=ignore_eos).metrics.target_calls
            calls = _greedy(subject, target, prompts, ignore_eos=ignore_eos).metrics.target_calls
            if calls > limit:
                did = f"decoded {len(prompts)} sequences greedily on {target}"
                raise CheckFailure(did, f"{calls} target calls", f"at most {limit}, as many as the baseline")


@check("saves-target-calls", kind="drafter", required=False, purpose="to know that drafting pays")
def saves_target_calls(subject: DrafterSubject) -> None:
    """It takes fewer target calls than the baseline."""
    for target in subject.targets:
        single = [(one,) for one in PROMPTS]
        limit = sum(
            _baseline(target, one, _tokens(subject), ignore_eos=True).metrics.target_calls for one in single
        )
        calls = sum(_greedy(subject, target, one, ignore_eos=True).metrics.target_calls for one in single)
        if calls >= limit:
            raise CheckFailure(
                f"decoded {len(PROMPTS)} prompts one by one, greedily, on {target}",
                f"{calls} target calls",
                f"fewer than the baseline's {limit}",
                "The kit's targets have random weights. A drafter for real text may find nothing to draft.",
            )


def _greedy(
    subject: DrafterSubject,
    target: TinyTarget,
    prompts: Sequence[Sequence[int]],
    tree: TreeShape | None = None,
    *,
    ignore_eos: bool = False,
) -> BatchResult:
    """Decode greedily with the drafter; checks share the result."""

    def decode() -> BatchResult:
        with _decoding(f"decoded {len(prompts)} sequence(s) greedily on {target}"):
            plugins: dict[str, Any] = {"drafter": subject.drafter(target), "gamma": Gamma(4, 2, tree=tree)}
            return _decode(target, prompts, ignore_eos, _tokens(subject), **plugins)

    return subject.once(("greedy", target, tuple(prompts), tree, ignore_eos), decode)


def _tokens(subject: DrafterSubject) -> int:
    """Return the number of tokens decoded greedily."""
    return subject.times(24, 8, "tokens of each text")


@functools.cache
def _baseline(
    target: TinyTarget, prompts: tuple[tuple[int, ...], ...], tokens: int, *, ignore_eos: bool = False
) -> BatchResult:
    return _decode(target, prompts, ignore_eos, tokens)


def _decode(
    target: TinyTarget,
    prompts: Sequence[Sequence[int]],
    ignore_eos: bool = False,
    tokens: int = 24,
    **plugins: Any,
) -> BatchResult:
    settings = GenerationSettings(max_new_tokens=tokens, ignore_eos=ignore_eos)
    decoder = Decoder(target.loaded, sampling=GREEDY, strict=True, **plugins)
    return decoder.generate([list(prompt) for prompt in prompts], settings)


@contextmanager
def _decoding(did: str) -> Iterator[None]:
    """Report what was done when a drafter fails in the loop."""
    try:
        yield
    except PluginError as error:
        raise CheckFailure(did, what_failed(error), "decoding without a failure") from error


@check("decoded-rows-independent", kind="drafter")
def decoded_rows_independent(subject: DrafterSubject) -> None:
    """A sampled sequence does not depend on its batch.

    A sampled sequence depends neither on the others in its batch nor, but for memory, on earlier ones.
    """
    length = subject.times(12, 6, "tokens of each text")
    settings = GenerationSettings(max_new_tokens=length, seed=subject.seed + 4, ignore_eos=True)
    first = list(PROMPT)
    for target in subject.targets:
        drafter = subject.drafter(target)
        decoder = Decoder(target.loaded, drafter, gamma=Gamma(3), strict=True)
        if drafter.remembers:
            drafter.reset()
        with _decoding(f"decoded {first} on {target}"):
            alone = decoder.generate([first], settings).sequences[0].tokens
        for others in ([[2]], [[5, 5, 5, 4, 3, 2, 0, 2, 3], [0, 3]], []):
            others = others[: 3 - 1]
            did = f"decoded {first} in a batch with {others} on {target}"
            if drafter.remembers:
                drafter.reset()
            with _decoding(did):
                batched = decoder.generate([first, *others], settings).sequences[0].tokens
            if batched != alone:
                got, expected = f"the tokens {list(batched)}", f"the tokens without the others: {list(alone)}"
                raise CheckFailure(f"{did}, with the same seed", got, expected)


@check(
    "inside-hierarchy",
    kind="drafter",
    required=False,
    purpose="for use in `hierarchical`",
    slow=True,
)
def inside_hierarchy(subject: DrafterSubject) -> None:
    """It can draft for a model that itself drafts.

    It can draft for a model that itself drafts: decoding stays lossless, sampled and greedy.
    """
    for target in subject.targets:
        middle = _middle_model(target.encoder_decoder, subject.device)
        drafter = Hierarchy(middle, subject.drafter(target), Gamma(2))
        if target is subject.target:
            how = ", as the drafter of a model that drafts,"
            _require_lossless(subject, target, drafter, Gamma(3, 2), SamplingSettings(), 500, how)
        prompts = PROMPTS[: subject.rows(len(PROMPTS))]
        did = f"decoded greedily, as the drafter of a model that drafts, on {target}"
        with _decoding(did):
            plugins: dict[str, Any] = {"drafter": drafter, "gamma": Gamma(4, 2)}
            decoded = _decode(target, prompts, tokens=_tokens(subject), **plugins)
        got = [row.tokens for row in decoded.sequences]
        expected = [row.tokens for row in _baseline(target, prompts, _tokens(subject)).sequences]
        if got != expected:
            raise CheckFailure(did, f"the tokens {got}", f"the baseline's tokens {expected}")


@functools.cache
def _middle_model(encoder_decoder: bool, device: str) -> LoadedModel:
    return tiny_loaded_model(device, encoder_decoder=encoder_decoder, seed=5)
