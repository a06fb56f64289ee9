"""The decoding loop: where sequences end, limits, seeds, streaming and observers."""

from itertools import chain
from types import SimpleNamespace

import pytest

from specdec_core.decoding.batch_loop import finished
from specdec_core.decoding.decoder import Decoder
from specdec_core.decoding.observers import Observer, TraceObserver, stream_text
from specdec_core.decoding.rows import StopRule
from specdec_core.interface import ConfigError
from specdec_core.interface.settings import GenerationSettings, SamplingSettings
from specdec_core.models import load_vocabulary, wrap_model
from specdec_core.sampling.generators import RowGenerators, row_seed
from tests.models.hybrids import hybrid
from tests.tiny import tiny_model
from tests.toys import CountingDrafter, Gamma, Lenience, TableDrafter

V = 40
GREEDY = SamplingSettings(temperature=0)


@pytest.fixture(scope="module")
def target(request):
    family = getattr(request, "param", "qwen3")
    return wrap_model(tiny_model(family, V) if family == "qwen3" else hybrid(family, V))


with_states = pytest.mark.parametrize("target", ["qwen3", "qwen3_5"], indirect=True)


class Parrot(CountingDrafter):
    """Drafts a given text, right or wrong."""

    def __init__(self, text):
        super().__init__(V)
        self.text = text

    def draft(self, tokens, budget):
        return self.text[len(tokens) : len(tokens) + budget]


def plain(target, prompt, count, **settings):
    run = Decoder(target, sampling=GREEDY).generate([prompt], GenerationSettings(max_new_tokens=count, **settings))
    return run.sequences[0]


