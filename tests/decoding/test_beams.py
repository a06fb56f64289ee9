"""Beam search gives the sequences and scores of the model's own `generate(num_beams=w)`, with any drafter."""

import copy
import functools
from itertools import product

import pytest
import torch
from transformers import LogitNormalization, LogitsProcessor, SequenceBiasLogitsProcessor

from specdec_core.decoding.beams.beam_draft import BeamDraft, DraftSearch
from specdec_core.decoding.decoder import Decoder
from specdec_core.decoding.drawing import DraftRecord
from specdec_core.interface import (
    LAST_HIDDEN,
    AutoregressiveDrafter,
    ConfigError,
    Drafter,
    DraftSession,
    ModelError,
    Proposal,
)
from specdec_core.interface.errors import NumericsError, PluginWarning
from specdec_core.interface.settings import SamplingSettings
from specdec_core.models import wrap_model
from specdec_core.sampling.logits import LogitsToProbs
from specdec_drafters.common.model_drafter import ModelDrafter
from specdec_drafters.settings import TransformerConfig
from specdec_drafters.transformer import TransformerDrafter
from tests.catalogue import DRAFTERS, Catalogue
from tests.models.hybrids import hybrid
from tests.pairwise import some
from tests.tiny import tiny_model
from tests.toys import NO_CONFIG, CountingDrafter, TableDrafter, target_info

VOCAB = 40
SHAPES = ("t5", "bart", "gpt2", "llama", "qwen3", "mistral")
EOS = (1, 7)


def models(family, device, *, noise=0.03, eos=(), raised=0.0):
    """Return a target and a drafter that mostly agrees with it.

    Args:
        family: The shape of both.
        device: Where they are.
        noise: Of the drafter's weights, relative to their own spread.
        eos: End-of-sequence ids.
        raised: Added to their logits.
    """
    # Without ties between sums of log probabilities, which round otherwise in another order.
    model = tiny_model(family, VOCAB, seed=3, sharpness=2.0).double().to(device)
    model.generation_config.eos_token_id = list(eos) or None
    model.generation_config.pad_token_id = 0
    if raised:
        head = model.get_output_embeddings()
        head.bias = torch.nn.Parameter(torch.zeros(VOCAB, dtype=torch.double, device=device))
        with torch.no_grad():
            head.bias[list(eos)] = raised
    other = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for weight in other.parameters():
            drawn = torch.randn(weight.shape, generator=generator, dtype=torch.double).to(device)
            weight += noise * weight.std(correction=0) * drawn
    return model, wrap_model(model), wrap_model(other)


class Small(TransformerDrafter):
    """The transformer drafter with a model that is loaded already."""

    def __init__(self, target, loaded):
        ModelDrafter.__init__(self, TransformerConfig(model="none"), target.info(), loaded)


def prompts(count, seed=1, longest=14):
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, longest, (count,), generator=generator).tolist()
    return [torch.randint(8, VOCAB, (length,), generator=generator).tolist() for length in lengths]


def library(model, prompt, **settings):
    """Return sequences, scores and the number of forward passes of the model's own beam search."""
    ids = torch.tensor([prompt], device=model.device)
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        return_dict_in_generate=True,
        output_scores=True,
        **settings,
    )
    start = 1 if model.config.is_encoder_decoder else len(prompt)
    lengths = (out.beam_indices >= 0).sum(dim=1).tolist()
    rows = [tuple(row[start : start + n].tolist()) for row, n in zip(out.sequences, lengths, strict=True)]
    return rows, out.sequences_scores.tolist(), len(out.scores)


def check(model, decoder, texts, *, beams, returned=None, **settings):
    """Compare a batch with the library's answers to each prompt alone; return passes here and there."""
    settings.setdefault("max_new_tokens", 14)
    returned = returned or beams
    result = decoder.generate(texts, beams=beams, num_return_sequences=returned, **settings)
    theirs = 0
    for number, prompt in enumerate(texts):
        rows, scores, passes = library(model, prompt, num_beams=beams, num_return_sequences=returned, **settings)
        mine = result[number * returned : (number + 1) * returned]
        assert [one.tokens for one in mine] == rows
        assert [one.score for one in mine] == pytest.approx(scores, abs=1e-4)
        assert {one.prompt for one in mine} == {tuple(prompt)}
        theirs = max(theirs, passes)
    assert result.metrics.target_calls <= theirs
    return result.metrics.target_calls, theirs


