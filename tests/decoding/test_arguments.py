"""Arguments of a decoder: plugins by name, settings as keywords, one prompt or several."""

import numpy as np
import pytest
import torch

from specdec_core import Decoder, GenerationSettings, SamplingSettings, TraceObserver
from specdec_core.interface import AcceptanceRule, ConfigError, RuleConfig
from specdec_core.interface.errors import ArgumentError
from specdec_core.models import wrap_model
from specdec_core.testing.harness.toys import Gamma
from specdec_core.verification import SpeculativeSampling
from tests.tiny import tiny_model
from tests.toys import CountingDrafter, Lenience, TableDrafter

V = 40
PROMPT = [3, 4, 5, 3, 4, 5, 3, 4]
SHORT = GenerationSettings(max_new_tokens=6, ignore_eos=True)


@pytest.fixture(scope="module")
def target():
    return wrap_model(tiny_model("llama", V))


@pytest.mark.parametrize(
    "drafter",
    ["prompt-copy", "prompt-lookup", {"name": "prompt-copy", "min_match": 1}, {"name": "prompt-lookup"}],
    ids=str,
)
def test_a_drafter_may_be_named(target, drafter):
    decoder = Decoder(target, drafter, gamma=3, temperature=0, strict=True)
    assert type(decoder.drafter).__name__ == "PromptCopyDrafter"
    result = decoder.generate(PROMPT, SHORT)
    assert result.metrics.drafted > 0
    assert result.tokens == Decoder(target, temperature=0).generate(PROMPT, SHORT).tokens


@pytest.mark.parametrize(
    "gamma", ["fixed", 5, np.int64(5), {"name": "fixed", "gamma": 5}, Gamma(5)], ids=lambda one: type(one).__name__
)
def test_gamma_may_be_a_name_a_number_a_mapping_or_an_object(target, gamma):
    trace = TraceObserver()
    Decoder(target, CountingDrafter(V), gamma=gamma, strict=True).generate(PROMPT, SHORT, observers=[trace])
    assert trace.reports[0].asked == (5,)


@pytest.mark.parametrize(
    "lenience", [0.2, {"name": "constant", "lenience": 0.2}, Lenience(0.2)], ids=lambda one: type(one).__name__
)
def test_lenience_may_be_a_number_a_mapping_or_an_object(target, lenience):
    def decoded(**given):
        return Decoder(target, TableDrafter(V), gamma=3, strict=True, **given).generate(PROMPT, SHORT)

    result = decoded(lenience=lenience)
    assert result.metrics.deviation > 0
    assert result.tokens == decoded(lenience=0.2).tokens
    assert decoded(lenience=1).metrics.deviation == decoded().metrics.deviation == 0


@pytest.mark.parametrize(
    "rule", ["token", {"name": "token"}, SpeculativeSampling()], ids=lambda one: type(one).__name__
)
def test_a_rule_may_be_a_name_a_mapping_or_an_object(target, rule):
    def decoded(**given):
        return Decoder(target, TableDrafter(V), gamma=3, strict=True, **given).generate(PROMPT, SHORT)

    assert decoded(rule=rule, lenience=0.5).tokens == decoded(lenience=0.5).tokens


class Picky(SpeculativeSampling):
    """Takes neither lenience nor a temperature."""

    def __init__(self):
        AcceptanceRule.__init__(self, PickyConfig())


class PickyConfig(RuleConfig):
    greedy_only = True


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            {"temperature": 0.5},
            "temperature: the rule 'PickyConfig' compares draft tokens with the argmax.*set temp",
        ),
        ({"temperature": 0, "lenience": 0.5}, "lenience: the rule 'PickyConfig' is not defined for len"),
    ],
)
def test_a_rule_is_refused_where_it_is_not_defined(target, arguments, said):
    with pytest.raises(ConfigError, match=said):
        Decoder(target, TableDrafter(V), gamma=3, rule=Picky(), **arguments)
    Decoder(target, TableDrafter(V), gamma=3, rule=Picky(), temperature=0, lenience=1)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"drafter": "prompt-cpoy"}, r"drafter: unknown drafter 'prompt-cpoy'. Did you mean 'prompt-copy'"),
        (
            {"drafter": {"name": "ngram", "ordr": 2}},
            r"drafter 'ngram': unknown key 'ordr'. Did you mean 'order'",
        ),
        ({"drafter": {"order": 2}}, "drafter: a drafter must be a name or a mapping with 'name'"),
        ({"gamma": -1}, "gamma: input should be greater than or equal to 0 and at most 1000; given -1"),
        ({"lenience": 2}, "lenience: input should be less than or equal to 1 and greater than 0; given 2"),
        ({"gamma": None}, "a drafter was given without gamma"),
        ({"temperature": -1}, "temperature: input should be greater than or equal to 0; given -1"),
    ],
)
def test_an_invalid_value_says_what_is_allowed(target, arguments, said):
    with pytest.raises(ConfigError, match=said):
        Decoder(target, **{"drafter": "prompt-copy", "gamma": 2, **arguments})


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"drafter": 3}, "drafter: 3 of type int was given; pass the name of a drafter .*prompt-copy"),
        ({"drafter": CountingDrafter}, r"the class CountingDrafter was given; pass an object, CountingDrafter\("),
        ({"gamma": True}, "gamma: True of type bool was given; pass a number, the name of a gamma controller"),
        ({"lenience": object()}, "or a LenienceController"),
        ({"rule": 1}, r"rule: 1 of type int was given; pass the name of a rule .*or an AcceptanceRule"),
        ({"sampling": {"temperature": 0}}, "takes SamplingSettings. Its fields are keyword arguments too: temp"),
        ({"temprature": 0}, r"unknown keyword argument 'temprature'. Did you mean 'temperature'\?"),
        ({"max_new_tokens": 3}, r"unknown keyword argument 'max_new_tokens'.* arguments of generate\(\)"),
    ],
)
def test_an_argument_that_is_not_taken_is_a_type_error(target, arguments, said):
    with pytest.raises(TypeError, match=said) as caught:
        Decoder(target, **{"drafter": "prompt-copy", "gamma": 2, **arguments})
    assert isinstance(caught.value, ArgumentError)
    assert "\n" not in str(caught.value)