@pytest.mark.parametrize("count", [1, 2, 3, 7])
@pytest.mark.parametrize("gamma", [1, 4, 9])
def test_never_more_tokens_than_the_limit_nor_more_calls_than_needed(target, count, gamma):
    text = [3, 4, *plain(target, [3, 4], 20, ignore_eos=True).tokens]
    decoder = Decoder(target, Parrot(text), gamma=Gamma(gamma), sampling=GREEDY, strict=True)
    result = decoder.generate([[3, 4]], GenerationSettings(max_new_tokens=count, ignore_eos=True))
    assert list(result.sequences[0].tokens) == text[2 : 2 + count]
    assert result.sequences[0].finish_reason == "length"
    assert result.metrics.target_calls == -(-count // (gamma + 1))
    assert result.metrics.tokens == count


def test_a_stop_token_inside_an_accepted_draft_ends_the_sequence(target):
    text = [3, 4, *plain(target, [3, 4], 12, ignore_eos=True).tokens]
    end = text[6]
    model = wrap_model(target.model)
    several = StopRule(frozenset({end, 39}))
    assert several.clip([], text[2:]) == (text[2 : text.index(end, 2) + 1], "eos")
    object.__setattr__(model, "eos_ids", (39, end))
    decoder = Decoder(model, Parrot(text), gamma=Gamma(6), sampling=GREEDY, strict=True)
    trace = TraceObserver()
    result = decoder.generate([[3, 4]], GenerationSettings(max_new_tokens=12), [trace])
    kept = text[2 : text.index(end, 2) + 1]
    assert list(result.sequences[0].tokens) == kept
    assert result.sequences[0].finish_reason == "eos"
    assert sum(len(report.outcome.committed[0]) for report in trace.reports) == len(kept)
    assert all(report.outcome.accepted[0] <= len(report.outcome.committed[0]) for report in trace.reports)


class Letters:
    """A tokenizer with one letter per token, and one token of three letters."""

    def decode(self, ids, skip_special_tokens=False):
        return "".join("xyz" if i == 39 else chr(97 + i % 26) for i in ids)


def test_stop_strings_end_at_the_token_that_completes_them():
    rule = StopRule(frozenset(), ("cde", "y"), Letters())
    assert rule.clip([0, 2], [3, 4, 5, 6]) == ([3, 4], "stop")
    assert rule.clip([0], [1, 39, 5]) == ([1, 39], "stop")
    assert rule.clip([0], [1, 5]) == ([1, 5], None)


def test_a_stop_string_may_take_as_many_tokens_as_it_has_bytes():
    class Bytes:
        def decode(self, ids, skip_special_tokens=False):
            return bytes(ids).decode(errors="replace").lstrip()  # as SentencePiece, which drops a leading space

    text = list("ab 日本".encode())
    assert StopRule(frozenset(), (" 日本",), Bytes()).clip(text[:-1], text[-1:]) == (text[-1:], "stop")


@with_states
@pytest.mark.parametrize("gamma", [0, 1, 5])
def test_stop_strings_give_the_same_tokens_with_and_without_a_draft(target, gamma):
    loaded = wrap_model(target.model, Letters())
    text = [3, 4, *plain(target, [3, 4], 16, ignore_eos=True).tokens]
    word = Letters().decode(text[7:9])
    settings = GenerationSettings(max_new_tokens=16, ignore_eos=True, stop=(word,))
    decoder = Decoder(loaded, Parrot(text), gamma=Gamma(gamma, gamma), sampling=GREEDY, strict=True)
    row = decoder.generate([[3, 4]], settings).sequences[0]
    letters = Letters().decode(text[2:])
    assert row.text == letters[: letters.index(word) + 2]
    assert row.finish_reason == "stop"
    across = settings.model_copy(update={"stop": (Letters().decode(text[1:3]),)})
    assert len(decoder.generate([[3, 4]], across)[0].tokens) > 1, "it begins in the prompt"


def test_the_models_positions_are_a_limit_with_its_own_finish_reason(target):
    settings = GenerationSettings(max_new_tokens=100, ignore_eos=True)
    decoder = Decoder(target, CountingDrafter(V), gamma=Gamma(4), sampling=GREEDY, strict=True)
    result = decoder.generate([[3] * 250, [4, 5]], settings)
    assert [len(row.tokens) for row in result.sequences] == [6, 100]
    assert [row.finish_reason for row in result.sequences] == ["context", "length"]


def test_random_numbers_do_not_depend_on_block_sizes_or_neighbors():
    alone = [RowGenerators([row_seed(1, row)]).numbers([1200], 1200)[0] for row in (0, 1)]
    both = RowGenerators([row_seed(1, 0), row_seed(1, 1)])
    sizes = ((1, 87), (511, 0), (1, 600), (600, 1), (0, 511), (87, 1))
    pieces = [[row[:n] for row, n in zip(both.numbers(each, 600), each, strict=True)] for each in sizes]
    assert [list(chain(*row)) for row in zip(*pieces, strict=True)] == alone
    assert len({*alone[0], *alone[1]}) == 2400, "a number was handed out twice"
    assert row_seed(0, 1) != row_seed(1, 0)


def test_the_stream_yields_every_step_and_returns_the_result(target):
    decoder = Decoder(target, CountingDrafter(V), gamma=Gamma(2), sampling=GREEDY)
    seen = []

    class Watcher(Observer):
        def on_start(self, session, prompts):
            seen.append(("start", session.batch_size, [list(p) for p in prompts]))

        def on_end(self, result):
            seen.append(("end", result.metrics.tokens))

    run = decoder.stream(
        [[3, 4], [5]],
        GenerationSettings(max_new_tokens=6, ignore_eos=True),
        [Watcher()],
    )
    reports = []
    result = finished(run, reports.append)
    for row in range(2):
        assert (
            tuple(t for report in reports for t in report.outcome.committed[row]) == result.sequences[row].tokens
        )
    assert [report.step for report in reports] == list(range(len(reports)))
    assert seen == [("start", 2, [[3, 4], [5]]), ("end", 12)]
    assert all(r.step_seconds >= r.verify_seconds > 0 and r.draft_seconds >= 0 for r in reports)


@pytest.mark.parametrize("model", ["builtin:target", "builtin:t5-target"])
@pytest.mark.parametrize("size", [1, 3])
def test_streamed_text_is_the_text_of_all_tokens(model, size):
    tokenizer, _ = load_vocabulary(model)
    text = "Die Größe ist naïve. \n  日本 🙂 def f(x): return None"
    tokens = tokenizer(text).input_ids + tokenizer("Ende").input_ids[:1]

    def steps():
        for begin in range(0, len(tokens), size):
            yield SimpleNamespace(outcome=SimpleNamespace(committed=((), tuple(tokens[begin : begin + size]))))
        return "result"

    pieces = []
    assert finished(stream_text(steps(), tokenizer, row=1), pieces.append) == "result"
    assert "".join(pieces) == tokenizer.decode(tokens, skip_special_tokens=True)
    assert "".join(map(tokenizer.decode, tokens)) != "".join(pieces), "one by one, some characters are lost"
    assert len(pieces) > 5
    assert "日本 🙂" in "".join(pieces)


def test_leaving_a_stream_early_closes_the_drafters_session(target):
    closed = []

    class Closing(CountingDrafter):
        def open(self, session):
            inner = super().open(session)
            inner.close = lambda: closed.append(True)
            return inner

    run = Decoder(target, Closing(V), gamma=Gamma(2)).stream([[3, 4]])
    next(run)
    run.close()
    assert closed == [True]


@pytest.mark.parametrize(("right", "accepted"), [(1, 3), (0, 0)])
def test_the_last_lenience_holds_for_all_later_positions(target, right, accepted):
    text = [3, 4, *plain(target, [3, 4], 3, ignore_eos=True).tokens]
    draft = [token if n < 2 + right else (token + 1) % V for n, token in enumerate(text)]
    decoder = Decoder(target, Parrot(draft), gamma=Gamma(3), lenience=Lenience([1.0, 1e-30]), sampling=GREEDY)
    decoder.generate([[3, 4]], GenerationSettings(max_new_tokens=4, ignore_eos=True), [trace := TraceObserver()])
    assert trace.reports[0].outcome.accepted == (accepted,)


def test_commit_reports_every_committed_token(target):
    told = []

    class Listening(CountingDrafter):
        def open(self, session):
            inner = super().open(session)
            inner.commit = told.append
            return inner

    result = Decoder(target, Listening(V), gamma=Gamma(2, 0)).generate(
        [[3, 4], [5]], GenerationSettings(max_new_tokens=8, ignore_eos=True)
    )
    for row in range(2):
        assert tuple(t for outcome in told for t in outcome.committed[row]) == result.sequences[row].tokens
    assert any(not any(outcome.drafted) for outcome in told) or len(told) < 3
    assert told[-1].finished == (True, True)


@with_states
def test_a_sequence_with_its_own_seed_does_not_depend_on_the_batch(target):
    decoder = Decoder(target, TableDrafter(V), gamma=Gamma(3))
    settings = GenerationSettings(max_new_tokens=10, ignore_eos=True)
    prompts, seeds = [[3, 4], [5], [6, 7, 8]], [11, 5, 2**40]
    together = decoder.generate(prompts, settings, seeds=seeds).sequences
    others = [[9]] if target.family.recurrent else []  # whose drafts are longer where they are alone
    for number, (prompt, seed) in enumerate(zip(prompts, seeds, strict=True)):
        apart = decoder.generate([prompt, *others], settings, seeds=[seed, *map(len, others)]).sequences[0]
        assert together[number].tokens == apart.tokens
    with pytest.raises(ConfigError, match="2 seeds were given for 3 prompts"):
        decoder.generate(prompts, settings, seeds=[1, 2])


@pytest.mark.parametrize(("draft_sampling", "ranks"), [(None, {0, 1}), (GREEDY, {0})])
def test_drafts_use_the_targets_sampling_settings_or_their_own(target, draft_sampling, ranks):
    drafter, trace = TableDrafter(V), TraceObserver()
    sampling = SamplingSettings(temperature=1.5, top_k=2)
    decoder = Decoder(target, drafter, gamma=3, sampling=sampling, draft_sampling=draft_sampling, strict=True)
    decoder.generate([[3, 4]], GenerationSettings(max_new_tokens=40, ignore_eos=True), [trace])
    text, seen = [3, 4], set()
    for report in trace.reports:
        last = text[-1]
        for token in report.draft_tokens[0]:
            seen.add(drafter.table[last].argsort(descending=True).tolist().index(token))
            last = token
        text += report.outcome.committed[0]
    assert seen == ranks
