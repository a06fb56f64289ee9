"""Sampling settings give the distribution that the model's own `generate` samples from."""

import pytest
import torch
from pydantic import ValidationError
from transformers.generation import logits_process as hf

from specdec_core.decoding.decoder import Decoder
from specdec_core.interface import ConfigError
from specdec_core.interface.settings import GenerationSettings, SamplingSettings
from specdec_core.models import wrap_model
from specdec_core.sampling.logits import LogitsToProbs, argmax
from tests.tiny import tiny_model
from tests.toys import CountingDrafter, Gamma, TableDrafter

V = 40
LOGITS = torch.randn(6, V, generator=torch.Generator().manual_seed(2)) * 2


LOWERING = {
    "penalty": hf.RepetitionPenaltyLogitsProcessor(1.3),
    "reward": hf.RepetitionPenaltyLogitsProcessor(0.5),
    "encoder penalty": hf.EncoderRepetitionPenaltyLogitsProcessor(1.3, torch.tensor([[5, 6]])),
    "n-grams": hf.NoRepeatNGramLogitsProcessor(2),
    "encoder n-grams": hf.EncoderNoRepeatNGramLogitsProcessor(1, torch.tensor([[5, 6]])),
    "bad words": hf.NoBadWordsLogitsProcessor([[5], [3, 7]]),
    "allowed": hf.PrefixConstrainedLogitsProcessor(lambda *_: [5, 6], 1),
    "length": hf.MinLengthLogitsProcessor(9, 1, "cpu"),
    "new tokens": hf.MinNewTokensLengthLogitsProcessor(2, 9, 1, "cpu"),
    "at the beginning": hf.SuppressTokensAtBeginLogitsProcessor([5], 3, "cpu"),
    "first": hf.ForcedBOSTokenLogitsProcessor(5),
    "last": hf.ForcedEOSTokenLogitsProcessor(4, 1, "cpu"),
    "suppressed": hf.SuppressTokensLogitsProcessor([5], "cpu"),
    "temperature": hf.TemperatureLogitsWarper(0.5),
    "normalized": hf.LogitNormalization(),
}
LIFTING = {
    "bias": hf.SequenceBiasLogitsProcessor({(5,): 3.0}),
    "decay": hf.ExponentialDecayLengthPenalty((1, 3.0), 5, 0),
    "filter": hf.TopKLogitsWarper(5, filter_value=1.0),
}


@pytest.mark.parametrize("name", LOWERING)
def test_which_processors_keep_log_probabilities_at_most_0(name):
    own = LogitsToProbs(SamplingSettings(temperature=0), [LOWERING[name]])
    assert own.never_positive
    assert own.scores(LOGITS.log_softmax(dim=-1), [[3, 4, 3]] * len(LOGITS)).max() <= 0


@pytest.mark.parametrize("name", LIFTING)
def test_which_processors_may_lift_log_probabilities_above_0(name):
    settings, prefixes = SamplingSettings(temperature=0), [[3, 4, 3]] * len(LOGITS)
    own = LogitsToProbs(settings, [LIFTING[name], hf.TemperatureLogitsWarper(0.9)])
    assert not own.never_positive
    assert own.scores(LOGITS.log_softmax(dim=-1), prefixes).max() > 0
    normalized = LogitsToProbs(settings, [LIFTING[name], hf.LogitNormalization()])
    assert normalized.never_positive
    assert normalized.scores(LOGITS.log_softmax(dim=-1), prefixes).max() <= 0


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 0.7},
        {"top_k": 5},
        {"top_p": 0.8},
        {"min_p": 0.1},
        {"temperature": 0.7, "top_p": 0.9},
        {"temperature": 1.4, "top_k": 12, "top_p": 0.9, "min_p": 0.05, "repetition_penalty": 1.5},
    ],
)
def test_probabilities_are_those_of_the_librarys_generate(settings):
    """The distribution of `generate` is read by a processor appended to its own."""
    model = tiny_model("llama", V)
    seen = []

    class Last(hf.LogitsProcessor):
        def __call__(self, input_ids, scores):
            seen.append(torch.softmax(scores, dim=-1))
            return scores

    prompt = torch.tensor([[3, 4, 5, 6, 3]])
    original = model._get_logits_processor

    def with_last(*args, **kwargs):
        processors = original(*args, **kwargs)
        processors.append(Last())
        return processors

    model._get_logits_processor = with_last
    given = {"top_k": 0, "top_p": 1.0, **settings}
    model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=True, max_new_tokens=1, **given)
    with torch.inference_mode():
        logits = model(prompt).logits[:, -1]
    ours = LogitsToProbs(SamplingSettings(**settings))(logits, prompt.tolist())
    torch.testing.assert_close(ours, seen[0])


