"""`generate_with`: what plain `generate` of transformers does, in fewer forward passes."""

import copy
from collections import Counter

import pytest
import torch
from transformers import DynamicCache, LogitsProcessor, StoppingCriteria, pipeline

from specdec_core import generate_with
from specdec_core.decoding.counts import Metrics
from specdec_core.decoding.custom_generate import function as custom_generate
from specdec_core.interface import ConfigError, TokenTree
from specdec_core.interface.settings import SamplingSettings
from specdec_core.models import load_model, wrap_model
from specdec_core.testing.harness.tiny_target import uncached_logits
from tests.generation.shapes import Recorder
from tests.lossless import EOS, VOCAB, p_value
from tests.tiny import FAMILIES, tiny_model
from tests.toys import CountingDrafter, Gamma, MostlyRight, TableDrafter

ROWS = [[0, 0, 3, 4, 5], [9, 8, 7, 6, 5], [0, 7, 8, 30, 2]]
MASK = [[0, 0, 1, 1, 1], [1, 1, 1, 1, 1], [0, 1, 1, 1, 1]]


@pytest.fixture(scope="module")
def builtin():
    return load_model("builtin:target", packed=False)


def batch(model, rows=ROWS, mask=MASK):
    """Return the ids and the mask of a batch; with an encoder, padded on the right."""
    ids, mask = torch.tensor(rows, device=model.device), torch.tensor(mask, device=model.device)
    if model.config.is_encoder_decoder:
        ids, mask = ids.flip(1), mask.flip(1)
    return {"input_ids": ids, "attention_mask": mask}


class NotAfterTheEnd(MostlyRight):
    """Nobody asks it after one of the ends."""

    ends = ()

    def draft(self, tokens, budget):
        assert not set(self.ends) & set(tokens[5:])
        return super().draft(tokens, budget)


SETTINGS = {
    "plain": {},
    "processors": {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2},
    "lengths": {"min_new_tokens": 4, "bad_words_ids": [[5], [3, 4]], "forced_eos_token_id": 1},
    "further": {
        "sequence_bias": {(7,): 2.0, (3, 9): -3.0},
        "exponential_decay_length_penalty": (3, 1.2),
        "suppress_tokens": [12, 13],
        "begin_suppress_tokens": [5, 6],
        "encoder_repetition_penalty": 1.2,
        "encoder_no_repeat_ngram_size": 2,
        "watermarking_config": {"greenlist_ratio": 0.4, "bias": 2.0},
    },
    "several": {"num_return_sequences": 2, "do_sample": True, "top_k": 1},
}


