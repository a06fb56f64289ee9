"""Checks of a drafter in the core's own decoding loop: the target's distribution, in no more calls."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from specdec_core.border import Drafter, GammaController
from specdec_core.decoding import BatchResult, Decoder
from specdec_core.errors import PluginError
from specdec_core.models import LoadedModel
from specdec_core.settings import GenerationSettings, SamplingSettings
from specdec_core.testing.checking import CheckFailure, check
from specdec_core.testing.instruments.enumeration import continuations, sampled
from specdec_core.testing.instruments.parts import Gamma, Hierarchy
from specdec_core.testing.instruments.statistics import SUSPICIOUS, farthest, p_of_sequences
from specdec_core.testing.instruments.world import PROMPT, World, small_target
from specdec_core.testing.judging.drafter_commits import without_rollback
from specdec_core.testing.judging.drafter_proposals import ROWS, one_row
from specdec_core.testing.subject import DrafterSubject

ARGMAX = SamplingSettings(temperature=0)
PROMPTS = (*ROWS, (2, 4, 0, 2, 4, 0, 2, 4))


@functools.cache
def _exact(world: World, sampling: SamplingSettings, length: int) -> Mapping[tuple[int, ...], float]:
    return continuations(world.target, sampling, PROMPT, length)


def _require_lossless(
    subject: DrafterSubject,
    world: World,
    drafter: Drafter,
    gamma: GammaController,
    sampling: SamplingSettings,
    count: int,
    what: str = "",
) -> None:
    """Decode many short continuations, and compare how often each came with its exact probability."""
    length, batch = 4, subject.batch(250)
    decoder = Decoder(world.target, drafter, gamma=gamma, sampling=sampling, strict=True)
    count = min(count, 600 * batch)  # without batches, there is a call for each continuation
    with _decoding(f"decoded {count} continuations of up to {length} tokens{what} on {world}"):
        seen = sampled(decoder, batch, count, PROMPT, length, subject.seed)
    exact = _exact(world, sampling, length)
    p = p_of_sequences(seen, exact)
    if p >= SUSPICIOUS:
        return
    tokens, times, wanted = farthest(seen, exact)
    raise CheckFailure(
        f"decoded {seen.total()} continuations of up to {length} tokens{what} (temperature "
        f"{sampling.temperature:g}{'' if sampling.top_k is None else f', top-k {sampling.top_k}'}) on {world}",
        f"counts that the target's distribution makes unlikely: p-value {p:.1e}\n{times} continuations begin with "
        f"{list(tokens)}",
        f"about {wanted:.0f} of them; a p-value of {SUSPICIOUS:g} or more",
        "q is not what the draft tokens were drawn from, or tokens that were drawn are withheld because of what "
        "they are.",
    )


@check("lossless", kind="drafter")
def lossless(subject: DrafterSubject) -> None:
    """Decoding at temperature 1 samples the target's own distribution, as enumerated (chi-square)."""
    for world in subject.worlds:
        _require_lossless(subject, world, subject.drafter(world), Gamma(3, 2), SamplingSettings(), 8000)


@check("lossless-top-k", kind="drafter")
def lossless_top_k(subject: DrafterSubject) -> None:
    """Decoding at temperature 0.7 with top-k 3 samples the target's adjusted distribution (chi-square)."""
    settings = SamplingSettings(temperature=0.7, top_k=3)
    for world in subject.worlds:
        _require_lossless(subject, world, subject.drafter(world), Gamma(3, 1), settings, 5000)


@check("lossless-when-stopped", kind="drafter")
def lossless_when_stopped(subject: DrafterSubject) -> None:
    """It does so too where a gamma controller stops drafts at tokens of small q (chi-square)."""
    gamma = Gamma(3, stop_below=0.3)
    what = ", drafts stopped where q is below 0.3,"
    for world in subject.worlds:
        _require_lossless(subject, world, subject.drafter(world), gamma, SamplingSettings(), 5000, what)


@check("same-as-plain", kind="drafter")
def same_as_plain(subject: DrafterSubject) -> None:
    """At argmax it gives the tokens of plain decoding, row by row and in batches."""
    for world in subject.worlds:
        plain = [row.tokens for row in _decode(world, None, [list(prompt) for prompt in PROMPTS]).rows]
        for batch in sorted({1, subject.batch(len(PROMPTS))}):
            for begin in range(0, len(PROMPTS), batch):
                prompts = [list(prompt) for prompt in PROMPTS[begin : begin + batch]]
                drafted = _decode(world, subject.drafter(world), prompts)
                for prompt, row, alone in zip(prompts, drafted.rows, plain[begin:], strict=False):
                    if row.tokens != alone:
                        raise CheckFailure(
                            f"decoded {len(prompts)} row(s) by argmax on {world}, this one from {prompt}",
                            f"the tokens {list(row.tokens)}",
                            f"those of plain decoding: {list(alone)}",
                        )