NOISE = {"t5": 0.005}
"""T5 is the most sensitive."""


@pytest.mark.parametrize("family", SHAPES)
def test_beams_equal_those_of_generate(family, device):
    model, target, small = models(family, device, noise=NOISE.get(family, 0.03))
    decoder = Decoder(target, Small(target, small), gamma=3, temperature=0, draft_beams=6, strict=True)
    ours, theirs = check(model, decoder, prompts(2), beams=4)
    assert ours < 0.8 * theirs


@pytest.mark.slow
@pytest.mark.parametrize("beams", [2, 4, 8])
@pytest.mark.parametrize("family", SHAPES)
def test_many_beams_equal_those_of_generate(family, beams, device):
    """12 prompts for each of 18 cases, some of which end early."""
    noise = NOISE.get(family, 0.03)
    model, target, small = models(family, device, noise=noise, eos=EOS[:1], raised=1.0)
    passes = [0, 0]
    for width, batch in ((None, 1), (2 * beams, 3)):
        decoder = Decoder(target, Small(target, small), gamma=4, temperature=0, draft_beams=width, strict=True)
        texts = prompts(6, seed=beams + batch)
        for start in range(0, 6, batch):
            found = check(model, decoder, texts[start : start + batch], beams=beams, max_new_tokens=20)
            passes = [old + new for old, new in zip(passes, found, strict=True)]
    assert passes[0] < passes[1]


@pytest.mark.parametrize(("family", "width"), [("t5", 3), ("qwen3", 4), ("qwen3", 7)])
def test_a_perfect_drafter_is_never_rejected(family, width, device):
    """Its rows follow the beams: a row that kept anything of another text would draft something else."""
    _, target, _ = models(family, device)
    decoder = Decoder(target, Small(target, target), gamma=3, temperature=0, draft_beams=width, strict=True)
    metrics = decoder.generate(prompts(3), beams=3, max_new_tokens=20).metrics
    assert metrics.alpha == 1
    assert metrics.target_calls == 5
    assert metrics.block_efficiency == 4


@pytest.fixture(scope="module")
def ending(device):
    """Return models whose beams end at any time, with two end-of-sequence ids."""
    return models("llama", device, eos=EOS, raised=2.5)


@pytest.mark.parametrize(
    ("early_stopping", "length_penalty"), some(product([True, False, "never"], [0.0, 0.6, 2.0, -1.0]), 5)
)
def test_the_end_of_a_search_is_that_of_generate(ending, early_stopping, length_penalty):
    model, target, small = ending
    decoder = Decoder(target, Small(target, small), gamma=3, temperature=0, draft_beams=5, strict=True)
    settings = {"early_stopping": early_stopping, "length_penalty": length_penalty}
    check(model, decoder, prompts(3, seed=4), beams=3, **settings)


@pytest.mark.parametrize("early_stopping", [False, "never"])
def test_where_most_continuations_end_enough_others_are_looked_at(early_stopping, device):
    """With six ids that end a beam, w that go on need not be among the best 2w continuations."""
    model, target, small = models("llama", device, eos=(1, 2, 3, 4, 5, 7), raised=4.0)
    decoder = Decoder(target, Small(target, small), gamma=3, temperature=0, draft_beams=5, strict=True)
    check(model, decoder, prompts(8, seed=4), beams=3, max_new_tokens=10, early_stopping=early_stopping)


def test_tokens_that_end_a_beam_are_not_drafted():
    record, greedy = DraftRecord(1, 3, VOCAB, torch.device("cpu")), LogitsToProbs(SamplingSettings(temperature=0))
    draft = BeamDraft(DraftSearch(1, 3, EOS, [0.0]), (3,), greedy, record, [[9]])
    falling = -torch.arange(VOCAB, dtype=torch.float32)[None, None]
    assert draft.branch(falling).tokens.tolist() == [[0, 2, 3]]


