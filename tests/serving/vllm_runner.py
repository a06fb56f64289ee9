"""vLLM 0.33.0 as a custom proposer sees it: input batch, bookkeeping and calls, with scripted scheduling.

After `vllm/v1/worker/gpu_input_batch.py` (`add_request`, `remove_request`, `condense`, `swap_states`) and
`gpu_model_runner.py` (`_update_states`, `_bookkeeping_sync`, `propose_draft_token_ids`). The target is a script:
the text of each request is known, as that of greedy decoding is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

JUNK = 987_654_321
"""Filler of rows where nothing has been written: no proposer may look there."""


def vllm_config(vocab: int, gamma: int, max_model_len: int = 512, tokenizer: str | None = None) -> Any:
    """Return what a proposer reads of a `VllmConfig`."""
    model = SimpleNamespace(
        max_model_len=max_model_len,
        get_vocab_size=lambda: vocab,
        skip_tokenizer_init=tokenizer is None,
        tokenizer=tokenizer,
        tokenizer_revision=None,
        trust_remote_code=False,
        is_encoder_decoder=False,
        hf_text_config=SimpleNamespace(eos_token_id=0),
    )
    return SimpleNamespace(model_config=model, speculative_config=SimpleNamespace(num_speculative_tokens=gamma))


@dataclass
class ServedRequest:
    """A request: what it was given and what its target says.

    Attributes:
        prompt: Its prompt.
        script: The tokens that the target gives, one after another.
        output: Those that were given so far.
        computed: Number of tokens that the target has read.
        draft: The draft to be verified next.
    """

    prompt: list[int]
    script: list[int]
    output: list[int] = field(default_factory=list)
    computed: int = 0
    draft: list[int] = field(default_factory=list)

    @property
    def tokens(self) -> list[int]:
        return self.prompt + self.output

    @property
    def finished(self) -> bool:
        return len(self.output) >= len(self.script)


@dataclass(frozen=True)
class Asked:
    """One row of one call: the text that was drafted for, and the draft."""

    name: str
    text: tuple[int, ...]
    draft: tuple[int, ...]


class Runner:
    """A model runner with one proposer.

    Attributes:
        asked: Every draft, in the order of the calls.
        accepted: The number of accepted draft tokens of each step of each request, where there was a draft.
    """

    def __init__(self, proposer: Any, gamma: int, max_rows: int = 8, max_model_len: int = 512) -> None:
        self.proposer, self.gamma = proposer, gamma
        self.token_ids_cpu = np.full((max_rows, max_model_len), JUNK, dtype=np.int32)
        self.num_tokens_no_spec = np.zeros(max_rows, dtype=np.int32)
        self.rows: list[str | None] = []
        self.requests: dict[str, ServedRequest] = {}
        self.asked: list[Asked] = []
        self.accepted: dict[str, list[int]] = {}

    def add(self, name: str, prompt: Sequence[int], script: Sequence[int]) -> None:
        """Admit a request; it is scheduled from the next step on."""
        self.requests[name] = ServedRequest(list(prompt), list(script))
        self.accepted[name] = []

    @property
    def unfinished(self) -> list[str]:
        return [name for name, request in self.requests.items() if not request.finished]

    def preempt(self, name: str) -> None:
        """Free the cache of a request: what it has will be read again, and its draft is dropped."""
        request = self.requests[name]
        request.computed, request.draft = 0, []
        if name in self.rows:
            self.rows[self.rows.index(name)] = None

    def discard(self, name: str, count: int) -> None:
        """Take the last tokens of a request back, as vLLM does where keys and values could not be loaded."""
        request = self.requests[name]
        del request.output[len(request.output) - count :]
        request.computed, request.draft = min(request.computed, len(request.tokens) - 1), []
        if name in self.rows:
            self.num_tokens_no_spec[self.rows.index(name)] = len(request.tokens)

    def step(
        self,
        scheduled: Sequence[str],
        chunks: Mapping[str, int] | None = None,
        cut: Mapping[str, int] | None = None,
    ) -> list[list[int]]:
        """Run the target once over some requests, then ask for drafts.

        Args:
            scheduled: The requests of this step.
            chunks: How many unread tokens of a prompt are read, where not all of them.
            cut: How many tokens of a draft are verified, where not all of them.
        """
        self._update_batch(scheduled)
        sampled = [self._run(name, chunks or {}, cut or {}) for name in self.rows if name is not None]
        for row, new in enumerate(sampled):
            begin = self.num_tokens_no_spec[row]
            self.token_ids_cpu[row, begin : begin + len(new)] = new
            self.num_tokens_no_spec[row] += len(new)
        drafts = self.proposer.propose(sampled, self.num_tokens_no_spec, self.token_ids_cpu, slot_mappings=None)
        self._check(drafts, sampled)
        return drafts

    def swap(self, one: int, other: int) -> None:
        """Exchange two rows, as attention backends do that want decoding rows first."""
        for rows in (self.token_ids_cpu, self.num_tokens_no_spec):
            rows[[one, other]] = rows[[other, one]]
        self.rows[one], self.rows[other] = self.rows[other], self.rows[one]

    def _update_batch(self, scheduled: Sequence[str]) -> None:
        for row, name in enumerate(self.rows):
            if name not in scheduled:
                self.rows[row] = None
        for name in scheduled:
            if name not in self.rows:
                self._fill(self.rows.index(None) if None in self.rows else len(self.rows), name)
        while None in self.rows:  # condense
            last = self.rows.pop()
            if last is not None:
                empty, row = self.rows.index(None), len(self.rows)
                used = self.num_tokens_no_spec[row] + len(self.requests[last].draft)
                self.token_ids_cpu[empty, :used] = self.token_ids_cpu[row, :used]
                self.num_tokens_no_spec[empty] = self.num_tokens_no_spec[row]
                self.rows[empty] = last

    def _fill(self, row: int, name: str) -> None:
        """Write a request into a row; what the last one left beyond it stays."""
        if row == len(self.rows):
            self.rows.append(None)
        tokens = self.requests[name].tokens
        self.rows[row] = name
        self.token_ids_cpu[row, : len(tokens)] = tokens
        self.num_tokens_no_spec[row] = len(tokens)

    def _run(self, name: str, chunks: Mapping[str, int], cut: Mapping[str, int]) -> list[int]:
        """Read the unread tokens of a request and verify its draft; return what was sampled."""
        request, row = self.requests[name], self.rows.index(name)
        draft = request.draft[: cut.get(name, self.gamma)]
        begin = self.num_tokens_no_spec[row]
        self.token_ids_cpu[row, begin : begin + len(draft)] = draft
        request.computed = min(request.computed + chunks.get(name, JUNK), len(request.tokens))
        if request.computed < len(request.tokens):
            return []
        ahead = request.script[len(request.output) :]
        accepted = 0
        while accepted < min(len(draft), len(ahead) - 1) and draft[accepted] == ahead[accepted]:
            accepted += 1
        if draft:
            self.accepted[name].append(accepted)
        new = ahead[: accepted + 1]
        request.output += new
        request.computed = len(request.tokens) - 1
        return new

    def _check(self, drafts: Any, sampled: list[list[int]]) -> None:
        """Check the form of what was proposed, and keep it."""
        assert type(drafts) is list
        assert len(drafts) == len(sampled)
        for name, new, draft in zip(self.rows, sampled, drafts, strict=True):
            assert type(draft) is list
            assert all(type(token) is int for token in draft)
            assert len(draft) <= self.gamma
            assert new or not draft
            request = self.requests[name]
            request.draft = draft
            if new:
                self.asked.append(Asked(name, tuple(request.tokens), tuple(draft)))
