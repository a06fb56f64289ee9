"""A run whose prompts a running server decodes: vLLM, SGLang, llama.cpp or `transformers serve`.

Engines report figures of speculative decoding per request, in answers, or as counters of the server.
"""

import os
import re
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from specdec_core.decoding.counts import Metrics, RequestMetrics, by_position
from specdec_core.interface.errors import SpecdecError
from specdec_core.models.chat_template import Message
from specdec_core.study.config.prompt_file import PromptText, conversations
from specdec_core.study.config.schema import EngineConfig
from specdec_core.study.run.finished_repeats import Output, Repeat, outgrown
from specdec_core.study.run.prepared import RunJob

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

_COUNTER = re.compile(
    r"^vllm:(?:spec_decode_)?(\w+?)_(?:total|seconds_count)(?:\{([^}]*)\})?\s+([0-9.eE+]+)$", re.MULTILINE
)
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
    thoughts = "" if message is None else message.get("reasoning_content") or message.get("reasoning") or ""
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
    return Answer(f"{thoughts}{reply}", tokens, ids, request, drafted, accepted, seconds, reply, ended)


OUTGROWN = Answer("", 0, (), RequestMetrics(0, 0, rejected=0), 0, 0, 0.0, "", "context")
"""The answer to a turn with which its conversation no longer fits into the engine's context."""


def _passes(tokens: int, accepted: int, drafts: int, requests: int) -> int:
    """Return the forward passes of some requests, each of which reads its prompt in a pass without a draft.

    Engines count accepted draft tokens that `max_tokens` or a stop cut off, so that the tokens that were not
    accepted may be fewer.
    """
    return max(tokens - accepted, drafts + requests)


def _drafts(
    plain: Mapping[str, Any], choice: Mapping[str, Any]
) -> tuple[int | None, int | None, list[tuple[int, int]] | None]:
    """Return draft tokens, accepted ones, and both of each step, without order; None for what is not told."""
    vllm = (plain.get("metrics") or {}).get("speculative_decoding")
    if vllm:
        steps = _uniform(vllm.get("acceptance_histogram"), vllm["num_draft_tokens"])
        if vllm.get("per_step_drafted") is not None:  # null where not asked for, or nothing was drafted
            steps = list(zip(vllm["per_step_drafted"], vllm["per_step_accepted"], strict=True))
        return vllm["num_draft_tokens"], vllm["num_accepted_draft_tokens"], steps
    sglang = choice.get("meta_info") or plain.get("meta_info") or {}
    if sglang.get("spec_verify_ct"):
        drafted = sglang.get("spec_num_proposed_drafts", sglang.get("spec_draft_token_num"))
        accepted = sglang.get("spec_num_correct_drafts", sglang.get("spec_accept_token_num"))
        counts = sglang.get("spec_correct_drafts_histogram") or sglang.get("spec_accept_histogram")
        return drafted, accepted, _uniform(counts, drafted)
    timings = plain.get("timings") or {}
    return timings.get("draft_n"), timings.get("draft_n_accepted"), None


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
    metrics = _with_steps(metrics, row_steps, concurrency)
    known = [one.request for one in answers if one.request is not None]
    if len(known) < len(answers):
        return metrics
    drafted = [length for one in known for length in one.per_step_drafted]
    accepted = [kept for one in known for kept in one.per_step_accepted]
    verified = [min(length, kept + 1) for length, kept in zip(drafted, accepted, strict=True)]
    return replace(
        metrics,
        drafted=sum(drafted),
        accepted=sum(accepted),
        rejected=sum(one.rejected or 0 for one in known),
        asked_at=by_position(Counter(drafted)),
        verified_at=by_position(Counter(verified)),
        accepted_at=by_position(Counter(accepted)),
    )


def _with_steps(metrics: Metrics, row_steps: int, concurrency: int) -> Metrics:
    """Return metrics with the steps of rows; of one request at a time, each is a forward pass."""
    return replace(metrics, row_steps=row_steps, target_calls=row_steps if concurrency == 1 else 0)


