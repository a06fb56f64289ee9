"""Asking drafters along texts: what they are told, where drafts end, and what is refused."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from specdec_core import default_registry
from specdec_core.costs.step_costs import StepCosts
from specdec_core.decoding.decoder import Decoder
from specdec_core.interface import ConfigError, Outcome, PluginConfig, PluginError, Proposal, RuleConfig
from specdec_core.interface.base_drafters import AutoregressiveDrafter
from specdec_core.interface.drafter import DraftRequest, DraftSession, SessionInfo, TargetInfo
from specdec_core.interface.settings import GenerationSettings, SamplingSettings
from specdec_core.models import LoadedModel, wrap_model
from specdec_core.offline.record.decode import forced_pass
from specdec_core.offline.record.format import RecordPart
from specdec_core.offline.record.store import read_record
from specdec_core.offline.replay.drafter_replay import DrafterReplay
from specdec_core.offline.replay.replayed_metrics import expected_metrics
from specdec_core.offline.replay.study_replay import check_replayable
from specdec_core.registry.settings_models import plugin_settings
from specdec_core.testing.harness.replaying import memory_record, recorded_texts
from specdec_core.testing.harness.tiny_target import gpt2_config, random_model, uncached_logits
from specdec_core.testing.harness.toys import Gamma, Hierarchy, TableDrafter
from specdec_core.verification import SpeculativeSampling
from specdec_drafters.settings import TransformerConfig
from specdec_drafters.transformer import TransformerDrafter
from tests.drafters.support import heads_for
from tests.models.hybrids import hybrid
from tests.offline.replay.cases import Proposing
from tests.offline.replay.support import PROMPT, replayed, small_target
from tests.pairwise import some
from tests.toys import CountingDrafter, Lenience, SparseDrafter

SAMPLED, GREEDY = SamplingSettings(), SamplingSettings(temperature=0)
TARGET = StepCosts(verify=(1.0, 1.1, 1.2), overhead=0.05)


def texts_of(
    target: LoadedModel, lengths: Sequence[int], sampling: SamplingSettings = SAMPLED, ignore_eos: bool = True
):
    """Return texts of one prompt that the target generates, of these lengths, as if that were their limit."""
    decoder = Decoder(target, sampling=sampling)
    found = []
    for number, length in enumerate(lengths):
        generation = GenerationSettings(max_new_tokens=length, seed=number, ignore_eos=ignore_eos)
        row = decoder.generate([list(PROMPT)], generation).sequences[0].tokens
        [text] = recorded_texts(target, PROMPT, [row], sampling, length)
        found.append(replace(text, number=number))
    return found


@pytest.fixture(scope="module")
def target():
    return small_target(6)


def test_the_number_of_texts_asked_for_together_changes_nothing(target):
    texts = texts_of(target, (3, 9, 1, 6, 2))
    for drafter in (TableDrafter(6), CountingDrafter(6)):
        alone, together = (
            replayed(target, texts, SAMPLED, drafter, 3, 9, batch_size=size).acceptance() for size in (1, 4)
        )
        assert [one.number for one in together] == [0, 1, 2, 3, 4]
        for one, other in zip(alone, together, strict=True):
            np.testing.assert_allclose(one.accept(), other.accept())
            assert one.offered.tolist() == other.offered.tolist()


class _Told(AutoregressiveDrafter):
    """Keeps what it is told, and fails if drafts are said to be accepted that it did not make."""

    def __init__(self, vocab: int) -> None:
        super().__init__(PluginConfig(), TargetInfo(vocab_size=vocab))
        self.asked: list[tuple[tuple[int, ...], ...]] = []
        self.ends: list[bool] = []

    def logits(self, prefix: Sequence[int]) -> torch.Tensor:
        return torch.linspace(0, 1, self.target.vocab_size).roll(prefix[-1])

    def open(self, session: SessionInfo) -> DraftSession:
        return _ToldSession(self, super().open(session), session.batch_size)


class _ToldSession(DraftSession):
    def __init__(self, drafter: _Told, session: DraftSession, batch: int) -> None:
        self.drafter, self.session = drafter, session
        self.drafts = [[] for _ in range(batch)]
        self.rows: list[list[int]] | None = None

    def propose(self, request: DraftRequest) -> Proposal:
        rows = [list(row) for row in request.tokens]
        assert self.rows is None or rows == self.rows
        self.rows = rows
        self.drafter.asked.append(request.budget)
        made = self.session.propose(request)
        self.drafts = [row[:n] for row, n in zip(made.tokens.tolist(), made.lengths, strict=True)]
        return made

    def commit(self, outcome: Outcome) -> None:
        assert self.rows is not None
        each = zip(self.drafts, outcome.accepted, outcome.committed, outcome.drafted, self.rows, strict=True)
        for draft, accepted, new, drafted, row in each:
            assert drafted == len(draft)
            assert tuple(draft[:accepted]) == new[:accepted]
            assert not new or len(new) > accepted or len(draft) == accepted
            row += new
        self.drafts = [[] for _ in self.drafts]
        self.drafter.ends += outcome.finished

    def rollback(self, lengths: Sequence[int]) -> None:
        raise AssertionError("nothing is rolled back")


@pytest.mark.parametrize("autoregressive", [True, False])
def test_drafters_are_told_what_follows_from_their_drafts(target, autoregressive):
    drafter = _Told(6)
    texts = texts_of(target, (7, 3))
    replayed(target, texts, SAMPLED, drafter, 3, 7, autoregressive=autoregressive, batch_size=2).acceptance()
    if autoregressive:
        # Two drafts of three tokens and none at the last position, which is never drafted; one of two.
        assert drafter.asked == [(3, 2), (3, 0)]
    else:
        assert drafter.asked == [(3, 2), (3, 1), (3, 0), (3, 0), (2, 0), (1, 0)]
        assert drafter.ends[-1]


def test_timing_follows_the_text_and_tells_the_drafter_so(target):
    texts = texts_of(target, (40, 40))
    drafter = _Told(6)
    replay = replayed(target, texts, SAMPLED, drafter, 4, 40)
    replay.acceptance()
    drafter.asked.clear()
    costs = replay.costs(TARGET, timings=3)
    seconds = costs.draft
    assert (costs.verify, costs.overhead) == (TARGET.verify, TARGET.overhead)
    assert len(seconds) == 5
    assert seconds[0] == 0
    assert all(value > 0 for value in seconds[1:])
    assert {row[0] for row in drafter.asked} == {1, 2, 3, 4}
    assert replay.costs(TARGET).draft is seconds, "it is timed once"
    assert len(costs.draft_spread) == 5
    assert all(spread > 0 for spread in costs.draft_spread)


def test_timing_a_hierarchy_runs_all_of_its_levels(target):
    class Below(TableDrafter):
        calls = 0

        def logits(self, prefix: Sequence[int]) -> torch.Tensor:
            self.calls += 1
            return super().logits(prefix)

    below = Below(6)
    drafter = Hierarchy(small_target(6, seed=5), below, Gamma(2))
    drafter.autoregressive = True
    replay = replayed(target, texts_of(target, (30, 30)), SAMPLED, drafter, 3, 30)
    replay.acceptance()
    assert not below.calls  # q is that of the model in the middle
    assert all(value > 0 for value in replay.costs(TARGET, timings=3).draft[1:])
    assert below.calls


def test_timing_a_drafter_that_offers_little():
    """Lengths that never occur are filled in."""
    target = small_target(6)

    class One(CountingDrafter):
        def draft(self, tokens: Sequence[int], budget: int) -> Sequence[int]:
            return super().draft(tokens, min(budget, tokens[-1] % 2))

    texts = texts_of(target, (60,))
    seconds = replayed(target, texts, SAMPLED, One(6), 3, 60).costs(TARGET, timings=4).draft
    assert len(seconds) == 4
    assert seconds[0] > 0
    assert seconds[3] == pytest.approx(seconds[1] + 2 * max(0.0, seconds[1] - seconds[0]))


def test_texts_that_could_have_gone_on_are_drafted_beyond_their_end(target):
    """An end of sequence was not known beforehand; a limit was."""
    texts = [text for text in texts_of(target, [12] * 12, ignore_eos=False) if text.finish_reason == "eos"]
    ended = next(text for text in texts if 3 < len(text.tokens) < 9)
    [one] = replayed(target, [ended], SAMPLED, TableDrafter(6), 3, 12).acceptance()
    assert one.limit == 12
    assert one.offered.tolist() == [3] * len(one)
    cut = replace(ended, finish_reason="length")
    [other] = replayed(target, [cut], SAMPLED, TableDrafter(6), 3, 12).acceptance()
    assert other.limit == len(cut.tokens)
    assert other.offered.tolist()[-4:] == [3, 2, 1, 0]


def test_texts_that_fill_the_context(target):
    record, part = memory_record(target, texts_of(target, (5,)), SAMPLED, GenerationSettings(max_new_tokens=99))
    part = replace(part, texts=tuple(replace(text, finish_reason="eos") for text in part.texts))
    header = record.header.model_copy(update={"max_length": len(PROMPT) + 6})
    [one] = DrafterReplay(replace(record, header=header), part, TableDrafter(6), max_gamma=4).acceptance()
    assert one.limit == 6
    assert one.offered.tolist() == [4, 4, 3, 2, 1]


@pytest.mark.filterwarnings("ignore:TransformerDrafter takes at most 13 tokens:specdec_core.PluginWarning")
def test_a_drafter_with_a_shorter_context_than_the_target(target, tmp_path):
    """Once its positions are used up it offers nothing, in a replay as live."""
    random_model(gpt2_config(6, n_positions=12), seed=3).save_pretrained(tmp_path)
    drafter = TransformerDrafter(TransformerConfig(model=str(tmp_path)), target.info())
    generation = GenerationSettings(max_new_tokens=20, ignore_eos=True)
    for autoregressive in (True, False):
        for sampling in (GREEDY, SAMPLED):
            live = Decoder(target, drafter, gamma=3, sampling=sampling).generate([list(PROMPT)], generation)
            texts = recorded_texts(target, PROMPT, [live.sequences[0].tokens], sampling, 20)
            acceptance = replayed(
                target, texts, sampling, drafter, 3, 20, autoregressive=autoregressive
            ).acceptance()
            assert acceptance[0].offered.tolist() == [3] * 7 + [2, 1] + [0] * 11
            if sampling is GREEDY:
                found = expected_metrics(acceptance, 3).metrics
                for name in ("target_calls", "drafted", "accepted", "rejected", "steps_asked", "asked_at"):
                    assert getattr(found, name) == pytest.approx(getattr(live.metrics, name)), name


@pytest.mark.parametrize("kind", some(["heads", "transformer"], 1))
def test_steps_of_a_recurrent_target_that_read_without_a_draft(kind, tmp_path):
    target = wrap_model(hybrid("qwen3_5"))
    if kind == "heads":
        drafter = heads_for(target, tmp_path)
    else:
        target.model.save_pretrained(tmp_path)
        drafter = TransformerDrafter(TransformerConfig(model=str(tmp_path)), target.info())
        with torch.no_grad():
            for weight in drafter.loaded.model.parameters():
                weight += 0.02 * weight.std(correction=0) * torch.randn(weight.shape)
    generation = GenerationSettings(max_new_tokens=36, ignore_eos=True)
    for prompt in (PROMPT, tuple(range(2, 20))):
        live = Decoder(target, drafter, gamma=3, temperature=0).generate([list(prompt)], generation)
        texts = recorded_texts(target, prompt, [live.sequences[0].tokens], GREEDY, 36)
        acceptance = replayed(target, texts, GREEDY, drafter, 3, 36).acceptance()
        for gamma in (3, Gamma(3)):
            found = expected_metrics(acceptance, gamma, greedy=True, draws=1).metrics
            for name in ("target_calls", "drafted", "accepted", "rejected", "steps_asked"):
                assert getattr(found, name) == pytest.approx(getattr(live.metrics, name)), (name, gamma)


@pytest.mark.parametrize("family", ["gpt2", "t5"])
def test_hidden_states_are_read_off_the_target_where_the_record_has_none(family, tmp_path):
    from tests.lossless import small_target as target_of

    target = target_of("cpu", family)
    drafter = heads_for(target, tmp_path)
    [text] = texts_of(target, (9,))
    begin = list(PROMPT) if target.start_id is None else [target.start_id]
    with target.features.capture() as captured:
        uncached_logits(target, [[*begin, *text.tokens[:-1]]], PROMPT)
    expected = captured[0][0, len(begin) - 1 :]
    torch.testing.assert_close(
        forced_pass(target, PROMPT, text.tokens.tolist()).hidden, expected, atol=1e-4, rtol=1e-4
    )
    without = replayed(target, [text], SAMPLED, drafter, 3, 9)
    given = replayed(target, [replace(text, hidden=expected.numpy())], SAMPLED, drafter, 3, 9)
    np.testing.assert_allclose(without.acceptance()[0].accept(), given.acceptance()[0].accept(), atol=1e-5)
    assert without.acceptance()[0].offered[0] == 0  # nothing was read before the first step
    assert "hidden states" in without.notes[0]
    assert not given.notes


@pytest.mark.parametrize(
    ("record", "drafter", "least"),
    [
        ("translation", {"name": "transformer", "model": "builtin:t5-drafter"}, 0.05),
        pytest.param("code", {"name": "quantized"}, 0.9, marks=pytest.mark.slow),
        pytest.param("code", {"name": "early-exit", "layers": 5}, 0.05, marks=pytest.mark.slow),
    ],
)
def test_a_drafter_made_of_the_target_has_it_loaded(record, drafter, least):
    record = read_record(f"builtin:{record}")
    config = plugin_settings(default_registry(), "drafter", drafter)
    part = record.parts[0]
    one = replace(record, parts=(part,)), RecordPart(part.header, (next(iter(part)),))
    [acceptance] = DrafterReplay(*one, config, max_gamma=2).acceptance()
    accepted = acceptance.accept()[: len(acceptance), 0].mean()
    assert least < accepted <= 1


def test_drafters_are_loaded_by_their_settings(target):
    config = plugin_settings(default_registry(), "drafter", {"name": "prompt-copy", "min_match": 1})
    acceptance = replayed(target, texts_of(target, (9,)), SAMPLED, config, 3, 9).acceptance()
    assert acceptance[0].offered.any()


_Drafter = partial(Proposing, info=TargetInfo(vocab_size=6))


def _counting(request: DraftRequest) -> Proposal:
    rows = zip(request.tokens, request.budget, strict=True)
    return Proposal.from_rows([[(row[-1] + 1 + n) % 6 for n in range(budget)] for row, budget in rows])


def _sometimes(request: DraftRequest) -> Proposal:
    """Draws after even tokens only."""
    while request.wants_more() and request.tokens[0][-1] % 2 == 0:
        request.sample(torch.zeros(len(request.budget), 6))
    return request.proposal()


def _not_a_number(request: DraftRequest) -> Proposal:
    while request.wants_more():
        request.sample(torch.full((len(request.budget), 6), torch.nan))
    return request.proposal()


def _raises(request: DraftRequest) -> Proposal:
    raise ValueError("no draft today")


@pytest.mark.parametrize(
    ("drafter", "message"),
    [
        (SparseDrafter(6), "SparseDrafter draws its tokens itself"),
        (_Drafter(_counting, autoregressive=True), "declares `autoregressive`, but drafts tokens"),
        (_Drafter(_sometimes, autoregressive=True), "declares `autoregressive`, but drafted fewer"),
        (_Drafter(_not_a_number), "NaN"),
        (_Drafter(_raises), "Proposing failed at step 0.*no draft today"),
        (
            _Drafter(lambda request: Proposal.from_rows([[7] * n for n in request.budget])),
            "outside the vocabulary",
        ),
        (_Drafter(lambda request: Proposal.from_rows([[0] * 9])), "its budget was 3"),
    ],
)
def test_drafters_that_cannot_be_replayed_are_named_with_the_reason(target, drafter, message):
    with pytest.raises(PluginError, match=message):
        replayed(target, texts_of(target, (12, 12)), SAMPLED, drafter, 3, 12, batch_size=1).acceptance()


def test_records_that_do_not_fit(target):
    texts = texts_of(target, (4,))
    with pytest.raises(ConfigError, match="7 token ids; the recorded one has 6"):
        replayed(target, texts, SAMPLED, TableDrafter(7))
    with pytest.raises(ConfigError, match="max_gamma is 0"):
        replayed(target, texts, SAMPLED, TableDrafter(6), 0)
    with pytest.raises(ConfigError, match="holds no texts"):
        replayed(target, [], SAMPLED, TableDrafter(6)).acceptance()
    for wrong in (0.0, 1.5, np.nan):
        p = texts[0].probabilities.copy()
        p[1] = wrong
        with pytest.raises(ConfigError, match="text 0 of prompt 0 holds a probability"):
            replayed(target, [replace(texts[0], probabilities=p)], SAMPLED, TableDrafter(6)).acceptance()


def _plugin(kind, name, **settings):
    registry = default_registry()
    return registry.create(kind, name, registry.spec(kind, name).config(**settings))


@pytest.mark.parametrize(
    ("lenience", "settings", "sampled", "greedy"),
    [
        ("constant", {"lenience": 0.5}, False, False),
        ("constant", {"lenience": 1}, True, True),
        ("greedy", {"lenience": 0.5}, True, False),
        ("budgeted", {"max_deviation": 0}, True, True),
    ],
)
def test_which_lenience_can_be_replayed(lenience, settings, sampled, greedy):
    for taken, where in ((sampled, False), (greedy, True)):
        with nullcontext() if taken else pytest.raises(ConfigError, match="lenience below 1"):
            check_replayable(lenience=_plugin("lenience", lenience, **settings), greedy=where)
    with pytest.raises(ConfigError, match="lenience below 1"):
        check_replayable(lenience=Lenience(0.5))  # its settings declare nothing


def test_a_rule_that_declares_nothing_and_beams_are_refused():
    class Undeclared(RuleConfig):
        @property
        def lossless_at(self):
            return "always"

    check_replayable(generation=GenerationSettings(max_new_tokens=5))
    check_replayable(rule=_Silent(Undeclared()), greedy=True)
    with pytest.raises(ConfigError, match=r"'_Silent' cannot be replayed at this temperature.*`replays_from`"):
        check_replayable(rule=_Silent(Undeclared()))
    with pytest.raises(ConfigError, match="beam"):
        check_replayable(generation=GenerationSettings(beams=4), greedy=True)


class _Silent(SpeculativeSampling):
    pass


def test_a_wrapped_model_needs_no_name(target):
    """Nothing of the target is loaded for a drafter that does not work on it."""
    texts = texts_of(target, (4,))
    record, part = memory_record(wrap_model(target.model), texts, SAMPLED, GenerationSettings(max_new_tokens=4))
    assert DrafterReplay(record, part, TableDrafter(6), max_gamma=2).acceptance()
