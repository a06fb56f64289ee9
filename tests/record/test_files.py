"""The files of a record: what is written is read back, and what is damaged is said."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from specdec_core.interface import ConfigError, ModelError
from specdec_core.interface.settings import GenerationSettings, SamplingSettings
from specdec_core.record import PartHeader, RecordedText, RecordHeader, RecordWriter, read_record

VOCAB = 70_000


def header_of(*counts, vocab_size=300, hidden=None, top_k=0, temperature=1.0):
    part = {
        "sampling": SamplingSettings(temperature=temperature),
        "generation": GenerationSettings(),
        "prompts": {"count": 1},
    }
    return RecordHeader(
        target={"model": "builtin:target"},
        fingerprint=None,
        tokenizer=None,
        vocab_size=vocab_size,
        eos_ids=(0,),
        hidden_size=hidden,
        top_k=top_k,
        parts=tuple(PartHeader(texts=count, **part) for count in counts),
    )


def text_of(number, sample, tokens, prompt=(1, 2), *, hidden=None, top_k=0, greedy=False, reason="length"):
    count = len(tokens)
    p = np.ones(count) if greedy else np.linspace(0.1, 1, count)
    return RecordedText(
        prompt=tuple(prompt),
        number=number,
        sample=sample,
        tokens=np.array(tokens, np.int64),
        probabilities=p.astype(np.float32),
        finish_reason=reason,
        hidden=None if hidden is None else np.arange(count * hidden, dtype=np.float16).reshape(count, hidden),
        top_tokens=np.tile(np.arange(top_k), (count, 1)) if top_k else None,
        top_probabilities=np.full((count, top_k), 0.25, np.float32) if top_k else None,
    )


def assert_same(one, other):
    assert (one.prompt, one.number, one.sample, one.finish_reason) == (
        other.prompt,
        other.number,
        other.sample,
        other.finish_reason,
    )
    for name in ("tokens", "probabilities", "hidden", "top_tokens", "top_probabilities"):
        left, right = getattr(one, name), getattr(other, name)
        assert (left is None) == (right is None), name
        if left is not None:
            assert left.dtype == right.dtype
            assert np.array_equal(left, right)


_TEXTS = st.lists(
    st.tuples(
        st.lists(st.lists(st.integers(0, 299), min_size=1, max_size=6), min_size=1, max_size=3),
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
    vocab_size=st.sampled_from([300, VOCAB]),
    hidden=st.sampled_from([None, 3]),
    top_k=st.sampled_from([0, 2]),
    greedy=st.booleans(),
)
def test_what_is_written_is_read_back(tmp_path, drawn, size, vocab_size, hidden, top_k, greedy):
    texts = [
        text_of(number, sample, tokens, prompt, hidden=hidden, top_k=top_k, greedy=greedy, reason=reason)
        for number, (samples, prompt, reason) in enumerate(drawn)
        for sample, tokens in enumerate(samples)
    ]
    folder = tmp_path / "r"
    shutil.rmtree(folder, ignore_errors=True)
    settled = {"vocab_size": vocab_size, "hidden": hidden, "top_k": top_k, "temperature": 0 if greedy else 1}
    header = header_of(len(texts), **settled)
    for start in range(0, len(texts), size):  # each shard by a writer of its own, as after a stop
        writer = RecordWriter(folder, header)
        assert writer.done == (start,)
        assert not writer.finished
        writer.append(0, texts[start : start + size])
    assert writer.finished
    record = read_record(folder)
    assert record.header == header
    assert len(record.parts[0]) == len(texts)
    for one, other in zip(record.parts[0], texts, strict=True):
        assert_same(one, other)


@pytest.fixture
def folder(tmp_path):
    writer = RecordWriter(tmp_path / "r", header_of(4, 2))
    writer.append(0, [text_of(0, 0, [5, 6, 7]), text_of(0, 1, [8])])
    writer.append(0, [text_of(1, 0, [9, 10], (3,))])
    writer.append(1, [text_of(0, 0, [5])])
    return tmp_path / "r"


def test_an_unfinished_record_is_read_as_far_as_it_goes(folder):
    record = read_record(folder)
    assert [len(part) for part in record.parts] == [3, 1]
    assert [part.header.texts for part in record.parts] == [4, 2]
    assert [text.tokens.tolist() for text in record.parts[0]] == [[5, 6, 7], [8], [9, 10]]


def test_ids_take_two_bytes_each_where_the_vocabulary_allows(tmp_path):
    for vocab_size, kind in ((2**16, np.uint16), (2**16 + 1, np.int32)):
        writer = RecordWriter(tmp_path / str(vocab_size), header_of(1, vocab_size=vocab_size))
        writer.append(0, [text_of(0, 0, [vocab_size - 1, 0])])
        (shard,) = writer.path.glob("part-0/*")
        assert load_file(shard)["tokens"].dtype == kind
        (text,) = writer.record().parts[0]
        assert text.tokens.tolist() == [vocab_size - 1, 0]


def test_every_flipped_byte_is_noticed(folder):
    path = folder / "part-0" / "shard-00000.safetensors"
    data = path.read_bytes()
    for place in range(0, len(data), 7):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with pytest.raises(ConfigError, match=r"safetensors: this (file of a record is damaged|is version)"):
            list(read_record(folder).parts[0])
    path.write_bytes(data)
    assert len(list(read_record(folder).parts[0])) == 3


@pytest.mark.parametrize("kept", [0, 4, 100, -1])
def test_a_truncated_shard_is_noticed_when_the_record_is_opened(folder, kept):
    path = folder / "part-0" / "shard-00001.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ConfigError, match=r"shard-00001.safetensors: this file of a record is damaged.*--fresh"):
        read_record(folder)


def test_a_missing_or_foreign_shard_is_noticed(folder):
    first, second = sorted((folder / "part-0").iterdir())
    moved = first.rename(folder / "kept")
    with pytest.raises(ConfigError, match=r"shard-00000\.safetensors: .* it is missing, and a later one is there"):
        read_record(folder)
    shutil.copy(second, first)
    with pytest.raises(ConfigError, match="its first text has number 2, and 0 texts are before it"):
        read_record(folder)
    shutil.copy(moved, first)
    shutil.copy(moved, folder / "part-1" / "shard-00001.safetensors")
    with pytest.raises(ConfigError, match="its first text has number 0, and 1 texts are before it"):
        read_record(folder)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("tokens", lambda a: a + 300, "tokens holds an id outside of the vocabulary of 300"),
        ("prompts", lambda a: a + 300, "prompts holds an id outside"),
        ("probabilities", lambda a: a * 0, "above 0 and at most 1"),
        ("probabilities", lambda a: a * 2, "above 0 and at most 1"),
        ("probabilities", lambda a: a * np.float32("nan"), "above 0 and at most 1"),
        ("probabilities", lambda a: a[:-1], "one for each token"),
        ("lengths", lambda a: a + 1, "texts and tokens contradict"),
        ("finish", lambda a: a + 9, "an unknown finish reason"),
        ("prompt_lengths", lambda a: a + 1, "the numbers of prompts contradict"),
        (
            "hidden",
            lambda _: np.zeros((4, 3), np.float32),
            r"hidden has the shape \(4, 3\), and its header says None",
        ),
        ("finish", None, "it has no finish"),
    ],
)
def test_what_no_target_can_have_said_is_refused(folder, name, change, message):
    """A file that another program wrote with a checksum of its own."""
    from specdec_core.record.shards import checksum

    path = folder / "part-0" / "shard-00000.safetensors"
    arrays = load_file(path)
    if change is None:
        del arrays[name]
    else:
        arrays[name] = np.ascontiguousarray(change(arrays.get(name)))
    about = {"specdec_record": 1, "first": 0, "texts": 2, "tokens": 4, "crc32": checksum(arrays)}
    save_file(arrays, path, {"record": json.dumps(about)})
    with pytest.raises(ConfigError, match=message):
        list(read_record(folder).parts[0])


def test_versions_of_the_future_are_refused(folder):
    path = folder / "part-0" / "shard-00000.safetensors"
    save_file(load_file(path), path, {"record": '{"specdec_record": 2}'})
    with pytest.raises(ConfigError, match=r"this is version 2 of the format of records, .* reads 1; install"):
        read_record(folder)
    header = json.loads((folder / "record.json").read_text())
    (folder / "record.json").write_text(json.dumps({**header, "specdec_record": 2}))
    with pytest.raises(ConfigError, match=r"record\.json: this is version 2 of the format"):
        read_record(folder)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"specdec_record": 1}', b"\xff"])
def test_a_damaged_header_is_refused(folder, data):
    (folder / "record.json").write_bytes(data)
    with pytest.raises(ConfigError, match=r"record\.json"):
        read_record(folder)


def test_what_is_no_record_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"none: there is no such folder; `specdec record --output"):
        read_record(tmp_path / "none")
    with pytest.raises(ConfigError, match=r"record\.json: there is no such file"):
        read_record(tmp_path)
    with pytest.raises(ModelError, match=r"unknown built-in record 'builtin:cod'. Did you mean 'builtin:code'"):
        read_record("builtin:cod")


@pytest.mark.parametrize(
    ("name", "texts", "tokens"), [("code", (48, 192), (6144, 24247)), ("translation", (200, 800), (3870, 13291))]
)
def test_the_records_that_ship(name, texts, tokens):
    record = read_record(f"builtin:{name}")
    assert tuple(map(len, record.parts)) == texts == tuple(part.header.texts for part in record.parts)
    assert tuple(sum(len(text.tokens) for text in part) for part in record.parts) == tokens
    assert [part.header.sampling.temperature for part in record.parts] == [0, 1]
    assert sum(path.stat().st_size for path in record.path.rglob("*")) < 300_000
    assert "/" not in json.dumps(record.header.target)


def test_reading_a_record_imports_no_torch():
    code = (
        "import sys; from specdec_core.record import read_record; r = read_record('builtin:code'); "
        "print(r.header.vocab_size, len(list(r.parts[0]))); "
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.split()) == (0, ["4096", "48"]), done.stderr