def test_hypotheses_end_with_either_id_or_at_the_limit(ending):
    _, target, small = ending
    decoder = Decoder(target, Small(target, small), gamma=3, temperature=0, strict=True)
    found = decoder.generate(
        prompts(8, seed=4), beams=3, num_return_sequences=3, max_new_tokens=8, early_stopping="never"
    )
    last = {one.tokens[-1] for one in found if one.finish_reason == "eos"}
    assert last == set(EOS)
    assert {one.finish_reason for one in found} == {"eos", "length"}
    ignored = decoder.generate(prompts(2, seed=4), beams=3, max_new_tokens=8, ignore_eos=True)
    assert all(len(one.tokens) == 8 for one in ignored)


def test_one_sequence_is_returned_by_default(ending):
    model, target, small = ending
    decoder = Decoder(target, Small(target, small), gamma=2, temperature=0, strict=True)
    assert len(decoder.generate(prompts(2), beams=4, max_new_tokens=3)) == 2
    check(model, decoder, prompts(2), beams=4, returned=2)


def test_one_new_token_and_a_prompt_of_the_maximum_length(ending):
    model, target, small = ending
    decoder = Decoder(target, Small(target, small), gamma=2, temperature=0, strict=True)
    check(model, decoder, prompts(2), beams=4, max_new_tokens=1)
    result = decoder.generate([9] * 250, beams=4, max_new_tokens=20, ignore_eos=True)
    assert result[0].finish_reason == "context"
    assert len(result.tokens) == 6


@pytest.mark.parametrize("family", ["gpt2", "bart"])
def test_logits_processors_see_the_text_of_each_beam(family, device):
    model, target, small = models(family, device)
    sampling = {"temperature": 0, "repetition_penalty": 1.3}
    ours = {**sampling, "bad_words": [[9], [10, 11]], "logit_bias": {12: 1.5}, "frequency_penalty": 1e-9}
    decoder = Decoder(target, Small(target, small), gamma=2, draft_beams=4, strict=True, **ours)
    plain = Decoder(target, **ours)
    texts = prompts(2)
    settings = {"beams": 3, "max_new_tokens": 8, "num_return_sequences": 3, "min_new_tokens": 6}
    result = decoder.generate(texts, **settings)
    assert result.metrics.target_calls < plain.generate(texts, **settings).metrics.target_calls
    for number, prompt in enumerate(texts):
        rows, scores, _ = library(
            model,
            prompt,
            num_beams=3,
            num_return_sequences=3,
            max_new_tokens=8,
            min_new_tokens=6,
            repetition_penalty=1.3,
            bad_words_ids=[[9], [10, 11]],
            sequence_bias={(12,): 1.5},
        )
        mine = result[number * 3 : number * 3 + 3]
        assert [one.tokens for one in mine] == rows
        assert [one.score for one in mine] == pytest.approx(scores, abs=1e-4)


class _Session(DraftSession):
    def __init__(self, propose, **methods):
        self.steps = 0
        self._propose = propose
        for name, method in methods.items():
            setattr(self, name, method)

    def propose(self, request):
        self.steps += 1
        return self._propose(request, self.steps)


class Odd(Drafter):
    """Proposes what a function of the request and the number of the step returns."""

    drafts_trees = True

    def __init__(self, propose, session=_Session, **methods):
        super().__init__(NO_CONFIG, target_info(VOCAB))
        self.opened = lambda: session(propose, **methods)

    def open(self, session):
        return self.opened()


def random_tree(request, step):
    generator = torch.Generator().manual_seed(step)
    rows = []
    for budget in request.budget:
        count = int(torch.randint(0, 4, (), generator=generator))
        rows.append(torch.randint(0, VOCAB, (count, 3), generator=generator).tolist() if budget else [])
    return Proposal.from_continuations(rows, request.budget, request.depth)


BIAS = {(token,): 5.0 for token in range(8, VOCAB, 6)} | {(11, 26): 9.0}
"""Added to the log probability of a token, or of the second of two: enough to lift many above 0."""