def read_counters(text: str) -> dict[str, float]:
    """Return vLLM's counters in the text of `/metrics`; those of drafts by position as `per_pos.0`, ..."""
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
    return replace(
        _with_steps(metrics, _passes(metrics.tokens, accepted, drafts, requests), concurrency),
        drafted=new["num_draft_tokens"],
        accepted=accepted,
        # A draft that is accepted to its end is not cut short; all are taken to be as long as the longest.
        rejected=drafts - (at[-1] if at else 0),
        verified_at=(drafts, *at)[: len(at)],
        accepted_at=tuple(at),
    )


def with_passes(
    metrics: Metrics, before: Mapping[str, float], after: Mapping[str, float], requests: int, concurrency: int
) -> Metrics:
    """Return metrics with the forward passes that vLLM has counted, if it decoded nothing else meanwhile.

    Every pass that gives a request tokens has an entry in one of two histograms: the first in that of the time to
    the first token, the others in that of the latency between tokens. Arguments are those of `counted`.
    """
    first, later = (
        round(after.get(name, 0) - before.get(name, 0)) for name in ("time_to_first_token", "inter_token_latency")
    )
    if not metrics.row_steps or first != requests:
        return metrics
    return _with_steps(metrics, first + later, concurrency)


INSTALL = "pip install 'specdec-core[engines]'"
_WARM_UP_TOKENS = 8
_COUNTERS_SECONDS = 5.0
"""How long a server may take to tell its counters."""
_AT = " at "
"""Separates the engine from its address where a repeat names its device."""
_MAX_SEED = 2**31
"""Seeds of all engines are below this number; llama.cpp reads 32 bits."""


class EngineError(SpecdecError):
    """A server cannot be reached, does not answer in time, or rejects a request; the message says which."""


