"""Figures of speculative decoding that engines report: per request in answers, or as counters of the server."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any

from specdec_core.decoding.counts import Metrics, RequestMetrics, by_position

ASKED: Mapping[str, Mapping[str, Any]] = {
    "vllm": {"return_token_ids": True},
    "sglang": {"return_meta_info": True},
    "llamacpp": {},
}
"""Fields of a request by engine, as it names itself as the owner of its models; any other gets OpenAI's alone."""

OPENAI = ("temperature", "top_p", "presence_penalty", "frequency_penalty", "logit_bias")
"""Settings of OpenAI's API, under its names."""
_SAME = {name: name for name in ("top_k", "min_p", "repetition_penalty", "ignore_eos")}
SETTINGS: Mapping[str, Mapping[str, str]] = {
    "vllm": {**_SAME, "bad_words": "bad_words", "min_new_tokens": "min_tokens"},
    "sglang": {**_SAME, "min_new_tokens": "min_tokens"},
    "llamacpp": {**_SAME, "repetition_penalty": "repeat_penalty"},
}
"""How each engine calls the settings that OpenAI's API lacks."""

_COUNTER = re.compile(r"^vllm:spec_decode_(\w+?)_total(?:\{([^}]*)\})?\s+([0-9.eE+]+)$", re.MULTILINE)
_POSITION = re.compile(r'position="(\d+)"')


@dataclass(frozen=True)
class Answer:
    """The answer of an engine to one prompt.

    Attributes:
        text: The new text.
        tokens: Number of its tokens.
        token_ids: The tokens, if the engine tells them.
        request: Counts of each step; None if the engine does not tell them.
        drafted: Draft tokens; None if the engine does not tell them.
        accepted: Accepted draft tokens; None likewise.
        seconds: Seconds from sending the request to the whole answer.
        reply: The text without the reasoning that the server parsed, as later turns of a conversation show it.
        finish_reason: Why it ended, in the engine's words; None if it does not tell.
    """

    text: str
    tokens: int
    token_ids: tuple[int, ...]
    request: RequestMetrics | None
    drafted: int | None
    accepted: int | None
    seconds: float
    reply: str
    finish_reason: str | None = None


def read_answer(plain: Mapping[str, Any], seconds: float) -> Answer:
    """Return an answer of a chat or a completion.

    Args:
        plain: The answer as JSON: vLLM's has `metrics.speculative_decoding`, SGLang's `choices.0.meta_info`,
            llama.cpp's `timings`.
        seconds: Seconds that it took.
    """
    choice = plain["choices"][0]
    message = choice.get("message")
    reply = (choice if message is None else message).get("text" if message is None else "content") or ""
    text = reply if message is None else _thoughts(message) + reply
    tokens = int((plain.get("usage") or {}).get("completion_tokens") or 0)
    drafted, accepted, steps = _drafts(plain, choice)
    request = None
    if steps is not None:
        request = RequestMetrics(
            max((length for length, _ in steps), default=0),
            _passes(tokens, accepted or 0, len(steps), 1),
            tuple(length for length, _ in steps),
            tuple(kept for _, kept in steps),
            sum(kept < length for length, kept in steps),
        )
    ids = tuple(choice.get("token_ids") or ())
    ended = choice.get("finish_reason")
    return Answer(text, tokens, ids, request, drafted, accepted, seconds, reply, ended)


OUTGROWN = Answer("", 0, (), RequestMetrics(0, 0, rejected=0), 0, 0, 0.0, "", "context")
"""The answer to a turn with which its conversation no longer fits into the engine's context."""


def _passes(tokens: int, accepted: int, drafts: int, requests: int) -> int:
    """Return the forward passes of some requests, each of which reads its prompt in a pass without a draft.

    Engines count accepted draft tokens that `max_tokens` or a stop cut off, so that the tokens that were not
    accepted may be fewer.
    """
    return max(tokens - accepted, drafts + requests)


def _thoughts(message: Mapping[str, Any]) -> str:
    """Return the reasoning that a server has parsed and cut off."""
    return str(message.get("reasoning_content") or message.get("reasoning") or "")


def _drafts(
    plain: Mapping[str, Any], choice: Mapping[str, Any]
) -> tuple[int | None, int | None, list[tuple[int, int]] | None]:
    """Return draft tokens, accepted ones, and both of each step, without order; None for what is not told."""
    vllm = (plain.get("metrics") or {}).get("speculative_decoding")
    if vllm:
        steps = _vllm_steps(vllm)
        return vllm["num_draft_tokens"], vllm["num_accepted_draft_tokens"], steps
    sglang = choice.get("meta_info") or plain.get("meta_info") or {}
    if sglang.get("spec_verify_ct"):
        drafted = sglang.get("spec_num_proposed_drafts", sglang.get("spec_draft_token_num"))
        accepted = sglang.get("spec_num_correct_drafts", sglang.get("spec_accept_token_num"))
        counts = sglang.get("spec_correct_drafts_histogram") or sglang.get("spec_accept_histogram")
        return drafted, accepted, _uniform(counts, drafted)
    timings = plain.get("timings") or {}
    return timings.get("draft_n"), timings.get("draft_n_accepted"), None


