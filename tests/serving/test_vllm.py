"""Drafters in vLLM: on the calls of its runner they draft what they draft here."""

import logging
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from specdec_core import (
    Decoder,
    Drafter,
    DraftRequest,
    DraftSession,
    Outcome,
    Proposal,
    SessionInfo,
    TraceObserver,
)
from specdec_core.decoding.drawing import DraftRecorder
from specdec_core.decoding.rows import TokenView
from specdec_core.interface import ConfigError, DeterministicDrafter, PluginConfig, TargetInfo
from specdec_core.interface.settings import SamplingSettings
from specdec_core.models import model_folder, wrap_model
from specdec_core.offline.record.store import read_record
from specdec_core.sampling.generators import RowGenerators
from specdec_core.sampling.logits import LogitsToProbs
from specdec_core.serving.vllm import VllmProposer
from tests.serving.vllm_runner import Runner, vllm_config
from tests.tiny import tiny_model

GAMMA = 5
LENGTH = 512
NGRAM = {"name": "ngram", "text": "counted.py", "order": 3}


@pytest.fixture(scope="module")
def record():
    return read_record("builtin:code")


@pytest.fixture(scope="module")
def traffic(record) -> dict[str, tuple[list[int], list[int]]]:
    """Prompts with what the built-in target says to them at temperature 0."""
    part = next(part for part in record.parts if part.header.sampling.greedy)
    texts = [text for text, _ in zip(part, range(10), strict=False)]
    return {str(text.number): (list(text.prompt), text.tokens[:60].tolist()) for text in texts}


def proposer_of(given: Any, vocab: int, length: int = LENGTH, **more: str) -> VllmProposer:
    """Return a proposer as an exported module has it."""
    config = vllm_config(vocab, GAMMA, length, more.pop("tokenizer", None))
    return type("Proposer", (VllmProposer,), {"settings": given, **more})(config)


def made(drafter: type[Drafter], vocab: int) -> VllmProposer:
    """Return a proposer with a drafter that is no plugin."""
    build = {"make_drafter": lambda self, target: drafter(PluginConfig(), target)}
    return type("Proposer", (VllmProposer,), build)(vllm_config(vocab, GAMMA, LENGTH))


def fresh_draft(drafter: Drafter, text: Sequence[int], budget: int) -> tuple[int, ...]:
    """Return what a drafter proposes after a text in a session that has seen nothing else."""
    vocab = drafter.target.vocab_size
    session = drafter.open(SessionInfo(1, vocab, LENGTH, GAMMA, "cpu"))
    greedy = LogitsToProbs(SamplingSettings(temperature=0))
    recorder = DraftRecorder(greedy, RowGenerators([0]), 1, vocab, GAMMA, "cpu")
    recorder.start((TokenView(list(text)),), (budget,))
    proposal = session.propose(recorder)
    session.close()
    return tuple(proposal.tokens[0, : proposal.lengths[0]].tolist())


def serve_all(runner: Runner, traffic: dict[str, tuple[list[int], list[int]]], seed: int) -> None:
    """Serve requests that come and go; some are not scheduled, preempted, moved, read in chunks, or taken back."""
    random = Random(seed)
    waiting = list(traffic.items())
    while waiting or runner.unfinished:
        if waiting and len(runner.unfinished) < 6 and random.random() < 0.5:
            name, (prompt, script) = waiting.pop(0)
            runner.add(name, prompt, script)
        names = runner.unfinished
        random.shuffle(names)
        scheduled = [name for name in names if random.random() < 0.9]
        if names and random.random() < 0.15:
            runner.preempt(random.choice(names))
        if len(runner.rows) > 1 and random.random() < 0.2:
            runner.swap(*random.sample(range(len(runner.rows)), 2))
        for name in names:
            if len(runner.requests[name].output) > 4 and random.random() < 0.02:
                runner.discard(name, random.randint(1, 3))
        chunks = {name: random.randint(1, 40) for name in scheduled if random.random() < 0.3}
        cut = {name: random.randint(0, GAMMA) for name in scheduled if random.random() < 0.2}
        runner.step(scheduled, chunks, cut)