def _decode(
    world: World, drafter: Drafter | None, prompts: list[list[int]], *, ignore_eos: bool = False, seed: int = 0
) -> BatchResult:
    """Decode by argmax."""
    settings = GenerationSettings(max_new_tokens=24, ignore_eos=ignore_eos, seed=seed)
    gamma = None if drafter is None else Gamma(4, 2)
    decoder = Decoder(world.target, drafter, gamma=gamma, sampling=ARGMAX, strict=True)
    with _decoding(f"decoded {len(prompts)} row(s) by argmax on {world}"):
        return decoder.generate(prompts, settings)


@contextmanager
def _decoding(did: str) -> Iterator[None]:
    """Say what was done where a drafter fails within the loop."""
    try:
        yield
    except PluginError as error:
        raise CheckFailure(did, str(error), "decoding without a failure") from error


@check("no-more-calls", kind="drafter")
def no_more_calls(subject: DrafterSubject) -> None:
    """Decoding with it never takes more target calls than without."""
    for world in subject.worlds:
        for ignore_eos in (False, True):
            prompts = [list(prompt) for prompt in PROMPTS[: subject.batch(len(PROMPTS))]]
            plain = _decode(world, None, prompts, ignore_eos=ignore_eos).metrics.target_calls
            drafted = _decode(world, subject.drafter(world), prompts, ignore_eos=ignore_eos).metrics.target_calls
            if drafted > plain:
                raise CheckFailure(
                    f"decoded {len(prompts)} rows by argmax on {world}",
                    f"{drafted} target calls",
                    f"at most {plain}",
                )


@check("saves-calls", kind="drafter", required=False)
def saves_calls(subject: DrafterSubject) -> None:
    """Decoding some rows one by one by argmax takes fewer target calls with it than without."""
    for world in subject.worlds:
        plain = drafted = 0
        for prompt in PROMPTS:
            plain += _decode(world, None, [list(prompt)], ignore_eos=True).metrics.target_calls
            drafter = subject.drafter(world)
            drafted += _decode(world, drafter, [list(prompt)], ignore_eos=True).metrics.target_calls
        if drafted >= plain:
            raise CheckFailure(
                f"decoded {len(PROMPTS)} rows one by one by argmax on {world}",
                f"{drafted} target calls",
                f"fewer than plain decoding, which takes {plain}",
                "The kit's targets have random weights: what was made for real text may guess nothing here.",
            )


@check("decoded-rows-apart", kind="drafter", unless=one_row)
def decoded_rows_apart(subject: DrafterSubject) -> None:
    """In sampling, a decoded row does not depend on the rows beside it, nor on what was decoded before."""
    settings = GenerationSettings(max_new_tokens=12, seed=subject.seed + 4, ignore_eos=True)
    first = [2, 3, 5, 2, 3]
    for world in subject.worlds:
        decoder = Decoder(world.target, subject.drafter(world), gamma=Gamma(3), strict=True)
        with _decoding(f"decoded {first} on {world}"):
            alone = decoder.generate([first], settings).rows[0].tokens
        for others in ([[2]], [[5, 5, 5, 4, 3, 2, 0, 2, 3], [0, 3]], []):
            others = others[: subject.batch(3) - 1]
            with _decoding(f"decoded {first} beside {others} on {world}"):
                beside = decoder.generate([first, *others], settings).rows[0].tokens
            if beside != alone:
                raise CheckFailure(
                    f"decoded {first} beside {others} on {world}, from the same seed",
                    f"the tokens {list(beside)}",
                    f"those that it gave alone: {list(alone)}",
                )


@check("within-a-hierarchy", kind="drafter", required=False, unless=without_rollback)
def within_a_hierarchy(subject: DrafterSubject) -> None:
    """It may guess for a model that itself drafts: the target's distribution still, in sampling and at argmax."""
    for world in subject.worlds:
        drafter = Hierarchy(_middle(world.encoder_decoder, subject.device), subject.drafter(world), Gamma(2))
        if world is subject.world:
            what = ", drafting for a model that drafts,"
            _require_lossless(subject, world, drafter, Gamma(3, 2), SamplingSettings(), 2000, what)
        prompts = [list(prompt) for prompt in PROMPTS[: subject.batch(len(PROMPTS))]]
        got = [row.tokens for row in _decode(world, drafter, prompts).rows]
        wanted = [row.tokens for row in _decode(world, None, prompts).rows]
        if got != wanted:
            did = f"decoded by argmax, drafting for a model that drafts, on {world}"
            raise CheckFailure(did, f"the tokens {got}", f"those of plain decoding: {wanted}")


@functools.cache
def _middle(encoder_decoder: bool, device: str) -> LoadedModel:
    return small_target(device, encoder_decoder=encoder_decoder, seed=5)