@pytest.mark.parametrize(("family", "normalized"), [("gpt2", True), ("llama", False)])
def test_log_probabilities_above_0_change_no_beam(family, normalized, device):
    """A beam that the target has not read may have the best continuation of all, whatever its own score."""
    model, target, small = models(family, device, noise=0.1, eos=EOS[:1])
    chain = [SequenceBiasLogitsProcessor(BIAS), *[LogitNormalization()] * normalized]
    texts, same = prompts(4, seed=7), {"max_new_tokens": 10, "num_return_sequences": 3}
    expected = [
        library(model, prompt, num_beams=3, sequence_bias=BIAS, renormalize_logits=normalized, **same)
        for prompt in texts
    ]
    for drafter in (Small(target, small), Odd(random_tree)):
        decoder = Decoder(target, drafter, gamma=3, temperature=0, processors=chain, strict=True)
        result = decoder.generate(texts, beams=3, **same)
        for number, (rows, scores, _) in enumerate(expected):
            mine = result[number * 3 : number * 3 + 3]
            assert [one.tokens for one in mine] == rows
            assert [one.score for one in mine] == pytest.approx(scores, abs=1e-4)


def wrong_ids(request, step):
    proposal = random_tree(request, step)
    return proposal if step < 3 else Proposal(proposal.tokens + 90, proposal.lengths, proposal.q, proposal.parents)


def wrong_parents(request, step):
    proposal = random_tree(request, step)
    return proposal if step < 3 else Proposal(proposal.tokens, proposal.lengths, proposal.q, proposal.tokens + 9)


def failing(request, step):
    return random_tree(request, step) if step < 3 else 1 / 0


def raising(*_):
    raise RuntimeError("nothing to commit")


@pytest.mark.parametrize(
    ("drafter", "error"),
    [
        (Odd(random_tree), None),
        (Odd(wrong_ids), "outside the vocabulary"),
        (Odd(wrong_parents), "parent"),
        (Odd(failing), "division by zero"),
        (Odd(random_tree, commit=raising), "nothing to commit"),
        (Odd(random_tree, rollback=raising), "nothing to commit"),
        (TableDrafter(VOCAB), None),
    ],
    ids=["random", "ids", "parents", "raises", "commit", "rollback", "table"],
)
def test_nothing_that_a_drafter_does_changes_the_beams(ending, drafter, error):
    model, target, _ = ending
    decoder = Decoder(target, drafter, gamma=3, temperature=0, draft_beams=4)
    texts = prompts(2, seed=4)
    if error is None:
        check(model, decoder, texts, beams=3)
        return
    with pytest.warns(PluginWarning, match=error):
        check(model, decoder, texts, beams=3)


def test_a_drafter_of_lines_drafts_one_for_each_beam(ending):
    model, target, _ = ending
    decoder = Decoder(target, CountingDrafter(VOCAB), gamma=3, temperature=0)
    with pytest.warns(PluginWarning, match="CountingDrafter drafts lines only"):
        check(model, decoder, prompts(2, seed=4), beams=3)


class _Bookkeeper(_Session):
    """Checks that the paths it is told lead through its own nodes, to what is committed."""

    compared = 0

    def propose(self, request):
        made = super().propose(request)
        self.tokens, self.parents = made.tokens.tolist(), made.parents.tolist()
        return made

    def commit(self, outcome):
        for row, path in enumerate(outcome.paths or ()):
            for before, node in zip((-1, *path), path, strict=False):
                assert node < outcome.drafted[row]
                assert self.parents[row][node] == before
            assert tuple(self.tokens[row][node] for node in path) == outcome.committed[row][: len(path)]
            _Bookkeeper.compared += len(path)

    def rollback(self, lengths):
        pass


def share_of_the_vocabulary(request, step):
    """Draft for each of three beams a third of all tokens, so that together they draft what follows."""
    rows = [
        [[token] for token in range(row % 3, VOCAB, 3)] if most else [] for row, most in enumerate(request.budget)
    ]
    return Proposal.from_continuations(rows, request.budget, request.depth)


