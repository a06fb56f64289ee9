"""Drafters see the hidden state from which the target predicted the last token, and the outputs of its layers."""

from dataclasses import replace

import pytest
import torch

from specdec_core.decoding.decoder import Decoder
from specdec_core.interface import LAST_HIDDEN, Drafter, DraftSession, PluginConfig, Proposal, TokenTree
from specdec_core.interface.settings import GenerationSettings, SamplingSettings
from specdec_core.models import wrap_model
from specdec_core.models.prefix_cache import PrefixCache
from specdec_drafters.hierarchical import HierarchicalDrafter
from specdec_drafters.settings import HierarchicalConfig
from tests.decoding.letters import PROMPT, tiny_tokenizer
from tests.models.hybrids import hybrid
from tests.tiny import FAMILIES, tiny_model
from tests.toys import Gamma

PROMPTS = [[2, 3, 5, 2, 3, 7, 9], [4, 6], [5, 5, 4, 3]]


class HiddenSpy(Drafter):
    """Drafts the target's greedy tokens, some of them changed, and keeps the hidden states that it sees.

    In a tree, a wrong continuation comes before the right one, which therefore moves in the cache.

    Args:
        target: The target info.
        right: The target's greedy continuation of each row.
    """

    drafts_trees = True
    hidden_layers = (0, 1)

    def __init__(self, target, right):
        super().__init__(PluginConfig(), target)
        self.right = right
        self.seen = []
        self.layers = []

    def open(self, session):
        return _Session(self)


class _Session(DraftSession):
    def __init__(self, spy):
        self.spy = spy

    def propose(self, request) -> Proposal:
        hidden = request.hidden_states[LAST_HIDDEN].clone() if self.spy.hidden_layers else None
        self.spy.seen.append(([list(row) for row in request.tokens], request.budget, hidden))
        self.spy.layers.append({layer: states.clone() for layer, states in request.hidden_states.items()})
        rows = []
        for tokens, right, budget in zip(request.tokens, self.spy.right, request.budget, strict=True):
            draft = list(right[len(tokens) : len(tokens) + budget])
            wrong = len(tokens) % 4
            if wrong < len(draft):
                draft[wrong] = (draft[wrong] + 1) % self.spy.target.vocab_size
            rows.append(draft)
        if request.tree is not None:
            vocab = self.spy.target.vocab_size
            forked = [[[(token + 2) % vocab for token in draft[:2]], draft] for draft in rows]
            return Proposal.from_continuations(forked, request.budget, request.depth)
        return Proposal.from_rows(rows)


def fresh_hidden(loaded, tokens, source):
    """Return the input of the output embedding after `tokens`, from a forward pass without a cache."""
    ids = torch.tensor([tokens], device=loaded.device)
    with torch.inference_mode(), loaded.features.capture() as seen:
        if loaded.encoder_decoder:
            loaded.model(input_ids=torch.tensor([source], device=loaded.device), decoder_input_ids=ids)
        else:
            loaded.model(input_ids=ids, use_cache=False)
    return seen[-1][0, -1]


def fresh_layers(loaded, tokens, source):
    """Return the output of each layer after each of `tokens`, from a forward pass without a cache."""
    ids = torch.tensor([tokens], device=loaded.device)
    with torch.inference_mode():
        if loaded.encoder_decoder:
            sources = torch.tensor([source], device=loaded.device)
            output = loaded.model(input_ids=sources, decoder_input_ids=ids, output_hidden_states=True)
            return [states[0] for states in output.decoder_hidden_states]
        output = loaded.model(input_ids=ids, use_cache=False, output_hidden_states=True)
    return [states[0] for states in output.hidden_states]


def check_hidden(loaded, spy, prompts):
    """Compare the hidden states that the last tokens were predicted from; return the number of rows compared."""
    checked = 0
    for tokens, budget, hidden in spy.seen:
        for row, (text, room) in enumerate(zip(tokens, budget, strict=True)):
            if room:
                expected = fresh_hidden(loaded, text[:-1], prompts[row])
                torch.testing.assert_close(hidden[row], expected, atol=2e-4, rtol=1e-3)
                checked += 1
    return checked


def check_layers(loaded, spy, prompts):
    """Compare the layers' outputs at all committed tokens but the last; return the number of rows compared."""
    checked = 0
    for (tokens, budget, _), layers in zip(spy.seen, spy.layers, strict=True):
        for row, (text, room) in enumerate(zip(tokens, budget, strict=True)):
            if room and layers:
                assert set(layers) == {*spy.hidden_layers, LAST_HIDDEN}
                expected = fresh_layers(loaded, text[:-1], prompts[row])
                for layer in spy.hidden_layers:
                    states = layers[layer]
                    seen = states[row, : len(text) - 1]
                    torch.testing.assert_close(seen, expected[layer], atol=2e-4, rtol=1e-3)
                checked += 1
    return checked