@pytest.mark.parametrize(
    "given",
    [
        "prompt-copy",
        NGRAM,
        {"name": "chain", "drafters": [{"name": "prompt-copy", "min_match": 4}, NGRAM], "min_draft_tokens": 2},
        "random",
    ],
    ids=["recent", "ngram", "chain", "random"],
)
def test_drafts_are_those_of_a_fresh_session(given, record, traffic, tmp_path):
    (tmp_path / "counted.py").write_text(Path(__file__).read_text())
    tokenizer = str(model_folder("builtin:target"))
    proposer = proposer_of(given, record.header.vocab_size, folder=str(tmp_path), tokenizer=tokenizer)
    runner = Runner(proposer, GAMMA)
    serve_all(runner, traffic, seed=1)
    assert {name: request.output for name, request in runner.requests.items()} == {
        name: script for name, (_, script) in traffic.items()
    }
    assert sum(len(one.draft) for one in runner.asked) > 300
    if given != "random":  # its drafts are as good as any others
        assert sum(map(sum, runner.accepted.values())) > 20
        assert all(one.draft == fresh_draft(proposer.drafter, one.text, GAMMA) for one in runner.asked)


def test_steps_are_those_of_our_decoder():
    target = wrap_model(tiny_model("llama", vocab=10))
    proposer = proposer_of("prompt-copy", target.vocab_size)
    runner, steps = Runner(proposer, GAMMA), {}
    for name, prompt in (("a", [3, 1, 4, 1, 5]), ("b", [2, 7, 1, 8]), ("c", [6])):
        plain = Decoder(target, None, temperature=0).generate([prompt], max_new_tokens=48)[0]
        text = list(plain.tokens)
        runner.add(name, prompt, text)
        # vLLM asks for the first draft when the first token is there, we before that.
        trace = TraceObserver()
        begun = [[*prompt, text[0]]]
        ours = Decoder(target, "prompt-copy", gamma=GAMMA, temperature=0)
        ours.generate(begun, max_new_tokens=47, observers=[trace])
        steps[name] = [report.outcome.accepted[0] for report in trace.reports if report.outcome.drafted[0]]
    while runner.unfinished:
        runner.step(runner.unfinished)
    for name, ours_accepted in steps.items():
        # Our last drafts are shorter: vLLM's proposer is not told where a text must end.
        assert runner.accepted[name][: len(ours_accepted) - 2] == ours_accepted[:-2]
        assert sum(ours_accepted) > 5


class Witness(Drafter):
    """Repeats the last token, but not 6; its sessions check what they are told."""

    def __init__(self, config: PluginConfig, target: TargetInfo) -> None:
        super().__init__(config, target)
        self.sessions: list[_WitnessSession] = []

    def open(self, session: SessionInfo) -> DraftSession:
        self.sessions.append(_WitnessSession())
        return self.sessions[-1]


class _WitnessSession(DraftSession):
    def __init__(self) -> None:
        self.text: list[int] | None = None
        self.draft: list[int] = []
        self.accepted: list[int] = []
        self.closed = False

    def propose(self, request: DraftRequest) -> Proposal:
        (tokens,) = request.tokens
        if self.text is None:
            self.text = list(tokens)
        assert self.text == list(tokens)
        self.draft = [] if tokens[-1] == 6 else [tokens[-1]] * request.budget[0]
        return Proposal.from_rows([self.draft])

    def commit(self, outcome: Outcome) -> None:
        assert self.text is not None
        ((new,), (accepted,), (drafted,)) = outcome.committed, outcome.accepted, outcome.drafted
        assert drafted == len(self.draft)
        assert accepted < len(new)
        assert list(new[:accepted]) == self.draft[:accepted]
        self.text += new
        self.accepted += [accepted] if drafted else []
        self.draft = []

    def rollback(self, lengths: Sequence[int]) -> None:
        raise AssertionError("nothing is rolled back")

    def close(self) -> None:
        self.closed = True


def test_sessions_hear_what_was_committed_and_move_with_their_request(caplog):
    proposer = made(Witness, 50)
    runner = Runner(proposer, GAMMA)
    runner.add("a", [1, 2], [3, 3, 3, 3, 4, 4, 5, 6, 6, 6, 6, 6, 6, 7, 8, 9])
    runner.add("b", [1, 2, 9], [9, 9, 8])
    runner.add("c", [1, 2, 9, 9], [7, 7, 7, 7, 7, 7, 7, 7, 1, 2, 3, 3, 3, 4, 5])
    while "b" in runner.unfinished:
        runner.step(runner.unfinished)
    runner.swap(0, 2)
    runner.step(["a", "c"])  # the row of b is filled with another
    runner.add("d", [1, 2, 9], [9, 9, 9, 9, 9, 9, 8, 8, 8])
    while runner.unfinished:
        runner.step(runner.unfinished)
    sessions = proposer.drafter.sessions
    assert len(sessions) == 4
    assert [session.accepted for session in sessions] == list(runner.accepted.values())
    assert sum(map(sum, runner.accepted.values())) > 10
    assert not caplog.records


def test_traffic_of_all_kinds_tells_sessions_the_truth(traffic, record, caplog):
    for seed in range(3):
        proposer = made(Witness, record.header.vocab_size)
        serve_all(Runner(proposer, GAMMA), traffic, seed)
        assert not caplog.records  # nor has a session raised