@pytest.mark.parametrize(
    ("family", "setting"),
    [
        *[(family, setting) for family in ("gpt2", "t5") for setting in SETTINGS],
        *[
            (family, setting)
            for number, family in enumerate(family for family in FAMILIES if family not in ("gpt2", "t5"))
            for setting in ("plain", [*SETTINGS][1 + number % (len(SETTINGS) - 1)])
        ],
    ],
)
def test_tokens_scores_and_streams_are_those_of_generate(family, setting, device):
    model = tiny_model(family).to(device)
    # An end that the rows reach at different positions.
    free = model.generate(**batch(model), max_new_tokens=12, do_sample=False, eos_token_id=None)[:, -12:]
    early = set(free[:, :4].flatten().tolist())
    ends = [1, *[next((token for token in row[4:] if token not in early), 1) for row in free[:2].tolist()]]
    settings = {
        "max_new_tokens": 12,
        "do_sample": False,
        "eos_token_id": ends,
        "pad_token_id": 0,
        "return_dict_in_generate": True,
        "output_scores": True,
        "output_logits": True,
        **SETTINGS[setting],
    }
    streams = [Recorder(), Recorder()]
    expected = model.generate(**batch(model), streamer=streams[0], **settings)
    skip = [0] * 9 if model.config.is_encoder_decoder else [row.index(1) for row in MASK for _ in range(2)]
    kept = skip if setting == "several" else skip[::2]
    drafter = NotAfterTheEnd([row[n:] for row, n in zip(expected.sequences.tolist(), kept, strict=False)])
    drafter.ends = ends
    function = generate_with(drafter=drafter, gamma=Gamma(4, 1, 3), strict=True)
    output = model.generate(**batch(model), streamer=streams[1], custom_generate=function, **settings)
    assert type(output) is type(expected)
    assert output.sequences.tolist() == expected.sequences.tolist()
    assert streams[1].got == streams[0].got
    done = torch.zeros(len(output.sequences), dtype=torch.bool, device=device)
    begin = output.sequences.shape[1] - len(output.scores)
    for position, (scores, logits) in enumerate(zip(output.scores, output.logits, strict=True)):
        torch.testing.assert_close(scores[~done], expected.scores[position][~done], atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(logits[~done], expected.logits[position][~done], atol=1e-4, rtol=1e-4)
        done |= torch.isin(output.sequences[:, begin + position], torch.tensor(ends, device=device))
    assert output.metrics == function.metrics
    assert output.metrics.target_calls < len(output.scores)
    assert output.metrics.tokens == sum(
        min([row.index(end) + 1 for end in ends if end in row], default=len(row))
        for row in output.sequences[:, begin:].tolist()
    )


def test_ids_are_returned_unless_an_output_is_asked_for(device):
    model = tiny_model("gpt2").to(device)
    ids = model.generate(**batch(model), max_new_tokens=4, custom_generate=generate_with(), do_sample=False)
    assert isinstance(ids, torch.Tensor)
    assert ids.tolist() == model.generate(**batch(model), max_new_tokens=4, do_sample=False).tolist()
    settings = {"max_new_tokens": 4, "return_dict_in_generate": True, "custom_generate": generate_with()}
    output = model.generate(**batch(model), **settings)
    assert output.scores is None
    assert list(output) == ["sequences"]


@pytest.mark.parametrize("draft", ["dense", "tree"])
def test_scores_belong_to_the_tokens_that_were_chosen(draft, device):
    model = tiny_model("gpt2", VOCAB, sharpness=0.8).to(device)
    drafter, gamma = DRAFTS[draft]
    function = generate_with(drafter=drafter(VOCAB), gamma=gamma, strict=True)
    settings = {"max_new_tokens": 20, "do_sample": True, "temperature": 0.5, "top_k": 3, "eos_token_id": None}
    ids = torch.tensor([[2, 3, 5], [4, 3, 2]], device=device)
    torch.manual_seed(1)
    output = model.generate(
        ids,
        custom_generate=function,
        return_dict_in_generate=True,
        output_scores=True,
        output_logits=True,
        **settings,
    )
    expected = model(output.sequences).logits[:, 2:-1]
    torch.testing.assert_close(torch.stack(output.logits, dim=1), expected, atol=1e-4, rtol=1e-4)
    for logits, scores in zip(output.logits, output.scores, strict=True):
        kept = logits >= logits.topk(3).values[:, -1:]
        torch.testing.assert_close(scores, torch.where(kept, 2 * logits, -torch.inf))
    assert function.metrics.accepted > 4


# --- the distribution


def distribution(model, row, mask, length, settings):
    """Return each continuation of a prompt with its probability: forward passes without a cache, and processors as
    `generate` prepares them, called on ids of one length."""
    loaded = wrap_model(model)
    encoder = loaded.encoder_decoder
    text = [token for token, real in zip(row, mask, strict=True) if real]
    padding = [] if encoder else row[: len(row) - len(text)]
    begin = [loaded.start_id] if encoder else text
    finished, unfinished = {}, {(): 1.0}
    for _ in range(length):
        prefixes = [[*begin, *tokens] for tokens in unfinished]
        logits = uncached_logits(loaded, prefixes, text)[:, -1].float()
        found = []

        def catch(model, input_ids, logits_processor, found=found, **_):
            found.append(logits_processor)
            return input_ids

        given = {
            "input_ids": torch.tensor([row] * len(prefixes), device=model.device),
            "attention_mask": torch.tensor([mask] * len(prefixes), device=model.device),
        }
        model.generate(**given, custom_generate=catch, **settings)
        ids = torch.tensor([[*padding, *prefix] for prefix in prefixes], device=model.device)
        p = torch.softmax(found[0](ids, logits.clone()).double(), dim=-1).tolist()
        longer = {}
        for (tokens, weight), row_p in zip(unfinished.items(), p, strict=True):
            for token, probability in enumerate(row_p):
                if probability > 0:
                    group = finished if token == EOS else longer
                    group[(*tokens, token)] = weight * probability
        unfinished = longer
    return finished | unfinished


SAMPLED = {
    "temperature-1": {"top_k": 0},
    "temperature-0.6": {"top_k": 0, "temperature": 0.6},
    "warpers": {"top_k": 4, "temperature": 0.8, "top_p": 0.9},
    # The penalty leaves out the padding of each row, and n-grams read it: both go by the row of the batch.
    "processors": {"top_k": 5, "repetition_penalty": 1.8, "no_repeat_ngram_size": 2, "min_new_tokens": 2},
}
DRAFTS = {
    "dense": (TableDrafter, Gamma(2, 1, 3, 0)),
    "point-mass": (CountingDrafter, Gamma(3, 2)),
    "tree": (TableDrafter, Gamma(5, tree=TokenTree((-1, -1, 0, 0, 1)))),
}
SAMPLED_ROWS = [[0, 0, 2, 3, 5], [4, 3, 2, 4, 3]]
SAMPLED_MASK = [[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]]


@pytest.mark.parametrize(
    ("family", "setting", "draft"),
    [
        ("gpt2", "processors", "dense"),
        pytest.param("gpt2", "processors", "tree", marks=pytest.mark.slow),
        pytest.param("gpt2", "temperature-0.6", "point-mass", marks=pytest.mark.slow),
        pytest.param("t5", "processors", "point-mass", marks=pytest.mark.slow),
        ("t5", "warpers", "tree"),
        ("t5", "temperature-1", "dense"),
    ],
)
def test_sampling_follows_the_distribution_of_generate(family, setting, draft, device):
    model = tiny_model(family, VOCAB, sharpness=0.8).to(device)
    drafter, gamma = DRAFTS[draft]
    drafts = SamplingSettings(temperature=0) if setting == "temperature-1" else None
    function = generate_with(drafter=drafter(VOCAB), gamma=gamma, draft_sampling=drafts, strict=True)
    settings = {"do_sample": True, "max_new_tokens": 3, "pad_token_id": 0, **SAMPLED[setting]}
    given = batch(model, SAMPLED_ROWS, SAMPLED_MASK)
    expected = [
        distribution(model, row, mask, 3, settings)
        for row, mask in zip(given["input_ids"].tolist(), given["attention_mask"].tolist(), strict=True)
    ]
    seen, size = [Counter(), Counter()], 500
    torch.manual_seed(7)
    for _ in range(4):
        ids = model.generate(**given, custom_generate=function, num_return_sequences=size, **settings)
        for n, row in enumerate(ids[:, -3:].tolist()):
            seen[n // size][tuple(row[: row.index(EOS) + 1] if EOS in row else row)] += 1
        values = [p_value(*pair) for pair in zip(seen, expected, strict=True)]
        if min(values) > 0.05:
            break
    assert min(values) > 1e-4
    assert 0 < function.metrics.alpha < 1


def test_a_seed_of_torch_repeats_the_text_and_greedy_decoding_draws_nothing(device):
    model = tiny_model("llama").to(device)
    function = generate_with(drafter=TableDrafter(40), gamma=3)
    texts = []
    for seed in (5, 5, 6):
        torch.manual_seed(seed)
        settings = {"max_new_tokens": 12, "do_sample": True, "top_k": 0}
        texts.append(model.generate(**batch(model), custom_generate=function, **settings).tolist())
    assert texts[0] == texts[1] != texts[2]
    torch.manual_seed(5)
    before = torch.get_rng_state()
    model.generate(**batch(model), custom_generate=function, max_new_tokens=4, do_sample=False)
    assert torch.equal(before, torch.get_rng_state())


def test_a_row_of_the_batch_has_its_own_constraint(device):
    model = tiny_model("gpt2").to(device)
    asked = set()

    def allowed(row, ids):
        asked.add(row)
        return [10 * row + (len(ids) + 1) % 3, 10 * row + len(ids) % 3]

    settings = {"max_new_tokens": 6, "do_sample": False, "prefix_allowed_tokens_fn": allowed}
    expected = model.generate(**batch(model), **settings)
    function = generate_with(drafter=TableDrafter(40), gamma=Gamma(2, 3, 1), strict=True)
    assert model.generate(**batch(model), custom_generate=function, **settings).tolist() == expected.tolist()
    assert asked == {0, 1, 2}


# --- stopping


class AtColumns(StoppingCriteria):
    """Ends each row at a column of its own, and counts on being called once for each column."""

    def __init__(self, ends):
        self.ends, self.seen = ends, []

    def __call__(self, input_ids, scores, **kwargs):
        self.seen.append(input_ids.tolist())
        done = [len(self.seen) >= end for end in self.ends]
        return torch.tensor(done, device=input_ids.device)


@pytest.mark.parametrize("eos", [None, 1])
@pytest.mark.parametrize("family", ["gpt2", "t5"])
def test_stopping_criteria_see_every_column_once(family, eos, device):
    # With an end-of-sequence id, padding follows the end of a row; without one, rows go on until all have ended.
    model = tiny_model(family).to(device)
    settings = {"max_new_tokens": 20, "do_sample": False, "eos_token_id": eos, "pad_token_id": 0}
    plain, ours = AtColumns([3, 9, 5]), AtColumns([3, 9, 5])
    expected = model.generate(**batch(model), stopping_criteria=[plain], **settings)
    long = model.generate(**batch(model), **{**settings, "eos_token_id": None}).tolist()
    begins = [0, 0, 0] if family == "t5" else [2, 0, 1]
    drafter = MostlyRight([row[begin:] for row, begin in zip(long, begins, strict=True)])
    function = generate_with(drafter=drafter, gamma=Gamma(4, 1, 3), strict=True)
    ids = model.generate(**batch(model), stopping_criteria=[ours], custom_generate=function, **settings)
    assert ids.tolist() == expected.tolist()
    assert ours.seen == plain.seen
    assert function.metrics.tokens == (17 if eos else 27)
    assert function.metrics.target_calls < 9


def test_stop_strings_need_the_tokenizer_once_more(builtin):
    model, tokenizer = builtin.model, builtin.tokenizer
    settings = {"max_new_tokens": 24, "do_sample": False}
    one = tokenizer(["import os\nimport "], return_tensors="pt", return_token_type_ids=False)
    whole = model.generate(**one, **settings)
    settings |= {"stop_strings": tokenizer.decode(whole[0, -12:-9]), "tokenizer": tokenizer}
    expected = model.generate(**one, **settings).tolist()
    assert len(expected[0]) < whole.shape[1]
    drafter = {"name": "transformer", "model": "builtin:drafter"}
    function = generate_with(drafter=drafter, gamma=5, tokenizer=tokenizer)
    assert model.generate(**one, custom_generate=function, **settings).tolist() == expected
    with pytest.raises(ConfigError, match=r"generate_with\(\.\.\., tokenizer=tokenizer\)"):
        model.generate(**one, custom_generate=generate_with(), **settings)


def test_the_time_limit_of_generate_ends_it(device):
    model = tiny_model("gpt2").to(device)
    settings = {"max_new_tokens": 200, "do_sample": False, "max_time": 1e-9, "eos_token_id": None}
    ids = model.generate(**batch(model), custom_generate=generate_with(), **settings)
    assert ids.shape[1] == len(ROWS[0]) + 1


# --- the model


def test_a_model_is_wrapped_once_and_its_own_weights_are_used(device):
    model = tiny_model("llama").to(device)
    built = []

    class Built(TableDrafter):
        def open(self, session):
            built.append(session)
            return super().open(session)

    calls = []
    model.register_forward_pre_hook(lambda *_: calls.append(1))
    function = generate_with(drafter=Built(40), gamma=2)
    model.generate(**batch(model), custom_generate=function, max_new_tokens=8, do_sample=False)
    first, count = function.metrics, len(calls)
    assert count == first.target_calls
    model.generate(**batch(model), custom_generate=copy.deepcopy(function), max_new_tokens=8, do_sample=False)
    assert len(calls) == 2 * count
    assert len(built) == 2
    assert function.metrics.target_calls == 2 * first.target_calls
    with torch.no_grad():
        model.lm_head.weight.mul_(-1)
    settings = {"max_new_tokens": 8, "do_sample": False}
    changed = model.generate(**batch(model), custom_generate=function, **settings)
    assert changed.tolist() == model.generate(**batch(model), **settings).tolist()


def test_the_encoder_runs_once(device):
    model = tiny_model("t5").to(device)
    calls = []
    model.encoder.register_forward_pre_hook(lambda *_: calls.append(1))
    function = generate_with(drafter=TableDrafter(40), gamma=2)
    model.generate(**batch(model), custom_generate=function, max_new_tokens=4)  # which wraps the model
    calls.clear()
    model.generate(**batch(model), custom_generate=function, max_new_tokens=4)
    assert len(calls) == 1
    encoded = model.encoder(**batch(model))
    encoded.last_hidden_state = -encoded.last_hidden_state
    settings = {"encoder_outputs": encoded, "max_new_tokens": 8, "do_sample": False}
    expected = model.generate(**batch(model), **settings).tolist()
    assert model.generate(**batch(model), custom_generate=function, **settings).tolist() == expected
    mask = batch(model)["attention_mask"]  # and what it has read is not known
    assert model.generate(attention_mask=mask, custom_generate=function, **settings).tolist() == expected


def test_an_encoder_may_have_its_padding_on_the_left_and_rows_of_their_own(monkeypatch):
    # BART counts the positions of its padding; rows that run one by one see the same states.
    model = tiny_model("bart")
    ids, mask = torch.tensor(ROWS), torch.tensor(MASK)
    settings = {"input_ids": ids, "attention_mask": mask, "max_new_tokens": 8, "do_sample": False}
    expected = model.generate(**settings).tolist()
    function = generate_with(drafter=TableDrafter(40), gamma=Gamma(2, 0, 3), strict=True)
    assert model.generate(custom_generate=function, **settings).tolist() == expected
    monkeypatch.setattr(
        custom_generate, "wrap_model", lambda *given, **other: wrap_model(*given, **other).row_by_row()
    )
    function = generate_with(drafter=TableDrafter(40), gamma=Gamma(2, 0, 3), strict=True)
    assert model.generate(custom_generate=function, **settings).tolist() == expected


def test_a_drafter_sees_the_source_of_each_row():
    model = tiny_model("t5")
    seen = []

    class Reading(TableDrafter):
        def open(self, session):
            seen.extend(session.sources)
            return super().open(session)

    function = generate_with(drafter=Reading(40), gamma=2, strict=True)
    settings = {"max_new_tokens": 4, "do_sample": True, "num_return_sequences": 2}
    model.generate(**batch(model), custom_generate=function, **settings)
    texts = [(5, 4, 3), (5, 6, 7, 8, 9), (2, 30, 8, 7)]
    assert [tuple(row) for row in seen] == [text for text in texts for _ in range(2)]


def test_a_decoder_may_begin_with_several_tokens(device):
    model = tiny_model("t5").to(device)
    begin = torch.tensor([[0, 5, 6], [0, 7, 8], [0, 9, 3]], device=device)
    settings = {"decoder_input_ids": begin, "max_new_tokens": 8, "do_sample": False}
    expected = model.generate(**batch(model), **settings).tolist()
    function = generate_with(drafter=TableDrafter(40), gamma=2, strict=True)
    assert model.generate(**batch(model), custom_generate=function, **settings).tolist() == expected


# --- what it does not do


class Counting(LogitsProcessor):
    def __init__(self):
        self.calls = 0

    def __call__(self, input_ids, scores):
        self.calls += 1
        return scores + torch.arange(scores.shape[1]) * self.calls


UNSUPPORTED = {
    "num_beams": 2,
    "assistant_model": tiny_model("gpt2", seed=1),
    "dola_layers": "high",
    "guidance_scale": 1.5,
    "output_attentions": True,
    "synced_gpus": True,
    "prefill_chunk_size": 2,
    "token_type_ids": torch.zeros(3, 5, dtype=torch.long),
}
"""One for each place where they are looked for; `tests.generation` passes others."""
REFUSED = {
    "right padding": ({"attention_mask": torch.tensor(MASK).flip(1)}, "attention_mask of row 0 has a 0 after a 1"),
    "nothing": ({"attention_mask": torch.tensor([[1] * 5, [0] * 5, [1] * 5])}, "row 1 is all zeros"),
    "inferred": (
        {"input_ids": torch.tensor([[5, 0, 6]]), "attention_mask": None},
        r"attention_mask, which `generate` made from pad_token_id=0 \(pass one .* of row 0 has a 0 after a 1",
    ),
    "state": ({"logits_processor": [Counting()]}, "Counting gives other scores"),
    "cache": ({"past_key_values": DynamicCache()}, "(past_key_values|cache) was given, which"),
    "length": ({"max_new_tokens": 300}, r"takes 256 in all. Pass max_new_tokens of at most 251"),
    **{
        name: ({name: value}, rf"^generate_with: {name}\b.* was given, which")
        for name, value in UNSUPPORTED.items()
    },
}


@pytest.mark.filterwarnings("ignore")  # transformers has its own to say about some
@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_honoured_is_refused(case, monkeypatch):
    asked, message = REFUSED[case]
    model = tiny_model("gpt2")
    # What GPT-2 does not take still comes to us with other models.
    monkeypatch.setattr(model, "_validate_model_kwargs", lambda *_: None)
    function = generate_with(drafter=CountingDrafter(40), gamma=2)
    settings = {**batch(model), "max_new_tokens": 4, "do_sample": False, "pad_token_id": 0, **asked}
    with pytest.raises(ConfigError, match=message):
        model.generate(custom_generate=function, **settings)


# --- libraries on top


@pytest.mark.slow
def test_a_pipeline_decodes_with_it(builtin):
    writer = pipeline("text-generation", model=builtin.model, tokenizer=builtin.tokenizer)
    prompts = ["import os\nimport ", "def main():\n    return "]
    settings = {"max_new_tokens": 24, "do_sample": False, "return_full_text": False}
    function = generate_with(drafter={"name": "transformer", "model": "builtin:drafter"}, gamma=4, strict=True)
    assert writer(prompts, custom_generate=function, **settings) == writer(prompts, **settings)
    assert isinstance(function.metrics, Metrics)
    assert function.metrics.target_calls < 0.7 * function.metrics.tokens