@pytest.mark.parametrize("width", [3, 14, 42])
def test_a_row_of_the_drafter_is_told_of_its_own_nodes_only(ending, width):
    """In the first step all rows have the same text, and what follows one may be a node of another.

    Rows that use up their budgets draft more together than the target reads, where the width is not 42.
    """
    model, target, _ = ending
    drafter = Odd(share_of_the_vocabulary, _Bookkeeper)
    decoder = Decoder(target, drafter, gamma=1, temperature=0, draft_beams=width, strict=True)
    _Bookkeeper.compared = 0
    check(model, decoder, prompts(3, seed=4), beams=3)
    assert _Bookkeeper.compared


class Oracle(AutoregressiveDrafter):
    """Scores the next token with the target itself, and checks the hidden states that it is given."""

    hidden_layers = (1,)

    def __init__(self, loaded):
        super().__init__(NO_CONFIG, target_info(VOCAB))
        self.loaded, self.compared = loaded, 0

    def logits(self, prefix):
        return self.loaded.model(torch.tensor([list(prefix)], device=self.loaded.device)).logits[0, -1]

    def open(self, session):
        inner, propose = super().open(session), super().open(session).propose

        def checked(request):
            rows = [row for row, most in zip(request.tokens, request.budget, strict=True) if most]
            states = zip(rows, request.hidden_states[LAST_HIDDEN], request.hidden_states[1], strict=False)
            for row, state, of_layer in states:
                ids = torch.tensor([row[:-1]], device=self.loaded.device)
                expected = self.loaded.model.model(ids, output_hidden_states=True)
                torch.testing.assert_close(state, expected.last_hidden_state[0, -1])
                torch.testing.assert_close(of_layer[: len(row) - 1], expected.hidden_states[1][0])
                self.compared += 1
            return propose(request)

        inner.propose = checked
        return inner


def test_an_autoregressive_drafter_and_the_hidden_states_of_its_rows(device):
    model, target, _ = models("llama", device)
    drafter = Oracle(target)
    decoder = Decoder(target, drafter, gamma=2, temperature=0, draft_beams=4, strict=True)
    ours, theirs = check(model, decoder, prompts(1), beams=3, max_new_tokens=9)
    assert (ours, theirs) == (4, 9)  # without a draft in the first step, which has no hidden states
    assert drafter.compared == 9


@pytest.mark.parametrize("family", some(["qwen3_5", "nemotron_h", "lfm2"], 1))
def test_beams_over_states_equal_those_of_generate(family):
    model = hybrid(family, VOCAB, sharpness=2.0).double()
    model.config.eos_token_id = model.generation_config.eos_token_id = None
    target = wrap_model(model)
    texts = [[3], *prompts(2, longest=40)]
    passes = []
    model.register_forward_pre_hook(lambda *_: passes.append(1))
    Decoder(target, temperature=0).generate(texts, beams=3, max_new_tokens=14)
    assert len(passes) == 3 + 13  # the prompts have other lengths
    check(model, Decoder(target, temperature=0), texts, beams=3)
    with pytest.warns(PluginWarning, match="CountingDrafter drafts nothing: a recurrent state follows one path"):
        check(model, Decoder(target, CountingDrafter(VOCAB), gamma=2, temperature=0), texts, beams=4)


@pytest.mark.parametrize(
    ("arguments", "settings", "message"),
    [
        ({"temperature": 1.0}, {}, "temperature: 1 was given, but beam search takes the best"),
        ({"draft_beams": 3}, {}, "draft_beams: 3 is less than the number of beams"),
        ({"lenience": 0.5}, {}, "lenience: beams are exact"),
        ({}, {"num_return_sequences": 5}, "5 is more than there are beams"),
        ({}, {"beams": 1, "length_penalty": 2.0}, "length_penalty: 2.0 was given, but it only has a meaning with"),
        ({"draft_beams": 4}, {"beams": 1}, "draft_beams: 4 was given, but only with beams above 1"),
        ({"gamma": "confidence"}, {}, "decides after each draft token"),
        ({"gamma": {"name": "tree", "widths": [2, 1]}}, {}, "asks for trees, but with beams the drafter's"),
    ],
)
def test_settings_that_beams_do_not_go_together_with(ending, arguments, settings, message):
    _, target, small = ending
    decoder = Decoder(target, Small(target, small), **{"gamma": 2, "temperature": 0, **arguments})
    with pytest.raises(ConfigError, match=message):
        decoder.generate([3, 4], **{"beams": 4, "max_new_tokens": 2, **settings})