def test_greedy_is_one_hot_and_ties_go_to_the_lowest_id():
    logits = torch.tensor([[0.0, 2.0, 2.0, 1.0], [5.0, 2.0, 2.0, 1.0]])
    p = LogitsToProbs(SamplingSettings(temperature=0, top_k=2))(logits)
    assert p.tolist() == [[0, 1, 0, 0], [1, 0, 0, 0]]
    assert argmax(logits).tolist() == [1, 0]


@pytest.mark.parametrize("settings", [{}, {"temperature": 0}, {"temperature": 0.5}])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_nan_and_infinity_give_nan(settings, value):
    logits = LOGITS.clone()
    logits[1] = value
    p = LogitsToProbs(SamplingSettings(**settings))(logits)
    assert not torch.isfinite(p[1].sum())
    assert torch.isfinite(p[[0, 2, 3, 4, 5]]).all()


@pytest.mark.parametrize("temperature", [0, 0.8])
def test_half_precision_logits_are_adjusted_in_float32(temperature):
    p = LogitsToProbs(SamplingSettings(temperature=temperature))(LOGITS.bfloat16())
    assert p.dtype == torch.float32
    torch.testing.assert_close(p.sum(dim=1), torch.ones(6))


def test_each_row_has_its_own_prefix():
    standardize = LogitsToProbs(SamplingSettings(repetition_penalty=2.0))
    assert standardize.needs_prefix
    prefixes = [[n, n + 1] for n in range(6)]
    p = standardize(LOGITS, prefixes)
    for row, prefix in enumerate(prefixes):
        expected = LOGITS[row].clone()
        for token in prefix:
            expected[token] = expected[token] / 2 if expected[token] > 0 else expected[token] * 2
        torch.testing.assert_close(p[row], torch.softmax(expected, dim=0))
    with pytest.raises(ValueError, match="prefix"):
        standardize(LOGITS)


@pytest.mark.parametrize("gamma", [0, 3])
def test_any_of_the_librarys_processors_works_as_in_generate(gamma):
    model = tiny_model("qwen3", V)
    processors = [hf.NoRepeatNGramLogitsProcessor(2), hf.SuppressTokensLogitsProcessor([7, 9])]
    decoder = Decoder(
        wrap_model(model),
        CountingDrafter(V),
        gamma=Gamma(gamma),
        sampling=SamplingSettings(temperature=0, repetition_penalty=1.3),
        processors=processors,
        strict=True,
    )
    prompts = [[3, 4, 5, 3, 4], [8, 8]]
    rows = decoder.generate(prompts, GenerationSettings(max_new_tokens=20)).sequences
    for prompt, row in zip(prompts, rows, strict=True):
        ids = torch.tensor([prompt])
        expected = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=20,
            do_sample=False,
            repetition_penalty=1.3,
            no_repeat_ngram_size=2,
            suppress_tokens=[7, 9],
        )
        assert list(row.tokens) == expected[0, len(prompt) :].tolist()