@pytest.mark.parametrize(
    ("family", "row_by_row", "gamma"),
    [
        *((family, False, Gamma(3, 0, 2)) for family in (*FAMILIES, "qwen3_5")),
        ("llama", True, Gamma(3)),
        ("llama", False, Gamma(6, tree=TokenTree.from_widths((2, 1, 1)))),
    ],
)
def test_the_hidden_state_predicted_the_last_token(family, row_by_row, gamma, device):
    """Also where the accepted path of a tree moves."""
    # A simulated GPU has no depthwise convolution.
    loaded = wrap_model(tiny_model(family).to(device) if family in FAMILIES else hybrid(family))
    loaded = loaded.row_by_row() if row_by_row else loaded
    argmax, length = SamplingSettings(temperature=0), GenerationSettings(max_new_tokens=16, ignore_eos=True)
    plain = Decoder(loaded, sampling=argmax).generate(PROMPTS, length)
    begin = [[loaded.start_id]] * 3 if loaded.encoder_decoder else PROMPTS
    right = [[*prompt, *row.tokens] for prompt, row in zip(begin, plain.sequences, strict=True)]
    spy = HiddenSpy(loaded.info(), right)
    metrics = Decoder(loaded, spy, gamma=gamma, sampling=argmax, strict=True).generate(PROMPTS, length).metrics
    assert metrics.accepted > 5
    assert metrics.rejected > 2
    first = spy.seen[0][0]
    assert all(len(tokens) > len(start) for tokens, start in zip(first, begin, strict=True)), (
        "nothing was read yet"
    )
    assert check_layers(loaded, spy, PROMPTS) == check_hidden(loaded, spy, PROMPTS) > 9


def test_rows_that_have_ended_do_not_keep_states_from_the_others():
    loaded = wrap_model(hybrid("qwen3_5"))
    plain = Decoder(loaded, temperature=0).generate(PROMPTS, max_new_tokens=24, ignore_eos=True)
    right = [[*prompt, *row.tokens] for prompt, row in zip(PROMPTS, plain.sequences, strict=True)]
    spy = HiddenSpy(loaded.info(), right)
    short = Decoder(replace(loaded, eos_ids=(right[0][len(PROMPTS[0]) + 3],)), spy, gamma=Gamma(3), temperature=0)
    ended, *others = short.generate(PROMPTS, max_new_tokens=24).sequences
    assert len(ended.tokens) == 4
    asked = [max(len(tokens[row]) for tokens, *_ in spy.seen) for row in (1, 2)]
    assert all(n >= len(one.prompt) + len(one.tokens) - 5 for n, one in zip(asked, others, strict=True))
    assert check_hidden(loaded, spy, PROMPTS) > 8


def test_states_of_tokens_that_a_cache_keeps():
    loaded = wrap_model(tiny_model("llama"))
    cache, prompts = PrefixCache(), [PROMPTS[0], PROMPTS[2]]
    Decoder(loaded, temperature=0).generate(prompts, max_new_tokens=8, cache=cache)  # keeps no states
    for rows in ((0, 1), (1, 1, 0)):
        prompts = [[*prompts[row][:-1], 8, 4] for row in rows]
        right = Decoder(loaded, temperature=0).generate(prompts, max_new_tokens=8, ignore_eos=True)
        texts = [[*one.prompt, *one.tokens] for one in right]
        spy = HiddenSpy(loaded.info(), texts)
        decoder = Decoder(loaded, spy, gamma=3, temperature=0, strict=True)
        assert (
            decoder.generate(prompts, max_new_tokens=8, ignore_eos=True, cache=cache).sequences == right.sequences
        )
        assert check_hidden(loaded, spy, prompts)
        assert check_layers(loaded, spy, prompts)
        prompts = texts
    assert min(cache.reused) > 5


def test_outputs_of_layers_are_kept_only_for_drafters_that_name_them(device):
    loaded = wrap_model(tiny_model("llama").to(device))
    spy = HiddenSpy(loaded.info(), [[], [], []])
    spy.hidden_layers = ()
    Decoder(loaded, spy, gamma=Gamma(2), strict=True).generate(PROMPTS, GenerationSettings(max_new_tokens=6))
    assert not any(spy.layers)


def test_within_a_hierarchy_hidden_states_are_the_middle_models_and_never_stale(tmp_path, device):
    target, middle = (wrap_model(tiny_model("llama", seed=seed).to(device)) for seed in (0, 1))
    middle.model.save_pretrained(tmp_path)
    spy = HiddenSpy(target.info(), [[], [], []])
    config = HierarchicalConfig(model=str(tmp_path), drafter=spy, gamma=Gamma(2))
    drafter = HierarchicalDrafter(config, target.info())
    sampling = SamplingSettings(temperature=2)
    decoder = Decoder(target, drafter, gamma=Gamma(4), sampling=sampling, strict=True)
    metrics = decoder.generate(PROMPTS, GenerationSettings(max_new_tokens=30, ignore_eos=True)).metrics
    assert metrics.rejected > 20
    checked = 0
    for tokens, budget, hidden in spy.seen:
        for row, (text, room) in enumerate(zip(tokens, budget, strict=True)):
            if room and hidden is not None:
                expected = fresh_hidden(middle, text[:-1], None)
                torch.testing.assert_close(hidden[row], expected, atol=2e-4, rtol=1e-3)
                checked += 1
    assert checked > 20
    assert check_layers(middle, spy, PROMPTS) == checked


def test_where_a_token_was_forced_there_is_no_hidden_state_of_it(device):
    """The target reads it with the next draft; a stale hidden state would be that of an earlier token."""
    loaded = wrap_model(tiny_model("llama", 6, sharpness=0.8).to(device), tiny_tokenizer())
    spy = HiddenSpy(loaded.info(), [[2] * 40])
    decoder = Decoder(loaded, spy, gamma=Gamma(3), strict=True)
    for seed in range(6):
        result = decoder.generate([PROMPT], constraint={"regex": "([ab]{5}cc)+"}, max_new_tokens=30, seed=seed)
        assert result.metrics.forced
    known = [(tokens[0], hidden[0]) for tokens, _, hidden in spy.seen if hidden is not None]
    assert len(known) > 10
    for tokens, hidden in known:
        torch.testing.assert_close(hidden, fresh_hidden(loaded, tokens[:-1], None), atol=2e-4, rtol=1e-3)
