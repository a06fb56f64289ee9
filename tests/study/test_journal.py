"""Finished repeats are on disk, whatever stops a study."""

import pytest

from specdec_core.decoding.counts import Metrics, RequestMetrics, StepTimes
from specdec_core.interface import ConfigError
from specdec_core.study.run.finished_repeats import Output, Repeat
from specdec_core.study.run.folder import StorageError
from specdec_core.study.run.study_session import Journal

IDENTITY = {"settings": {"seed": 0, "model": "m"}, "runs": ["a"], "device": "cpu"}


def repeat(number, run="baseline"):
    counts = RequestMetrics(4, 2, (4, 1), (2, 0), 2)
    outputs = (Output((3, 1, 4), "pi", counts), Output((), None))
    metrics = Metrics(tokens=8, seconds=0.5, verified_at=(4, 2), times=(StepTimes(), StepTimes(3, 0.1, 0.2, 0.4)))
    return Repeat("tenth", run, number, metrics, (), outputs, (0.25, None))


def test_what_was_added_is_there_again(tmp_path):
    journal = Journal(tmp_path / "new" / "folder", IDENTITY)
    journal.add(repeat(1))
    journal.add(repeat(1, "other"))
    again = Journal(tmp_path / "new" / "folder", IDENTITY)
    assert again.finished == {("tenth", "baseline", 1): repeat(1), ("tenth", "other", 1): repeat(1, "other")}


@pytest.mark.parametrize("other", ["my recorder\n", "3\n", '{"a": 1}\n'])
def test_a_file_that_is_no_journal_is_not_touched(tmp_path, other):
    (tmp_path / "repeats.jsonl").write_text(other)
    with pytest.raises(ConfigError, match=r"repeats.jsonl:1: not a line of"):
        Journal(tmp_path, IDENTITY)
    assert (tmp_path / "repeats.jsonl").read_text() == other


@pytest.mark.parametrize("torn", [b'{"run": "baseline", "rep', b'{"run": "baseline"}', b"\x00\x00\x00"])
def test_a_torn_last_line_is_cut_off(tmp_path, torn):
    Journal(tmp_path, IDENTITY).add(repeat(1))
    with (tmp_path / "repeats.jsonl").open("ab") as file:
        file.write(torn)
    journal = Journal(tmp_path, IDENTITY)
    assert set(journal.finished) == {("tenth", "baseline", 1)}
    journal.add(repeat(2))
    assert set(Journal(tmp_path, IDENTITY).finished) == {("tenth", "baseline", 1), ("tenth", "baseline", 2)}


@pytest.mark.parametrize("before", [b"", b'{"fingerprint": "ab'])
def test_an_empty_journal_and_a_torn_first_line_are_as_good_as_none(tmp_path, before):
    (tmp_path / "repeats.jsonl").write_bytes(before)
    Journal(tmp_path, IDENTITY).add(repeat(1))
    assert set(Journal(tmp_path, IDENTITY).finished) == {("tenth", "baseline", 1)}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"device": "cuda"}, 'device: "cpu" there, "cuda" now'),
        ({"settings": {"seed": 1, "model": "m"}}, "settings.seed: 0 there, 1 now"),
        ({"runs": ["b"]}, 'runs[0]: "a" there, "b" now'),
        ({"runs": []}, "runs: 1 entries there, 0 now"),
    ],
)
def test_another_study_is_refused_with_what_differs(tmp_path, change, said):
    Journal(tmp_path, IDENTITY).add(repeat(1))
    with pytest.raises(ConfigError) as caught:
        Journal(tmp_path, {**IDENTITY, **change})
    assert said in str(caught.value)
    assert "--output" in str(caught.value)
    assert "--fresh" in str(caught.value)
    assert set(Journal(tmp_path, IDENTITY).finished) == {("tenth", "baseline", 1)}


def test_a_damaged_line_is_named(tmp_path):
    Journal(tmp_path, IDENTITY).add(repeat(1))
    path = tmp_path / "repeats.jsonl"
    head, line = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([head, line[:-3], line, b""]))
    with pytest.raises(ConfigError, match=r"repeats.jsonl:2: not a line of"):
        Journal(tmp_path, IDENTITY)


def test_what_is_equal_is_kept_once(tmp_path):
    written = Journal(tmp_path, IDENTITY)
    written.add(repeat(1))
    written.add(repeat(1, "other"))
    for journal in (written, Journal(tmp_path, IDENTITY)):
        one, other = journal.finished.values()
        assert one.outputs is other.outputs


def test_fresh_begins_again(tmp_path):
    Journal(tmp_path, IDENTITY).add(repeat(1))
    assert not Journal(tmp_path, {**IDENTITY, "device": "cuda"}, fresh=True).finished
    assert len((tmp_path / "repeats.jsonl").read_text().splitlines()) == 1


def test_a_path_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file", tmp_path / "file" / "folder"):
        with pytest.raises(StorageError, match="file is not a folder"):
            Journal(path, IDENTITY)
