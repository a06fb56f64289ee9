"""Greedy decoding gives the tokens of the model's own `generate`, with any drafter."""

import pytest

from specdec_core.decoding.decoder import Decoder
from specdec_core.decoding.observers import TraceObserver
from specdec_core.interface import BestFirstTree, TokenTree
from specdec_core.interface.settings import GenerationSettings, SamplingSettings
from specdec_core.models import wrap_model
from tests.pairwise import some
from tests.tiny import FAMILIES, generated, tiny_model
from tests.toys import CountingDrafter, Gamma, MostlyRight, TableDrafter

PROMPTS = ([3, 4, 5, 6, 9, 12, 7, 8], [7, 8], [30, 2, 11, 4])
GREEDY = SamplingSettings(temperature=0)


def oracle(kind, model, expected):
    """Return a drafter that knows the library's own tokens."""
    begins = [[0]] * len(expected) if model.config.is_encoder_decoder else PROMPTS
    return kind([[*begin, *tokens] for begin, tokens in zip(begins, expected, strict=False)])


@pytest.mark.parametrize("batch", [pytest.param(1, marks=pytest.mark.slow), 3])
@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_equal_those_of_generate(family, batch, device):
    model = tiny_model(family).to(device)
    loaded = wrap_model(model)
    prompts = PROMPTS[:batch]
    settings = GenerationSettings(max_new_tokens=24)
    expected = [generated(model, prompt, 24) for prompt in prompts]
    for drafter in (None, TableDrafter(40), CountingDrafter(40), oracle(MostlyRight, model, expected)):
        decoder = Decoder(loaded, drafter, gamma=drafter and Gamma(4, 1, 3), sampling=GREEDY, strict=True)
        result = decoder.generate(prompts, settings)
        assert [list(row.tokens) for row in result.sequences] == expected
        assert result.metrics.target_calls <= 24
        if isinstance(drafter, MostlyRight):
            assert result.metrics.block_efficiency > 1.5


class Branching(MostlyRight):
    """Drafts the oracle's tokens between paths that leave the right one at different positions."""

    def continuations(self, tokens, budget, depth):
        line = list(self.draft(tokens, depth))
        kept = len(tokens) % 3  # the draft's own first error comes later or sooner
        wrong = [[*line[:position], (line[position] + 2) % 40, 5, 6][:depth] for position in range(len(line))]
        return [*wrong[kept:], line, *wrong[:kept]]


@pytest.mark.parametrize("family", some(FAMILIES, 4))
def test_trees_give_the_tokens_of_generate(family, device):
    model = tiny_model(family).to(device)
    loaded = wrap_model(model)
    expected = [generated(model, prompt, 24) for prompt in PROMPTS]
    shapes = TokenTree((-1, -1, -1, 0, 0, 1, 3, 3, 5)), BestFirstTree((3, 3, 2, 1))
    for shape, drafter in zip(shapes, (oracle(Branching, model, expected), TableDrafter(40)), strict=True):
        decoder = Decoder(loaded, drafter, gamma=Gamma(9, 0, 5, tree=shape), sampling=GREEDY, strict=True)
        trace = TraceObserver()
        result = decoder.generate(PROMPTS, GenerationSettings(max_new_tokens=24), [trace])
        assert [list(row.tokens) for row in result.sequences] == expected
        assert any(report.outcome.parents for report in trace.reports)
        if isinstance(drafter, Branching):
            assert result.metrics.block_efficiency > 1.5
            paths = [path for report in trace.reports for path in report.outcome.paths or ()]
            assert any(path != tuple(range(len(path))) for path in paths)  # keys and values were moved
