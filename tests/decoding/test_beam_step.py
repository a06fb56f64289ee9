"""One step of beam search where not all beams are known."""

from dataclasses import replace

import numpy as np
import torch

from specdec_core.decoding.beams.search import BeamRules, BeamState, Continuations, advance

BEAMS, VOCAB, EOS, LIMIT = 3, 9, 2, 6


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