def test_a_request_that_returns_is_read_anew(caplog):
    proposer = made(Witness, 50)
    runner = Runner(proposer, GAMMA)
    runner.add("a", [1, 2], list(range(3, 40)))
    runner.add("b", [5], [1] * 400)
    for _ in range(3):
        runner.step(["a", "b"])
    runner.preempt("a")
    runner.step(["b"])
    sessions = proposer.drafter.sessions
    assert [session.closed for session in sessions] == [True, False]
    runner.step(["a", "b"], chunks={"a": 2})  # its text is read again, in two steps
    assert runner.asked[-1].name == "b"
    runner.step(["b", "a"])
    assert len(sessions) == 3
    assert sessions[2].text == runner.requests["a"].tokens
    runner.discard("a", 2)
    runner.step(["a", "b"])
    assert [session.closed for session in sessions] == [True, False, True, False]
    assert not caplog.records


@pytest.mark.parametrize("pause", [False, True], ids=["at-once", "after-a-pause"])
def test_a_finished_request_is_learned_before_the_next_begins(pause, caplog):
    proposer = proposer_of({"name": "suffix", "max_spec_factor": 4.0}, 50)
    runner = Runner(proposer, GAMMA)
    runner.add("first", [1, 2, 3], [4, 5, 6, 7, 8])
    while runner.unfinished:
        runner.step(runner.unfinished)
    if pause:
        proposer.propose([], runner.num_tokens_no_spec, runner.token_ids_cpu)
    runner.add("next", [9, 2, 3], [4, 5, 6, 7, 8])
    runner.step(["next"])
    assert runner.asked[-1].draft == (5, 6, 7, 8)
    assert not caplog.records


def test_two_rows_never_share_a_session(caplog):
    proposer = made(Witness, 50)

    def drafted(*texts: list[int]) -> list[list[int]]:
        ids = np.zeros((4, LENGTH), dtype=np.int32)
        for row, text in enumerate(texts):
            ids[row, : len(text)] = text
        return proposer.propose([[text[-1]] for text in texts], np.array([*map(len, texts), 9]), ids)

    drafted([1, 2, 3])
    assert drafted([1, 2, 3, 4], [1, 2, 3, 5]) == [[4] * GAMMA, [5] * GAMMA]
    drafted([8], [8], [1, 2, 3, 4, 4], [1, 2, 3, 4, 7])
    assert [session.text for session in proposer.drafter.sessions] == [
        [1, 2, 3, 4, 4],
        [1, 2, 3, 5],
        [8],
        [8],
        [1, 2, 3, 4, 7],
    ]
    assert not caplog.records


class Failing(DeterministicDrafter):
    """Fails after a token, and drafts what is no token after another."""

    def draft(self, tokens: Sequence[int], budget: int) -> Sequence[int]:
        if tokens[-1] == 7:
            raise RuntimeError("seven")
        return [99] if tokens[-1] == 8 else [1] * budget


@pytest.mark.parametrize(("token", "reason"), [(7, "seven"), (8, "outside the vocabulary")])
def test_a_drafter_that_fails_costs_no_request(token, reason, caplog):
    proposer = made(Failing, 50)
    runner = Runner(proposer, GAMMA)
    runner.add("fine", [1], [2] * 9)
    runner.add("fails", [1], [2, token, 2, 2, 2])
    runner.add("too", [3], [token, 2, 2, 2, 2])
    with caplog.at_level(logging.WARNING):
        while runner.unfinished:
            runner.step(runner.unfinished)
    failed = [one for one in runner.asked if one.text[-1] == token]
    assert len(failed) == 2
    assert not any(one.draft for one in failed)
    assert all(one.draft for one in runner.asked if one not in failed)
    (line,) = [record.message for record in caplog.records]
    assert reason in line
    assert "goes on without a draft" in line


def test_no_draft_leaves_the_models_length():
    proposer = proposer_of("prompt-copy", 50, length=12)
    runner = Runner(proposer, GAMMA, max_model_len=12)
    runner.add("a", [1, 2, 1, 2, 1, 2], [1, 2, 1, 2, 1, 2])
    while runner.unfinished:
        runner.step(runner.unfinished)
    drafted = {len(one.text): len(one.draft) for one in runner.asked}
    assert drafted[7] == 4
    assert drafted[12] == 0


def test_a_model_with_an_encoder_is_refused():
    config = vllm_config(50, GAMMA)
    config.model_config.is_encoder_decoder = True
    with pytest.raises(ConfigError, match="encoder"):
        type("Proposer", (VllmProposer,), {"settings": "prompt-copy"})(config)
