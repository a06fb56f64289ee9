"""Constrained texts have the distribution of the masked, renormalized target. Forced tokens are free.

What is legal is said here by a list of all texts, not by the library that the code asks.
"""

from collections import Counter
from functools import lru_cache
from random import Random

import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from specdec_core.decoding.decoder import Decoder
from specdec_core.decoding.observers import TraceObserver
from specdec_core.interface import ConfigError, DeterministicDrafter, TokenTree
from specdec_core.interface.constraint import Constraint
from specdec_core.interface.errors import ArgumentError
from specdec_core.interface.settings import GenerationSettings, SamplingSettings
from specdec_core.models import wrap_model
from specdec_core.sampling.constraints import open_constraints
from specdec_core.testing.harness.enumeration import adjusted, p_of_sequences
from specdec_core.testing.harness.tiny_target import uncached_logits
from tests.decoding.letters import AB, EOS, PROMPT, SPELLING, VOCAB, A, B, C, tiny_tokenizer
from tests.drafters.hierarchies import hierarchy
from tests.models.hybrids import hybrid
from tests.pairwise import some
from tests.tiny import tiny_model
from tests.toys import (
    NO_CONFIG,
    CandidatesDrafter,
    CountingDrafter,
    DrawnDrafter,
    Gamma,
    SparseDrafter,
    TableDrafter,
    target_info,
)

COUNT = 200
"""Size of a sample; it is doubled up to three times where it fits badly."""

MIDDLES = ["", "a", "ab", "bb"]
TEXTS = {
    # The end of sequence is legal after the c, and the text can go on by one more letter.
    "[ab](a|ab|bb)?c[ab]?": [x + y + "c" + z for x in "ab" for y in MIDDLES for z in ("", "a", "b")],
    # Two tokens are forced at the beginning and one at the end, which nothing may follow.
    "cc(a|b|ba)b?c": ["cc" + x + y + "c" for x in ("a", "b", "ba") for y in ("", "b")],
    # After two letters, the c is the only token beside the end of sequence: it is not forced.
    "[ab]{2}c?": [x + y + z for x in "ab" for y in "ab" for z in ("", "c")],
}
FREE, FORCED, ENDING = TEXTS
SETTINGS = {
    "greedy": SamplingSettings(temperature=0),
    "temperature-1": SamplingSettings(temperature=1),
    "temperature-0.7-top-p-0.6": SamplingSettings(temperature=0.7, top_p=0.6),
    "top-k-2": SamplingSettings(top_k=2),
}


@pytest.fixture(scope="module")
def target(request, device):
    family = getattr(request, "param", "gpt2")
    if family == "gpt2":
        return wrap_model(tiny_model(family, VOCAB, sharpness=0.8).to(device), tiny_tokenizer())
    # A simulated GPU has no depthwise convolution.
    return wrap_model(hybrid(family, VOCAB, sharpness=2.0), tiny_tokenizer())


with_states = pytest.mark.parametrize("target", ["gpt2", "qwen3_5"], indirect=True)


def legal_after(texts, text):
    """Return the ids that may follow a text; none if nothing may."""
    rest = {other[len(text) :] for other in texts if other.startswith(text)}
    if rest == {""}:
        return []
    legal = [token for token in (A, B, C, AB) if any(one.startswith(SPELLING[token]) for one in rest)]
    return [*legal, *([EOS] if "" in rest else [])]


def constrained_distribution(target, texts, settings, length):
    """Return every constrained continuation with its probability, from forward passes without a cache."""
    begin = list(PROMPT) if target.start_id is None else [target.start_id]
    done, unfinished = {}, {(): 1.0}
    while unfinished:
        (tokens, weight), *_ = unfinished.items()
        del unfinished[tokens]
        legal = legal_after(texts, "".join(SPELLING[token] for token in tokens))
        if not legal or len(tokens) == length or tokens[-1:] == (EOS,):
            done[tokens] = weight
            continue
        logits = uncached_logits(target, [[*begin, *tokens]], PROMPT)[0, -1].cpu()
        masked = torch.full_like(logits, -torch.inf)
        masked[legal] = logits[legal]
        for token, probability in enumerate(adjusted(masked, settings, [*begin, *tokens]).tolist()):
            if probability > 0:
                unfinished[*tokens, token] = weight * probability
    return done


@pytest.fixture(scope="module")
def distribution(target):
    @lru_cache
    def of(regex, setting, length=8):
        return constrained_distribution(target, TEXTS[regex], SETTINGS[setting], length)

    return of