def test_sampling_keywords_replace_the_fields_of_the_settings(target):
    def decoded(*args, **given):
        return Decoder(target, *args, **given).generate(PROMPT, SHORT).tokens

    assert decoded(temperature=0) == decoded(sampling=SamplingSettings(temperature=0))
    both = decoded(sampling=SamplingSettings(temperature=0.5, top_k=3), temperature=2.0)
    assert both == decoded(sampling=SamplingSettings(temperature=2.0, top_k=3))


def test_generation_keywords_replace_the_fields_of_the_settings(target):
    decoder = Decoder(target)
    assert len(decoder.generate(PROMPT, max_new_tokens=3, ignore_eos=True).tokens) == 3
    assert len(decoder.generate(PROMPT, SHORT, max_new_tokens=4).tokens) == 4
    seeded = decoder.generate(PROMPT, SHORT, seed=7).tokens
    assert seeded == decoder.generate(PROMPT, SHORT.model_copy(update={"seed": 7})).tokens
    assert seeded != decoder.generate(PROMPT, SHORT).tokens
    steps = list(decoder.stream(PROMPT, SHORT, max_new_tokens=2))
    assert len(steps) == 2


@pytest.mark.parametrize("call", ["generate", "stream"])
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"max_token": 3}, r"unknown keyword argument 'max_token'. Did you mean 'max_new_tokens'"),
        ({"temperature": 0}, r"unknown keyword argument 'temperature'.* arguments of Decoder\(\)"),
        ({"settings": 64}, "settings=64 was given; it takes GenerationSettings"),
    ],
)
def test_an_unknown_setting_of_a_generation_is_a_type_error(target, call, arguments, said):
    with pytest.raises(TypeError, match=said):
        list(getattr(Decoder(target), call)(PROMPT, **arguments))


@pytest.mark.parametrize(
    "prompt",
    [PROMPT, torch.tensor(PROMPT), np.array(PROMPT), [torch.tensor(PROMPT)]],
    ids=lambda one: type(one).__name__,
)
def test_a_single_prompt_is_one_sequence(target, prompt):
    result = Decoder(target).generate(prompt, SHORT)
    assert len(result) == 1
    assert result[0].prompt == tuple(PROMPT)
    assert result.tokens == Decoder(target).generate([PROMPT], SHORT).tokens


@pytest.mark.parametrize("prompts", [([3, 4], (5, 6)), torch.tensor([[3, 4], [5, 6]])], ids=["tuple", "tensor"])
def test_several_prompts_are_a_batch(target, prompts):
    result = Decoder(target).generate(prompts, SHORT)
    assert [one.prompt for one in result] == [(3, 4), (5, 6)]


@pytest.mark.parametrize(
    ("prompts", "said"),
    [
        (b"import", "the prompt is b'import' of type bytes; pass a text"),
        ({"input_ids": [3]}, "has the ids under `input_ids`"),
        ([{"role": "user", "content": "hi"}], "prompt 0 is .*`apply_chat_template`"),
        (None, "of type NoneType"),
        ([[3], 4], "prompt 1 is 4 of type int"),
        ([[3.5]], "of type list"),
    ],
    ids=str,
)
def test_what_is_no_prompt_is_a_type_error(target, prompts, said):
    with pytest.raises(TypeError, match=said):
        Decoder(target).generate(prompts, SHORT)


@pytest.mark.parametrize(
    "given",
    [
        {"gamma": 4},
        {"gamma": "cost-aware"},
        {"lenience": 0.5},
        {"draft_beams": 4},
        {"draft_sampling": SamplingSettings(temperature=0)},
    ],
)
def test_what_is_about_drafts_needs_a_drafter(target, given):
    with pytest.raises(ConfigError, match=f"{next(iter(given))}: given without a drafter"):
        Decoder(target, **given)