class EngineRun:
    """A run on a server, which has answered a short request.

    Args:
        config: The server.
        job: What to decode, and how; its prompts are not those that the target here has encoded.
        prompts: The prompts as read, in the order of the job's batches: texts are completed, chats are rendered by
            the server's own template.

    Raises:
        EngineError: The package openai is missing, the server does not answer, or it cannot do what is asked.
    """

    def __init__(self, config: EngineConfig, job: RunJob, prompts: Sequence[PromptText]) -> None:
        try:
            import openai
        except ImportError as error:
            raise EngineError(
                f"`engine` needs the package openai, which cannot be imported: {INSTALL}."
            ) from error
        self._openai = openai
        self._config, self._job, self._prompts = config, job, prompts
        self._talks = conversations(prompts)
        self._seeds = [seed % _MAX_SEED for batch in job.batches for talk in batch.seeds for seed in talk]
        self._answered = 0
        self._client = openai.OpenAI(
            base_url=config.url,
            api_key=os.environ.get("OPENAI_API_KEY") or "none",
            timeout=config.timeout,
            max_retries=config.max_retries,
        )
        self._kind = self._recognized()
        self._fields = self._request_fields()
        with self._errors("warming up"):
            most = max(_WARM_UP_TOKENS, job.generation.min_new_tokens)
            self._ask(0, prompts[0].messages, min(most, job.generation.max_new_tokens))

    def measure(self, number: int, advance: Callable[[float], None]) -> Repeat:
        """Send all prompts once, as many at a time as the study says.

        Args:
            number: Number of the repeat, from 1.
            advance: Called with the share that is done, when an answer arrives.

        Raises:
            EngineError: The server goes away, is too slow, or rejects a prompt.
        """
        limit, concurrency = self._job.generation.max_new_tokens, self._config.concurrency
        before, begun = self._counters(), perf_counter()
        with self._errors(f"repeat {number}"):
            answers = list(self._all(limit, advance))
        outputs = tuple(map(_output, answers))
        answered = [one for one in answers if one is not OUTGROWN]
        metrics = total(answered, perf_counter() - begun, concurrency)
        after, notes = self._counters(), []
        if not metrics.row_steps and after.get("num_drafts", 0) > before.get("num_drafts", 0):
            metrics = counted(metrics, before, after, len(answered), concurrency)
            notes.append(
                "drafts are those that the server has counted meanwhile, of whatever it decoded; "
                "`--per-request-spec-decode-metrics summary` of vLLM tells those of each request."
            )
        metrics = with_passes(metrics, before, after, len(answered), concurrency)
        return Repeat(
            *(self._job.task, self._job.run.name, number, metrics, ()),
            outputs=outputs,
            request_seconds=tuple(one.seconds for one in answers),
            device=f"{self._name}{_AT}{self._config.host}",
            notes=(*notes, *self._notes(answers), *outgrown(sum(one.outgrown for one in outputs))),
        )

    def check_continues(self, repeats: Iterable[Repeat]) -> None:
        """Check that finished repeats are of this engine, which may have another address now.

        Raises:
            EngineError: They are of another one.
        """
        for before in {str(one.device).partition(_AT)[0] for one in repeats} - {self._name}:
            raise EngineError(
                f"{self._config.url}: this server is {self._name}, and finished repeats of this run are of "
                f"{before}. Start that one again, or choose another --output."
            )

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    @property
    def _name(self) -> str:
        return self._kind or "server"

    def _all(self, limit: int, advance: Callable[[float], None]) -> Iterator[Answer]:
        """Yield the answers in the order of the prompts."""
        self._answered = 0
        pool = ThreadPoolExecutor(self._config.concurrency)
        try:
            jobs = [pool.submit(self._converse, talk, limit) for talk in self._talks]
            for job in as_completed(jobs):
                self._answered += len(job.result())
                advance(self._answered / len(self._prompts))
            for job in jobs:
                yield from job.result()
        except BaseException:
            self._client.close()  # ends the requests that are on their way
            raise
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _converse(self, talk: Sequence[int], limit: int) -> list[Answer]:
        """Return the answers to the turns of a conversation, each of which follows those before it."""
        answers: list[Answer] = []
        history: tuple[Message, ...] = ()
        for index in talk:
            said = self._prompts[index].messages
            if said is not None:
                history += said
            try:
                answers.append(self._ask(index, None if said is None else history, limit))
            except self._openai.BadRequestError as error:
                if not answers or "context" not in error.message.lower():
                    raise
                return [*answers, *[OUTGROWN] * (len(talk) - len(answers))]
            history += ({"role": "assistant", "content": answers[-1].reply},)
        return answers

    def _ask(self, index: int, messages: Sequence[Message] | None, limit: int) -> Answer:
        given = {**self._fields, "model": self._config.model, "max_tokens": limit, "seed": self._seeds[index]}
        begun = perf_counter()
        if messages is not None:
            asked: Any = self._client.chat.completions.create(messages=list(messages), **given)
        else:
            prompt = self._prompts[index]
            text = prompt.text if prompt.tokens is None else list(prompt.tokens)
            asked = self._client.completions.create(prompt=text, **given)
        seconds = perf_counter() - begun
        try:
            return read_answer(asked.model_dump(), seconds)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise EngineError(f"{self._config.url}: this is not an answer of OpenAI's API: {error!r}.") from error

    def _recognized(self) -> str | None:
        """Return the engine that the server names as the owner of its models; None if it is another."""
        with self._errors("asking for its models"):
            try:
                owners = {one.owned_by for one in self._client.models.list()}
            except self._openai.APIStatusError:  # it may serve a model and list none
                return None
        return next((name for name in owners if name in ASKED), None)

    def _request_fields(self) -> dict[str, Any]:
        """Return the fields of every request: the settings that are not the server's defaults."""
        sampling, generation = self._job.sampling, self._job.generation
        given = sampling.model_dump(exclude_defaults=True)
        given |= generation.model_dump(include={"ignore_eos", "min_new_tokens"}, exclude_defaults=True)
        own = {name: value for name, value in given.items() if name not in OPENAI}
        names = SETTINGS.get(self._kind or "", {})
        if unknown := [name for name in own if name not in names]:
            raise EngineError(
                f"{self._config.url}: this server ({self._kind or 'of unknown kind'}) and OpenAI's API have no "
                f"{', '.join(map(repr, unknown))}. Remove the setting from the study."
            )
        if not all(isinstance(word, str) for word in sampling.bad_words):
            raise EngineError(f"{self._config.url}: a server takes bad words as texts, not as token ids.")
        if self._kind is None and any(prompt.tokens is not None for prompt in self._prompts):
            raise EngineError(f"{self._config.url}: this server takes texts, and the prompts are token ids.")
        fields: dict[str, Any] = {"temperature": sampling.temperature}
        fields |= {name: value for name, value in given.items() if name in OPENAI}
        if generation.stop:
            fields["stop"] = list(generation.stop)
        more = {**ASKED.get(self._kind or "", {}), **{names[name]: value for name, value in own.items()}}
        if self._kind == "vllm" and generation.stop:
            more["include_stop_str_in_output"] = True
        return {**fields, "extra_body": {**more, **self._config.extra_body}}

    def _notes(self, answers: Sequence[Answer]) -> Iterator[str]:
        if self._job.generation.stop and self._kind != "vllm":
            yield "this server leaves stop strings out of its texts, which differ from those of other runs there."
        if self._kind is None and not self._job.sampling.greedy:
            yield "this server may apply settings that the study does not state, such as a top_k of its model."
        told = [(one.drafted, one.accepted) for one in answers if one.request is None and one.drafted]
        if told:
            drafted, accepted = (sum(value or 0 for value in column) for column in zip(*told, strict=True))
            yield (
                f"the server accepted {accepted} of {drafted} draft tokens; it does not tell those of each step, "
                "so that an acceptance rate up to the first rejection is not known."
            )

    def _counters(self) -> Mapping[str, float]:
        """Return the counters of drafts of the server; none if it has none."""
        parts = urlsplit(self._config.url)
        try:
            address = urlunsplit((parts.scheme, parts.netloc, "/metrics", "", ""))
            with urllib.request.urlopen(address, timeout=_COUNTERS_SECONDS) as answer:
                return read_counters(answer.read().decode(errors="replace"))
        except (OSError, ValueError):
            return {}

    @contextmanager
    def _errors(self, doing: str) -> Iterator[None]:
        """Name the server, and how far it got, where the client gives up."""
        openai = self._openai
        try:
            yield
        except openai.APITimeoutError as error:
            reason = f"no answer within {self._config.timeout:g} s; raise `timeout`, or lower `concurrency`"
            raise self._error(doing, reason) from error
        except openai.APIConnectionError as error:
            reason = f"it cannot be reached: {error.__cause__ or error}"
            raise self._error(doing, f"{reason}. Start it, and run the same command again") from error
        except openai.APIStatusError as error:
            raise self._error(doing, f"it answered {error.status_code}: {error.message}") from error
        except openai.OpenAIError as error:
            raise self._error(doing, f"{error}") from error

    def _error(self, doing: str, reason: str) -> EngineError:
        tries = f" after {self._config.max_retries} retries" if self._config.max_retries else ""
        done = f"; {self._answered} of {len(self._prompts)} prompts were answered" if "repeat" in doing else ""
        return EngineError(f"{self._config.url} ({doing}){tries}: {reason}{done}. Finished repeats are kept.")


def _output(answer: Answer) -> Output:
    count = None if answer.token_ids else answer.tokens
    return Output(answer.token_ids, answer.text, answer.request, count, finish_reason=answer.finish_reason)