def assert_follow(decoder, distributions, length=8, count=COUNT):
    """Decode batches of rows with these constraints, and compare the texts of each with their distribution."""
    seen = sampled(decoder, distributions, range(1), length, count)
    for doubled in range(4):
        fits = [p_of_sequences(got, one) for got, one in zip(seen, distributions.values(), strict=True) if one]
        if doubled == 3 or min(fits) > 0.1:
            assert min(fits) > 1e-4
            return
        for number, more in enumerate(
            sampled(decoder, distributions, range(2**doubled, 2 ** (doubled + 1)), length, count)
        ):
            seen[number] += more


def sampled(decoder, constraints, seeds, length, size):
    """Decode batches in which each row has its own constraint; return the counts of each row's texts."""
    seen = [Counter() for _ in constraints]
    for seed in seeds:
        each = [one and {"regex": one} for one in constraints for _ in range(size)]
        settings = GenerationSettings(max_new_tokens=length, seed=seed)
        result = decoder.generate([list(PROMPT)] * len(each), settings, constraints=each)
        assert not result.failures
        assert result.metrics.target_calls <= length
        for number, row in enumerate(result):
            seen[number // size][row.tokens] += 1
    return seen


DRAFTERS = {
    "dense": TableDrafter,
    "point-mass": CountingDrafter,
    "sparse": SparseDrafter,
    "drawn-from-q": DrawnDrafter,
    "candidates": CandidatesDrafter,
}


CASES = [(drafter, FREE, "temperature-1") for drafter in DRAFTERS]
CASES += [("dense", FREE, setting) for setting in SETTINGS if setting != "temperature-1"]
CASES += [
    ("point-mass", FREE, "greedy"),
    ("candidates", FORCED, "temperature-1"),
    ("dense", FORCED, "temperature-1"),
    ("point-mass", FORCED, "temperature-1"),
]


@pytest.mark.parametrize(("drafter", "regex", "setting"), some(CASES, 7))
def test_texts_have_the_distribution_of_the_masked_target(target, distribution, regex, drafter, setting):
    decoder = Decoder(
        target, DRAFTERS[drafter](VOCAB), gamma=Gamma(1, 4, 2, 3), sampling=SETTINGS[setting], strict=True
    )
    assert_follow(decoder, {regex: distribution(regex, setting)}, count=10 if setting == "greedy" else COUNT)


@pytest.mark.parametrize("regex", some(TEXTS, 1))
def test_without_a_drafter_too(target, distribution, regex):
    assert_follow(Decoder(target), {regex: distribution(regex, "temperature-1")})


@pytest.mark.slow
def test_an_encoder_decoder_is_constrained_too(device):
    target = wrap_model(tiny_model("t5", VOCAB, sharpness=0.8).to(device), tiny_tokenizer())
    settings = SamplingSettings(temperature=1)
    for regex in (FREE, FORCED):
        decoder = Decoder(target, TableDrafter(VOCAB), gamma=Gamma(2, 3), strict=True)
        assert_follow(decoder, {regex: constrained_distribution(target, TEXTS[regex], settings, 8)})


@pytest.mark.parametrize("target", some(["gpt2", "qwen3_5"], 1), indirect=True)
def test_in_a_batch_each_row_has_its_own_constraint_or_none(target, distribution):
    decoder = Decoder(target, TableDrafter(VOCAB), gamma=Gamma(3, 1), strict=True)
    distributions = {regex: distribution(regex, "temperature-1", 5) for regex in (FREE, FORCED)}
    assert_follow(decoder, {FREE: distributions[FREE], None: None, FORCED: distributions[FORCED]}, length=5)
    # A row does not depend on the rows beside it.
    together = decoder.generate([PROMPT] * 2, constraints=[{"regex": FREE}, None], seed=6, max_new_tokens=20)
    apart = decoder.generate([PROMPT] * 2, seed=6, max_new_tokens=20)
    assert together[1].tokens == apart[1].tokens
    assert together[1].text not in TEXTS[FREE]


@pytest.mark.parametrize("setting", ["greedy", "temperature-1"])
@pytest.mark.parametrize("regex", some([FREE, FORCED], 1))
def test_trees_are_constrained_node_by_node(target, distribution, regex, setting):
    gamma = Gamma(10, 0, 3, tree=TokenTree.from_widths((2, 2, 1)))
    decoder = Decoder(target, TableDrafter(VOCAB), gamma=gamma, sampling=SETTINGS[setting], strict=True)
    trace = TraceObserver()
    decoder.generate([PROMPT], constraint={"regex": regex}, observers=[trace], seed=2)
    assert regex == FORCED or any(report.outcome.parents for report in trace.reports)
    assert_follow(decoder, {regex: distribution(regex, setting)}, count=10 if setting == "greedy" else COUNT)


def test_every_level_of_a_hierarchy_is_constrained(target, distribution, tmp_path):
    middle = tiny_model("gpt2", VOCAB, seed=1, sharpness=0.8)
    middle.save_pretrained(tmp_path)
    drafter = hierarchy(target, tmp_path, TableDrafter(VOCAB), Gamma(2))
    decoder = Decoder(target, drafter, gamma=Gamma(4), strict=True)
    trace = TraceObserver()
    for seed in range(20):
        decoder.generate([PROMPT], constraint={"regex": FREE}, observers=[trace], seed=seed)
        for report in trace.reports[:1]:
            text = ""
            for token in report.draft_tokens[0]:
                legal = legal_after(TEXTS[FREE], text)
                if not legal or token == EOS:
                    break
                assert token in legal
                text += SPELLING[token]
    assert_follow(decoder, {FREE: distribution(FREE, "temperature-1")})


class ScriptedDrafter(DeterministicDrafter):
    """Drafts a text that it is given, whatever is legal."""

    def __init__(self, script):
        super().__init__(NO_CONFIG, target_info(VOCAB))
        self.script = script

    def draft(self, tokens, budget):
        done = len(tokens) - len(PROMPT)
        return self.script[done : done + budget]


SCRIPTS = {
    "illegal-in-mid-draft": (FREE, [A, 0, B, C, A]),
    "past-the-end": (FORCED, [C, C, A, C, A, B, A, B]),
    "an-end-of-sequence-too-early": (FREE, [A, EOS, C, A]),
    "an-end-of-sequence-past-the-end": (FORCED, [C, C, A, C, EOS, EOS, A]),
    "past-an-end-of-sequence": (FREE, [A, C, EOS, A, EOS, B]),
    "a-token-that-goes-too-far": (FREE, [AB, B, C, AB]),
}


@pytest.mark.parametrize("script", some(SCRIPTS, 3))
def test_a_draft_may_hold_anything(target, distribution, script):
    regex, tokens = SCRIPTS[script]
    for setting, count in (("greedy", 10), ("temperature-1", COUNT)):
        decoder = Decoder(target, ScriptedDrafter(tokens), gamma=Gamma(4), sampling=SETTINGS[setting], strict=True)
        assert_follow(decoder, {regex: distribution(regex, setting)}, count=count)


def test_drafts_are_masked_so_that_a_perfect_drafter_stays_perfect(target, tmp_path):
    target.model.save_pretrained(tmp_path)
    decoder = Decoder(target, {"name": "transformer", "model": str(tmp_path)}, gamma=3, strict=True)
    result = decoder.generate([PROMPT] * 40, constraint={"regex": FREE})
    assert result.metrics.accepted > 40
    assert result.metrics.rejected == 0


@with_states
def test_forced_tokens_cost_no_forward_pass_and_are_reported(target):
    trace = TraceObserver()
    constraint = Constraint(regex="(cc|cb)cccb[ab]ccc")
    result = Decoder(target).generate([PROMPT], constraint=constraint, observers=[trace])
    assert result.metrics.target_calls == 2  # one draws c or b, the other a or b
    (one,) = result
    assert len(one.tokens) == 10
    assert one.finish_reason == "stop"
    assert one.origins == ("forced", "bonus", *["forced"] * 4, "bonus", *["forced"] * 3)
    assert result.metrics.forced == 8
    assert "8 tokens forced" in str(result.metrics)
    assert result.metrics.drafted == 0
    assert sum((report.outcome.committed[0] for report in trace.reports), ()) == one.tokens

    slow = Decoder(target).generate([PROMPT], constraint=constraint.model_copy(update={"fast_forward": False}))
    assert slow.metrics.target_calls == 10
    assert slow.metrics.forced == 0


def test_forced_tokens_stop_at_limits_and_stop_strings(target):
    decoder = Decoder(target, CountingDrafter(VOCAB), gamma=3, strict=True)
    for length in range(1, 8):
        (one,) = decoder.generate([PROMPT], constraint={"regex": "[ab]ccccccc"}, max_new_tokens=length)
        assert (len(one.tokens), one.finish_reason) == (length, "length")
        # A text may begin with more forced tokens than it may have.
        (one,) = decoder.generate([PROMPT], constraint={"regex": "ccccccc[ab]"}, max_new_tokens=length)
        assert (one.tokens, one.finish_reason) == ((C,) * length, "length")
    (one,) = decoder.generate([PROMPT], constraint={"regex": "[ab]cccccca"}, stop="cc")
    assert (one.tokens[1:], one.finish_reason) == ((C, C), "stop")
    (one,) = decoder.generate([PROMPT], constraint={"regex": "cccccca"}, stop="cc")
    assert (one.tokens, one.finish_reason) == ((C, C), "stop")


def test_the_end_of_sequence_is_legal_where_the_text_may_end(target):
    reasons = Counter()
    for seed in range(40):
        (one,) = Decoder(target).generate([PROMPT], constraint={"regex": "ca*"}, seed=seed, max_new_tokens=30)
        reasons[one.finish_reason] += 1
        assert set(one.tokens[1:-1]) <= {A}
    assert reasons["eos"] > 30


def test_the_order_is_mask_then_sampling_settings(target):
    # Were top-k first, it could leave illegal tokens alone.
    for seed in range(10):
        (one,) = Decoder(target, top_k=1).generate([PROMPT], constraint={"regex": FREE}, seed=seed)
        (best,) = Decoder(target, temperature=0).generate([PROMPT], constraint={"regex": FREE})
        assert one.tokens == best.tokens


def test_streams_and_settings_take_a_constraint(target):
    settings = GenerationSettings(constraint=Constraint(regex=FREE), seed=3)
    tokens = [t for report in Decoder(target).stream([PROMPT], settings) for t in report.outcome.committed[0]]
    assert tuple(tokens) == Decoder(target).generate([PROMPT], constraint={"regex": FREE}, seed=3).tokens


def test_what_cannot_be_constrained_is_an_error(target):
    decoder = Decoder(target)
    with pytest.raises(ConfigError, match="exactly one of 'json_schema', 'regex' and 'grammar'; given none"):
        decoder.generate([PROMPT], constraint={})
    with pytest.raises(ConfigError, match=r"llguidance cannot use this 'regex'[^!]*unclosed group"):
        decoder.generate([PROMPT], constraint={"regex": "(a"})
    with pytest.raises(ConfigError, match="1 constraints were given for 2 prompts"):
        decoder.generate([PROMPT] * 2, constraints=[None])
    with pytest.raises(ArgumentError, match="One for all prompts is `constraint`"):
        decoder.generate([PROMPT], constraints={"regex": "a"})
    with pytest.raises(ConfigError, match=r"no legal text begins with .* cannot spell"):
        decoder.generate([PROMPT], constraint={"regex": "zebra"})
    with pytest.raises(ConfigError, match="no legal text begins with these 1 new tokens"):
        decoder.generate([PROMPT], constraint={"regex": "[ab]z"})
    with pytest.raises(ConfigError, match="a constraint says where a text ends"):
        decoder.generate([PROMPT], constraint={"regex": "a"}, ignore_eos=True)
    with pytest.raises(ConfigError, match="beam search takes no constraint"):
        Decoder(target, temperature=0).generate([PROMPT], constraint={"regex": "a"}, beams=2)
    with pytest.raises(ConfigError, match="has no tokenizer"):
        Decoder(wrap_model(tiny_model("gpt2", VOCAB))).generate([PROMPT], constraint={"regex": "a"})


def test_a_tokenizer_that_llguidance_cannot_take_is_an_error():
    words = Tokenizer(models.WordLevel({"<eos>": 1, "a": 2}, unk_token="<eos>"))
    for tokenizer in (PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<eos>"), object()):
        target = wrap_model(tiny_model("gpt2", VOCAB))
        target = wrap_model(target.model, tokenizer)
        with pytest.raises(ConfigError, match=f"cannot use the target's tokenizer, {type(tokenizer).__name__}"):
            Decoder(target).generate([PROMPT], constraint={"regex": "a"})


def test_a_draft_into_a_dead_end_leaves_no_trace(target):
    # No token spells the z, so that nothing can follow b and a; llguidance's matcher does not recover by itself.
    constraint = Constraint(regex="b(az|ca?)")
    constraints = open_constraints([constraint], [len(PROMPT)], target)

    def legal(*tokens):
        return constraints.legal([[*PROMPT, *tokens]], torch.device("cpu"))[0].nonzero()[:, 0].tolist()

    for _ in range(3):
        assert legal(B) == [A, C]
        assert len(legal(B, A)) == VOCAB, "nothing to exclude: it is never committed"
        assert legal(B, C) == [EOS, A]
        assert len(legal(B, A, C)) == VOCAB
        assert legal() == [B]
    with pytest.raises(ConfigError, match="no legal text begins with these 2 new tokens"):
        constraints.end(0, [*PROMPT, B, A])


def test_masks_do_not_depend_on_what_was_asked_before(target):
    """Random walks back and forth give the masks of matchers that read each prefix from the beginning."""
    random = Random(0)
    for regex in (*TEXTS, "(a|bc)*d?(a|b)?c*", "a(b|c)*"):
        constraint = Constraint(regex=regex)
        walked = open_constraints([constraint], [0], target)
        for _ in range(60):
            prefix = random.choices([A, B, C, AB, EOS], k=random.randrange(6))
            fresh = open_constraints([constraint], [0], target)
            device = torch.device("cpu")
            assert torch.equal(walked.legal([prefix], device), fresh.legal([prefix], device)), (regex, prefix)