def _vllm_steps(figures: Mapping[str, Any]) -> list[tuple[int, int]] | None:
    if figures.get("per_step_drafted") is not None:  # null where they were not asked for, or nothing was drafted
        return list(zip(figures["per_step_drafted"], figures["per_step_accepted"], strict=True))
    by_length = figures.get("acceptance_histogram_by_draft_length")
    if by_length is None:
        return _uniform(figures.get("acceptance_histogram"), figures["num_draft_tokens"])
    return [
        (int(length), kept)
        for length, counts in by_length.items()
        for kept in chain.from_iterable(repeat(n, count) for n, count in enumerate(counts))
    ]


def _uniform(counts: Sequence[int] | None, drafted: int | None) -> list[tuple[int, int]] | None:
    """Return the drafts of a histogram of accepted tokens; None unless all drafts may have one length."""
    steps = sum(counts or ())
    if drafted == 0:
        return []
    if (
        not counts
        or drafted is None
        or not steps
        or drafted % steps
        or drafted // steps < max((kept for kept, count in enumerate(counts) if count), default=0)
    ):
        return None
    return [(drafted // steps, kept) for kept, count in enumerate(counts) for _ in range(count)]


def total(answers: Sequence[Answer], seconds: float, concurrency: int) -> Metrics:
    """Return the counts of all answers, as far as the engine tells them.

    Tokens are steps and accepted draft tokens together, so that one follows from the other two. Draft tokens count
    where the drafts cut short are known, too: without these, an acceptance rate would be of another kind.

    Args:
        answers: The answers.
        seconds: Wall time.
        concurrency: Number of requests at a time. With several, a forward pass has rows of several requests.
    """
    metrics = Metrics(tokens=sum(one.tokens for one in answers), seconds=seconds)
    if not answers or any(one.accepted is None for one in answers):
        return metrics
    row_steps = sum(
        one.request.steps if one.request is not None else max(1, one.tokens - (one.accepted or 0))
        for one in answers
    )
    calls = row_steps if concurrency == 1 else 0
    known = [one.request for one in answers if one.request is not None]
    if len(known) < len(answers):
        return Metrics(metrics.tokens, calls, row_steps, seconds=seconds)
    drafted = [length for one in known for length in one.per_step_drafted]
    accepted = [kept for one in known for kept in one.per_step_accepted]
    verified = [min(length, kept + 1) for length, kept in zip(drafted, accepted, strict=True)]
    return Metrics(
        tokens=metrics.tokens,
        target_calls=calls,
        row_steps=row_steps,
        drafted=sum(drafted),
        accepted=sum(accepted),
        rejected=sum(one.rejected or 0 for one in known),
        asked_at=by_position(Counter(drafted)),
        verified_at=by_position(Counter(verified)),
        accepted_at=by_position(Counter(accepted)),
        seconds=seconds,
    )


def read_counters(text: str) -> dict[str, float]:
    """Return vLLM's counters of drafts in the text of `/metrics`; those by position as `per_pos.0`, ..."""
    found: dict[str, float] = {}
    for name, labels, value in _COUNTER.findall(text):
        position = _POSITION.search(labels or "")
        key = name if position is None else f"per_pos.{position[1]}"
        found[key] = found.get(key, 0.0) + float(value)
    return found


def counted(
    metrics: Metrics, before: Mapping[str, float], after: Mapping[str, float], requests: int, concurrency: int
) -> Metrics:
    """Return metrics with the drafts that a server has counted meanwhile.

    Args:
        metrics: Tokens and seconds.
        before: The counters before.
        after: The counters now.
        requests: Number of requests meanwhile.
        concurrency: As for `total`.
    """
    new = {key: round(value - before.get(key, 0.0)) for key, value in after.items()}
    drafts, accepted = new["num_drafts"], new["num_accepted_tokens"]
    at = [new[key] for key in sorted(new, key=lambda key: (len(key), key)) if key.startswith("per_pos.")]
    row_steps = _passes(metrics.tokens, accepted, drafts, requests)
    reached = (drafts, *at)[: len(at)]
    return Metrics(
        tokens=metrics.tokens,
        target_calls=row_steps if concurrency == 1 else 0,
        row_steps=row_steps,
        drafted=new["num_draft_tokens"],
        accepted=accepted,
        # A draft that is accepted to its end is not cut short; all are taken to be as long as the longest.
        rejected=drafts - (at[-1] if at else 0),
        verified_at=tuple(reached),
        accepted_at=tuple(at),
        seconds=metrics.seconds,
    )