def test_a_model_that_reads_no_trees_has_no_beams(device):
    target = wrap_model(tiny_model("llama", VOCAB).to(device), name="lines").row_by_row()
    with pytest.raises(ModelError, match="lines cannot read a token tree"):
        Decoder(target, temperature=0).generate([3, 4], beams=2)


class Nothing(LogitsProcessor):
    """Leaves nothing to choose from after some tokens."""

    def __init__(self, length):
        self.length = length

    def __call__(self, input_ids, scores):
        return scores if input_ids.shape[1] < self.length else torch.full_like(scores, -torch.inf)


def test_logits_that_are_no_distribution_are_an_error_where_they_matter(ending):
    _, target, small = ending
    for drafter in (None, Small(target, small)):
        decoder = Decoder(target, drafter, gamma=drafter and 3, temperature=0, processors=[Nothing(5)])
        with pytest.raises(NumericsError, match="after 5 tokens of row 1 are not a distribution"):
            decoder.generate([[8], [3, 4]], beams=3, max_new_tokens=4, ignore_eos=True)
        decoder.generate([[8], [9]], beams=3, max_new_tokens=4, ignore_eos=True)


@pytest.fixture(scope="module")
def catalogue(tmp_path_factory, device):
    target = wrap_model(tiny_model("llama", 8, seed=2, sharpness=1.2).double().to(device))
    return target, Catalogue(target, tmp_path_factory.mktemp("drafters"))


TEXTS = [[2, 3, 5, 2, 3], [4]]
THREE_BEAMS = {"beams": 3, "num_return_sequences": 3, "max_new_tokens": 10, "ignore_eos": True}


@functools.cache
def undrafted(target):
    """Return what the target's beam search finds without a drafter."""
    return Decoder(target, temperature=0).generate(TEXTS, **THREE_BEAMS)


@pytest.mark.filterwarnings("ignore:.*drafts lines only:specdec_core.PluginWarning")
@pytest.mark.parametrize("who", some(DRAFTERS, 8))
def test_every_drafter_that_ships(catalogue, who):
    target, drafters = catalogue
    decoder = Decoder(target, drafters.make(who), gamma=2, temperature=0, strict=True)
    plain, result = undrafted(target), decoder.generate(TEXTS, **THREE_BEAMS)
    assert result.sequences == plain.sequences
    assert result.metrics.target_calls <= plain.metrics.target_calls == 10
    assert result.metrics.drafted


@pytest.mark.parametrize("gamma", [{"name": "additive"}, "running-average", "cost-aware"])
def test_controllers_of_gamma_decide_on_levels(ending, gamma):
    model, target, small = ending
    decoder = Decoder(target, Small(target, small), gamma=gamma, temperature=0, strict=True)
    check(model, decoder, prompts(2, seed=4), beams=3)


class Letters:
    """A tokenizer that spells token 8 as "a", and so on."""

    def decode(self, tokens, **_):
        return "".join(chr(89 + token) for token in tokens)


def test_a_stop_string_ends_a_beam_and_the_others_go_on(ending):
    model, _, small = ending
    target = wrap_model(model, Letters())
    settings = {"beams": 3, "num_return_sequences": 3, "max_new_tokens": 12, "ignore_eos": True}
    settings |= {"early_stopping": "never", "length_penalty": 0.0}  # so that shorter ones are better
    free = Decoder(target, temperature=0).generate([[8, 9]], **settings)
    word = free[0].text[3:5]
    plain = Decoder(target, temperature=0).generate([[8, 9]], stop=word, **settings)
    drafted = Decoder(target, Small(target, small), gamma=3, temperature=0, strict=True).generate(
        [[8, 9]], stop=word, **settings
    )
    assert drafted.sequences == plain.sequences
    assert "stop" in {one.finish_reason for one in plain}
    for one in plain:
        assert one.text.find(word) in ({len(one.text) - 2} if one.finish_reason == "stop" else {-1})
