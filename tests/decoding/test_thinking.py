"""Where an answer thinks, and the acceptance inside and outside of that part."""

import pytest

from specdec_core.decoding.chat import thinking_marks, thinking_span
from specdec_core.decoding.counts import RequestMetrics
from specdec_core.decoding.decoder import Decoder
from specdec_core.decoding.observers import TraceObserver
from specdec_core.models import wrap_model
from tests.tiny import tiny_model
from tests.toys import Gamma

MARKS = (7, 8)


class Vocabulary:
    def __init__(self, *words):
        self.words = words

    def get_vocab(self):
        return {word: number for number, word in enumerate(self.words)}


def test_the_marks_are_single_tokens_of_the_tokenizer():
    assert thinking_marks(Vocabulary("a", "<think>", "</think>")) == (1, 2)
    assert thinking_marks(Vocabulary("[/THINK]", "[THINK]", "<think>")) == (1, 0)
    assert thinking_marks(Vocabulary("a", "<think>")) is None
    assert thinking_marks(None) is None


@pytest.mark.parametrize(
    ("prompt", "tokens", "span"),
    [
        ((1,), (7, 2, 8, 3), (0, 3)),
        ((1,), (2, 7, 2, 2), (1, 4)),  # cut off
        ((1, 7), (2, 8, 3), (0, 2)),  # opened by the template
        ((1, 7, 9), (2, 2), (0, 2)),
        ((7, 2, 8, 1), (2, 3), None),  # an earlier turn thought
        ((1,), (2, 8, 3), None),
        ((1, 7), (2, 8, 7, 3, 8), (0, 2)),  # only the first part
    ],
)
def test_an_answer_thinks_between_the_marks(prompt, tokens, span):
    assert thinking_span(prompt, tokens, MARKS) == span


def test_steps_belong_to_where_they_begin():
    metrics = RequestMetrics(4, 5, (4, 4, 3, 4), (4, 0, 3, 1), 2, (0, 5, 7, 11))
    inside, outside = metrics.split(1, 8)
    assert (inside.per_step_drafted, inside.per_step_accepted) == ((4, 3), (0, 3))
    assert (outside.per_step_drafted, outside.per_step_accepted) == ((4, 4), (4, 1))
    assert outside.mean_acceptance_length == 3.5
    assert metrics.split(0, 0)[0].num_spec_steps == 0


def test_steps_begin_behind_the_tokens_of_those_before():
    target = wrap_model(tiny_model("llama", 40, sharpness=1.5))
    trace = TraceObserver()
    decoder = Decoder(target, "prompt-lookup", gamma=Gamma(3, 0, 2))
    result = decoder.generate([[3, 4, 3, 4, 3], [5, 6]], max_new_tokens=30, seed=1, observers=[trace])
    for row, one in enumerate(result):
        begins, done = [], 0
        for report in trace.reports:
            if report.outcome.drafted[row] and report.outcome.committed[row]:
                begins.append(done)
            done += len(report.outcome.committed[row])
        assert one.metrics.per_step_begin == tuple(begins)