@pytest.mark.parametrize(
    "bad",
    [
        {"temperature": -0.1},
        {"temperature": float("inf")},
        {"top_p": 1.1},
        {"top_q": 1},
    ],
)
def test_settings_out_of_range_are_refused(bad):
    with pytest.raises(ValidationError):
        SamplingSettings(**bad)


class Counting(hf.LogitsProcessor):
    """Favors a token more with every call."""

    def __init__(self):
        self.calls = 0

    def __call__(self, input_ids, scores):
        self.calls += 1
        return scores + self.calls * torch.nn.functional.one_hot(torch.tensor(7), scores.shape[1])


class Remembering(hf.LogitsProcessor):
    """Forbids the last token of the call before."""

    last = 0

    def __call__(self, input_ids, scores):
        scores = scores.index_fill(1, torch.tensor([self.last]), -torch.inf)
        self.last = int(input_ids[0, -1])
        return scores


class InPlace(hf.LogitsProcessor):
    """Writes into the scores that it is given."""

    def __call__(self, input_ids, scores):
        scores[:, input_ids.sum() % V] += 9
        return scores


class OwnTopK(hf.TopKLogitsWarper):
    """Derives from one that reads the scores alone, and reads the prefix."""

    def __call__(self, input_ids, scores):
        return super().__call__(input_ids, InPlace()(input_ids, scores.clone()))


def decode(processor, drafter=None, gamma=None, temperature=0):
    decoder = Decoder(
        wrap_model(tiny_model("llama", V)), drafter, gamma=gamma, temperature=temperature, processors=[processor]
    )
    result = decoder.generate([[3, 4, 5], [7, 8]], max_new_tokens=12, ignore_eos=True)
    return [row.tokens for row in result.sequences]


class Budget(hf.LogitsProcessor):
    """Forces a token at a call that its first calls say nothing of."""

    def __init__(self):
        self.seen = Seen()

    def __call__(self, input_ids, scores):
        self.seen.calls += 1
        return scores.index_fill(1, torch.tensor([7]), torch.inf) if self.seen.calls == 36 else scores


class Seen:
    calls = 0


class Sticky(hf.LogitsProcessor):
    """Remembers that a text was long enough, which a draft that is rejected may have been."""

    done = False

    def __call__(self, input_ids, scores):
        self.done = self.done or input_ids.shape[1] > 12
        return scores.index_fill(1, torch.tensor([7]), 100.0) if self.done else scores


def enclosing():
    calls = 0

    def count(input_ids, scores):
        nonlocal calls
        calls += 1
        return scores

    return count


@pytest.mark.parametrize("make", [Counting, Remembering, Budget, Sticky, enclosing])
def test_a_processor_that_keeps_state_is_refused(make):
    for drafter in (None, CountingDrafter(V), TableDrafter(V)):
        with pytest.raises(ConfigError, match=f"{type(make()).__name__}.* keeps state"):
            decode(make(), drafter, drafter and 3)


class Prepared(hf.LogitsProcessor):
    """Prepares itself in its first call, and has a setting that its user may change between texts."""

    bias = None
    token = 7

    def __call__(self, input_ids, scores):
        if self.bias is None:
            self.bias = torch.arange(scores.shape[1]) / 7
        return (scores + self.bias).index_fill(1, torch.tensor([self.token]), -torch.inf)


def test_a_processor_may_prepare_itself_and_be_changed_by_its_user():
    decoder = Decoder(wrap_model(tiny_model("llama", V)), processors=[processor := Prepared()], temperature=0)
    for processor.token in range(0, V, 5):
        assert processor.token not in decoder.generate([[3, 4]], max_new_tokens=12).sequences[0].tokens


@pytest.mark.parametrize("processor", [InPlace(), OwnTopK(5)])
def test_a_processor_may_write_into_its_scores_and_read_the_prefix(processor):
    alone = decode(processor)
    assert decode(processor, CountingDrafter(V), 3) == alone
    assert alone != decode(hf.TopKLogitsWarper(5))
