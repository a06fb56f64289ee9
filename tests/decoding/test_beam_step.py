"""One step of beam search: against the library's own functions, and where not all beams are known."""

from __future__ import annotations

from dataclasses import replace
from inspect import signature

import numpy as np
import pytest
import torch
from transformers import GenerationMixin

from specdec_core.decoding.beams.search import BeamRules, BeamState, Continuations, advance

BEAMS, VOCAB, EOS, LIMIT = 3, 9, 2, 6
# transformers 5.17 asks for it.
SIZES = (
    {"vocab_size": VOCAB} if "vocab_size" in signature(GenerationMixin._get_top_k_continuations).parameters else {}
)
KEPT = BeamRules.count_candidates(BEAMS, 1)


def ends(text, token):
    return "eos" if token == EOS else "length" if len(text) + 1 == LIMIT else None


def continuations(log_probs):
    order = np.argsort(-log_probs, kind="stable")[:KEPT]
    return Continuations(log_probs[order], order)


def drawn(rng, peaked):
    logits = torch.tensor(rng.normal(size=(BEAMS, VOCAB)) * peaked, dtype=torch.float32)
    logits[:, EOS] += rng.choice([-2, 3])
    return torch.log_softmax(logits, dim=1)


class Library:
    """The library's vectorized state of one prompt, advanced by its own functions."""

    def __init__(self, rules):
        self.rules, self.length = rules, 0
        self.running = torch.full((1, BEAMS, LIMIT), -1)
        self.sequences = self.running.clone()
        self.running_scores = torch.tensor([[0.0] + [-1e9] * (BEAMS - 1)])
        self.scores = torch.full((1, BEAMS), -1e9)
        self.finished = torch.zeros(1, BEAMS, dtype=torch.bool)
        self.improvable = torch.ones(1, 1, dtype=torch.bool)
        self.indices = torch.full((1, BEAMS, LIMIT), -1)
        self.done = False

    def step(self, log_probs):
        kind, rules = GenerationMixin, self.rules
        best, texts, indices = kind._get_top_k_continuations(
            kind,
            accumulated_log_probs=(log_probs[None] + self.running_scores[:, :, None]).view(1, -1),
            running_sequences=self.running,
            running_beam_indices=self.indices,
            cur_len=self.length,
            decoder_prompt_len=0,
            do_sample=False,
            beams_to_keep=KEPT,
            num_beams=BEAMS,
            batch_size=1,
            **SIZES,
        )
        stops = (texts[:, :, self.length] == EOS) | (self.length + 1 == LIMIT)
        self.running, self.running_scores, self.indices = kind._get_running_beams_for_next_iteration(
            kind, best, texts, indices, stops, BEAMS
        )
        self.sequences, self.scores, _, self.finished = kind._update_finished_beams(
            kind,
            sequences=self.sequences,
            topk_running_sequences=texts,
            beam_scores=self.scores,
            topk_log_probs=best,
            beam_indices=indices[:, :BEAMS],
            topk_running_beam_indices=indices,
            is_early_stop_heuristic_unsatisfied=self.improvable,
            is_sent_finished=self.finished,
            next_token_hits_stopping_criteria=stops,
            top_num_beam_mask=torch.arange(KEPT) < BEAMS,
            num_beams=BEAMS,
            cur_len=self.length,
            decoder_prompt_len=0,
            length_penalty=rules.length_penalty,
            early_stopping=rules.early_stopping,
        )
        self.length += 1
        self.improvable = kind._check_early_stop_heuristic(
            self.improvable,
            self.running_scores,
            self.scores,
            self.finished,
            self.length,
            LIMIT,
            0,
            rules.early_stopping,
            rules.length_penalty,
        )
        self.done = not kind._beam_search_has_unfinished_sequences(
            self.improvable, self.finished, stops, rules.early_stopping
        )


@pytest.mark.parametrize("early_stopping", [True, False, "never"])
@pytest.mark.parametrize("length_penalty", [0.0, 0.6, 1.0, 2.0, -1.0])
def test_a_step_is_that_of_the_library(early_stopping, length_penalty):
    rules = BeamRules(BEAMS, KEPT, LIMIT, length_penalty, early_stopping)
    ended = set()
    for seed in range(20):
        rng = np.random.default_rng(seed)
        state, theirs = BeamState.start(BEAMS), Library(rules)
        while not state.done:
            log_probs = drawn(rng, 1.5)
            if not state.beams[0]:
                log_probs[:] = log_probs[0]
            step = advance(state, [continuations(row) for row in log_probs.numpy()], rules, ends)
            theirs.step(log_probs)
            assert [state.beams[parent] for parent in step.parents] == [text[:-1] for text in step.state.beams]
            state = step.state
            assert np.array_equal(state.scores, theirs.running_scores[0].numpy())
            assert np.array_equal(state.finished_scores, theirs.scores[0].numpy())
            assert [one is not None for one in state.finished] == theirs.finished[0].tolist()
            assert state.done == theirs.done
            length = len(state.beams[0])
            if length < LIMIT:  # at the limit all have the score of a beam that does not exist
                assert [list(text) for text in state.beams] == theirs.running[0, :, :length].tolist()
            for one, row in zip(state.finished, theirs.sequences[0].tolist(), strict=True):
                assert one is None or list(one.tokens) == row[: len(one.tokens)]
        ended.add(len(state.beams[0]))
    assert ended == {LIMIT} or len(ended) > 1


def test_a_beam_that_is_not_known_matters_only_if_it_may_change_the_step():
    rules = BeamRules(BEAMS, KEPT, LIMIT)
    taken = refused = 0
    for seed in range(300):
        rng = np.random.default_rng(seed)
        state = BeamState.start(BEAMS)
        for number in range(LIMIT):
            known = [continuations(row) for row in drawn(rng, rng.choice([2.0, 8.0])).numpy()]
            whole = advance(state, known, rules, ends)
            if number:
                unknown = set(rng.choice(BEAMS, size=rng.integers(1, BEAMS), replace=False).tolist())
                part = advance(state, [None if n in unknown else one for n, one in enumerate(known)], rules, ends)
                taken, refused = taken + (part is not None), refused + (part is None)
                if part is not None:
                    assert part.parents == whole.parents
                    for name in ("beams", "finished", "improvable", "done"):
                        assert getattr(part.state, name) == getattr(whole.state, name)
                    assert np.array_equal(part.state.scores, whole.state.scores)
            state = whole.state
            if state.done:
                break
    assert taken > 100
    assert refused > 100


def test_a_beam_that_is_not_known_always_matters_if_continuations_may_score_above_their_beams():
    likely, unlikely = (np.full(VOCAB, value, np.float32) for value in (-0.1, -50))
    known = [continuations(likely), continuations(likely), None]
    state = replace(BeamState.start(BEAMS), beams=((4,), (5,), (6,)), scores=np.float32([0, -1, -9]))
    bounded = BeamRules(BEAMS, KEPT, LIMIT)
    unbounded = replace(bounded, bounded=False)
    assert advance(state, known, bounded, ends) is not None
    assert advance(state, known, unbounded, ends) is None
    lifted = [*known[:2], continuations(unlikely + 60 * (np.arange(VOCAB) == 7).astype(np.float32))]
    assert advance(state, lifted, unbounded, ends).state.beams[0] == (6, 7)


def test_nothing_is_known():
    state = BeamState.start(BEAMS)
    assert advance(state, [None] * BEAMS, BeamRules(BEAMS, KEPT, LIMIT), ends) is None
