"""The files of a record: what is written is read back, and what is damaged is said."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from safetensors.torch import load_file as load_torch
from safetensors.torch import save_file as save_torch

from specdec_core.interface import ConfigError, ModelError
from specdec_core.interface.settings import GenerationSettings, SamplingSettings
from specdec_core.offline.record import PartHeader, RecordedText, RecordHeader, RecordWriter, read_record
from specdec_core.offline.record.shards import checksum

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


def most_probable(p, top_k):
    """Return p of `top_k` tokens at each position, of which the first was drawn."""
    others = np.minimum(p, (1 - p) / top_k)[:, None]
    return np.hstack([p[:, None], np.tile(others, top_k - 1)]).astype(np.float32)


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
        top_tokens=np.array(tokens)[:, None] + np.arange(top_k) if top_k else None,
        top_probabilities=most_probable(p, top_k) if top_k else None,
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
    for index in range(0, len(data), 7):
        path.write_bytes(data[:index] + bytes([data[index] ^ 1]) + data[index + 1 :])
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


def crafted(path, change, **about):
    """Write a shard anew as another program would, with a checksum of its own."""
    arrays = {name: torch.from_numpy(array.copy()) for name, array in load_file(path).items()}
    with safe_open(path, "np") as file:
        said = json.loads(file.metadata()["record"])
    change(arrays)
    try:
        crc = checksum({name: array.numpy() for name, array in arrays.items()})
    except TypeError:  # a number format that numpy lacks
        crc = 0
    save_torch(arrays, path, {"record": json.dumps({**said, "crc32": crc, **about})})


@pytest.fixture
def rich(tmp_path):
    """A shard with all arrays."""
    writer = RecordWriter(tmp_path / "rich", header_of(3, hidden=2, top_k=2))
    drawn = [(0, 0, [5, 6, 7], (1, 2)), (0, 1, [8], (1, 2)), (1, 0, [9, 10], (3,))]
    writer.append(0, [text_of(*one, hidden=2, top_k=2) for one in drawn])
    return tmp_path / "rich" / "part-0" / "shard-00000.safetensors"


INTEGERS = ("numbers", "samples", "lengths", "finish", "prompts", "prompt_lengths", "tokens", "top_tokens")
FLOATS = ("probabilities", "hidden", "top_probabilities")
KINDS = (torch.bool, torch.int64, torch.float64, torch.complex64, torch.bfloat16, torch.float8_e4m3fn)


@pytest.mark.parametrize("name", [*INTEGERS, *FLOATS])
def test_every_array_has_its_number_format_and_shape(rich, name):
    whole, array = rich.read_bytes(), load_torch(rich)[name]
    kinds = [array.to(kind) for kind in KINDS]
    shapes = [array.flatten()[0], array[None], array[:0]] + [array[:-1]] * (
        name not in ("prompts", "prompt_lengths")
    )
    for other in (*kinds, *shapes):
        crafted(rich, lambda arrays: arrays.update({name: other.contiguous().clone()}))  # noqa: B023
        with pytest.raises(ConfigError, match=r"shard-00000\.safetensors: this file of a record is damaged: "):
            list(read_record(rich.parents[1]).parts[0])
        rich.write_bytes(whole)
    assert len(list(read_record(rich.parents[1]).parts[0])) == 3


@pytest.mark.parametrize(
    ("name", "values"),
    [
        *((name, [-1]) for name in ("numbers", "samples", "lengths", "prompt_lengths")),
        ("numbers", [2, 1, 0]),
        ("numbers", [0, 0, 0]),
        ("samples", [1, 0, 0]),
        ("samples", [0, 0, 0]),
        ("lengths", [3, 0, 3]),
        ("lengths", [1, 1, 1]),
        ("lengths", [2**31 - 1]),
        ("finish", [4]),
        ("prompt_lengths", [-3, 6]),
        ("prompt_lengths", [3, 0]),
        ("prompt_lengths", [2, 2]),
        ("tokens", [300]),
        ("prompts", [300]),
        ("top_tokens", [[300, 1]]),
        ("top_tokens", [[5, 5]]),
        ("top_tokens", [[6, 5], [7, 6], [8, 7]]),
        ("top_tokens", [[200, 201], [200, 201], [200, 201]]),
        *(("probabilities", [value]) for value in (0.0, -0.5, 1.5, math.nan, math.inf, 0.2)),
        *(("top_probabilities", [[value, 0.0]]) for value in (-0.5, 1.5, math.nan, math.inf, 0.2)),
        ("top_probabilities", [[0.0, 0.1]]),
        ("top_probabilities", [[0.9, 0.9]]),
        ("hidden", [[math.nan, 0.0]]),
        ("hidden", [[0.0, -math.inf]]),
    ],
)
def test_what_no_target_can_have_said_is_refused(rich, name, values):
    def change(arrays):
        replaced = torch.tensor(values)
        arrays[name][: len(replaced)] = replaced.to(arrays[name].dtype)

    crafted(rich, lambda _: None)
    assert len(list(read_record(rich.parents[1]).parts[0])) == 3
    crafted(rich, change)
    with pytest.raises(ConfigError, match=r"shard-00000\.safetensors: this file of a record is damaged: "):
        list(read_record(rich.parents[1]).parts[0])


def test_a_shard_has_the_arrays_that_its_header_says(folder):
    path = folder / "part-0" / "shard-00000.safetensors"
    whole = path.read_bytes()
    for change, message in (
        (lambda arrays: arrays.pop("probabilities"), "it has no probabilities"),
        (lambda arrays: arrays.pop("finish"), "it has no finish"),
        (lambda arrays: arrays.update(hidden=torch.zeros(4, 3)), "it has hidden"),
        (lambda arrays: arrays.update(other=torch.zeros(4)), "it has other"),
    ):
        crafted(path, change)
        with pytest.raises(ConfigError, match=rf"shard-00000\.safetensors: .*{message}"):
            read_record(folder)
        path.write_bytes(whole)
    header = json.loads((folder / "record.json").read_text())
    header["parts"][0]["sampling"]["temperature"] = 0
    (folder / "record.json").write_text(json.dumps(header))
    with pytest.raises(ConfigError, match="it has probabilities"):
        read_record(folder)


NESTED = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize("key", ["first", "texts", "tokens", "crc32"])
def test_metadata_are_numbers(folder, key):
    path = folder / "part-0" / "shard-00000.safetensors"
    arrays = load_file(path)
    for value in ("null", "[]", "{}", "1e999", "Infinity", "true", "-1", "1.5", '"1"', NESTED, None):
        about = {"specdec_record": "1", "first": "0", "texts": "2", "tokens": "4", "crc32": "0", key: value}
        text = ", ".join(f'"{name}": {said}' for name, said in about.items() if said is not None)
        save_file(arrays, path, {"record": f"{{{text}}}"})
        with pytest.raises(ConfigError, match=r"shard-00000\.safetensors: this file of a record is damaged: "):
            read_record(folder)


def test_the_shard_that_miscounts_is_named(folder):
    crafted(folder / "part-0" / "shard-00000.safetensors", lambda _: None, texts=3)
    with pytest.raises(ConfigError, match=r"shard-00000\.safetensors: .*has the shape"):
        read_record(folder)


def test_shards_follow_each_other_by_prompt_and_sample(folder):
    crafted(folder / "part-0" / "shard-00001.safetensors", lambda arrays: arrays["numbers"].zero_())
    with pytest.raises(ConfigError, match=r"shard-00001\.safetensors: .*do not follow"):
        list(read_record(folder).parts[0])


HEADERS = {
    "target": [None, [], "builtin:target", {}],
    "target.model": [None, True, [], "", {"name": "x"}],
    "target.dtype": ["float8", 16],
    "target.device_map": [1, []],
    "target.packed": ["yes", 1],
    "target.compile": [None],
    "target.inflate": [1, {"layers": 0}, {"layers": True}, {"layers": 1, "other": 1}],
    "target.attn_implementation": ["owner/kernel"],
    "target.trust_remote_code": [True],
    "vocab_size": [0, True, 3.0, "300", None],
    "eos_ids": [None, 0, [-1], [True], ["0"]],
    "start_id": [-1, 1.5, "0", 300],
    "max_length": [0, -1, True],
    "hidden_size": [0, -1],
    "top_k": [-1, True],
    "versions": [[], {"specdec": 1}],
    "times": [1, {}, {"device": "x", "verify": [], "overhead": 0}, {"device": "x", "verify": [0], "overhead": 0}],
    "source": [1],
    "parts": [None, {}, [1]],
    "parts.0.texts": [-1, True, 1.0],
    "parts.0.sampling": [
        {"top_p": math.nan},
        {"top_p": 1.5},
        {"temperature": -1},
        {"temperature": True},
        {"x": 1},
    ],
    "parts.0.generation": [{"max_new_tokens": 0}, {"seed": "1"}, {"other": 1}],
    "parts.0.prompts": [None, {}, {"count": -1}, {"count": 1, "other": 1}, {"count": 1, "settings": []}],
    "other": [1],
}


@pytest.mark.parametrize("key", HEADERS)
def test_every_key_of_a_header_is_checked(folder, key):
    path = folder / "record.json"
    whole = path.read_text()
    for value in HEADERS[key]:
        header = json.loads(whole)
        inside, *names = [header, *key.split(".")]
        for name in names[:-1]:
            inside = inside[int(name) if isinstance(inside, list) else name]
        inside[names[-1]] = value
        path.write_text(json.dumps(header))
        with pytest.raises(ConfigError, match=rf"record\.json: .*damaged: {key.partition('.')[0]}"):
            read_record(folder)


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
    assert sum(path.stat().st_size for path in record.path.rglob("*")) < 300_000
    assert "/" not in record.header.target.model_dump_json()


def test_reading_a_record_imports_no_torch():
    code = (
        "import sys; from specdec_core.offline.record import read_record; r = read_record('builtin:code'); "
        "print(r.header.vocab_size, len(list(r.parts[0]))); "
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.split()) == (0, ["4096", "48"]), done.stderr
