"""The files of a record: what is written is read back, also after a stop, and what is damaged is said."""

import json
import shutil

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specdec_core.interface import ConfigError, ModelError
from specdec_core.interface.settings import GenerationSettings, SamplingSettings
from specdec_core.offline.record.format import PartHeader, RecordedText, RecordHeader, TextLine
from specdec_core.offline.record.store import RecordWriter, read_record
from specdec_core.study.config.prompt_file import PromptText


def header_of(*counts, hidden=None, top_k=0, temperature=1.0):
    part = {
        "sampling": SamplingSettings(temperature=temperature),
        "generation": GenerationSettings(),
        "prompts": {"count": 1},
    }
    return RecordHeader(
        target={"model": "builtin:target"},
        fingerprint=None,
        tokenizer=None,
        vocab_size=300,
        eos_ids=(0,),
        hidden_size=hidden,
        top_k=top_k,
        parts=tuple(PartHeader(texts=count, **part) for count in counts),
    )


def text_of(number, sample, tokens, prompt=(1, 2), *, hidden=None, top_k=0, greedy=False, reason="length"):
    count = len(tokens)
    p = np.ones(count) if greedy else np.random.default_rng(tokens).uniform(1e-30, 1, count)
    return RecordedText(
        prompt=tuple(prompt),
        number=number,
        sample=sample,
        tokens=np.array(tokens, np.int64),
        probabilities=p.astype(np.float32),
        finish_reason=reason,
        hidden=None if hidden is None else np.arange(count * hidden, dtype=np.float16).reshape(count, hidden),
        top_tokens=np.array(tokens)[:, None] + np.arange(top_k) if top_k else None,
        top_probabilities=np.tile(p[:, None], top_k).astype(np.float32) if top_k else None,
    )


def append(writer, part, keep, texts):
    """Append texts in one batch, by a writer that keeps some lines."""
    sampling = writer.header.parts[part].sampling
    with writer.task(part, keep) as task:
        prompts = [PromptText(f"p{text.number}", None) for text in texts]
        lines = [
            TextLine.of(prompt, text.number, text.sample, text, sampling)
            for prompt, text in zip(prompts, texts, strict=True)
        ]
        task.append(lines, texts)


def assert_same(one, other):
    for name in ("prompt", "number", "sample", "finish_reason"):
        assert getattr(one, name) == getattr(other, name)
    for name in ("tokens", "probabilities", "hidden", "top_tokens", "top_probabilities"):
        left, right = getattr(one, name), getattr(other, name)
        assert (left is None) == (right is None), name
        if left is not None:
            assert left.dtype == right.dtype
            assert np.array_equal(left, right)


_TEXTS = st.lists(
    st.tuples(
        st.lists(st.lists(st.integers(0, 298), min_size=1, max_size=6), min_size=1, max_size=3),
        st.lists(st.integers(0, 299), min_size=1, max_size=4),
        st.sampled_from(["eos", "stop", "length", "context"]),
    ),
    min_size=1,
    max_size=5,
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    drawn=_TEXTS,
    size=st.integers(1, 4),
    hidden=st.sampled_from([None, 3]),
    top_k=st.sampled_from([0, 2]),
    greedy=st.booleans(),
)
def test_what_is_written_is_read_back(tmp_path, drawn, size, hidden, top_k, greedy):
    texts = [
        text_of(number, sample, tokens, prompt, hidden=hidden, top_k=top_k, greedy=greedy, reason=reason)
        for number, (samples, prompt, reason) in enumerate(drawn)
        for sample, tokens in enumerate(samples)
    ]
    folder = tmp_path / "r"
    shutil.rmtree(folder, ignore_errors=True)
    header = header_of(len(texts), hidden=hidden, top_k=top_k, temperature=0 if greedy else 1)
    for start in range(0, len(texts), size):  # each batch by a writer of its own, as after a stop
        writer = RecordWriter(folder, header)
        assert writer.stored == [start]
        append(writer, 0, start, texts[start : start + size])
    record = read_record(folder)
    assert record.header == header
    assert record.parts[0].finished
    assert [prompt.id for prompt in record.parts[0].prompts] == [f"p{n}" for n in range(len(drawn))]
    for one, other in zip(record.parts[0], texts, strict=True):
        assert_same(one, other)


@pytest.fixture
def folder(tmp_path):
    writer = RecordWriter(tmp_path / "r", header_of(4, 2, hidden=2))
    some = [text_of(0, 0, [5, 6, 7], hidden=2), text_of(0, 1, [8], hidden=2)]
    append(writer, 0, 0, [*some, text_of(1, 0, [9, 10], (3,), hidden=2)])
    append(writer, 1, 0, [text_of(0, 0, [5], hidden=2)])
    return tmp_path / "r"


def test_an_unfinished_record_is_read_as_far_as_it_goes(folder):
    record = read_record(folder)
    assert [(len(part), part.finished) for part in record.parts] == [(3, False), (1, False)]
    assert [text.tokens.tolist() for text in record.parts[0]] == [[5, 6, 7], [8], [9, 10]]


def test_a_torn_line_is_left_out_with_a_warning(folder):
    path = folder / "task-0.jsonl"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.warns(RuntimeWarning, match=r"task-0\.jsonl: the last line is incomplete"):
        writer = RecordWriter(folder, header_of(4, 2, hidden=2))
    assert writer.stored == [2, 1]
    with pytest.warns(RuntimeWarning, match="incomplete"):
        append(writer, 0, 2, [text_of(1, 0, [9, 10], (3,), hidden=2), text_of(1, 1, [11], (3,), hidden=2)])
    assert [text.hidden.shape for text in read_record(folder).parts[0]] == [(3, 2), (1, 2), (2, 2), (1, 2)]


def test_lines_whose_arrays_are_lost_are_recorded_again(folder):
    lines = folder / "task-0.jsonl"
    last = json.loads(lines.read_text().splitlines()[-1])
    with lines.open("a") as file:
        file.write(json.dumps({**last, "sample": 1}) + "\n")
    assert len(read_record(folder).parts[0]) == 3


def test_what_is_no_record_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"none: no such folder; `specdec record --output"):
        read_record(tmp_path / "none")
    with pytest.raises(ConfigError, match=r"record\.json: the file does not exist"):
        read_record(tmp_path)
    with pytest.raises(ModelError, match=r"unknown record 'builtin:cod'. Did you mean 'builtin:code'"):
        read_record("builtin:cod")


@pytest.mark.parametrize(
    ("name", "texts", "tokens"), [("code", (48, 192), (6144, 24247)), ("translation", (200, 800), (3870, 13291))]
)
def test_the_records_that_ship(name, texts, tokens):
    record = read_record(f"builtin:{name}")
    assert tuple(map(len, record.parts)) == texts == tuple(part.header.texts for part in record.parts)
    assert tuple(sum(len(text.tokens) for text in part) for part in record.parts) == tokens
    assert [part.header.sampling.temperature for part in record.parts] == [0, 1]
    assert "/" not in record.header.target.model_dump_json()


def test_damaged_arrays_and_lines_are_named(folder):
    for name, said in (("task-0.safetensors", "this file of a record is damaged"), ("task-1.jsonl", "line 1")):
        whole = (folder / name).read_bytes()
        (folder / name).write_bytes(whole[:50] + b"\n" * (len(whole) > 50))
        with pytest.raises(ConfigError, match=rf"{name}: .*{said}"):
            read_record(folder)
        (folder / name).write_bytes(whole)
