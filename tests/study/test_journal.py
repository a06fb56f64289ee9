"""Finished repeats are on disk, whatever stops a study."""

import errno
import json
import math
import os
import shutil

import pytest

from specdec_core.decoding import Metrics, PluginFailure, RequestMetrics
from specdec_core.decoding.metrics import StepTimes
from specdec_core.interface import ConfigError
from specdec_core.study.report.quality import Output
from specdec_core.study.run import journal as module
from specdec_core.study.run.folder import StorageError, make_folder
from specdec_core.study.run.journal import Journal
from specdec_core.study.run.repeats import Repeat

IDENTITY = {"settings": {"seed": 0, "model": "m"}, "runs": ["a"], "device": "cpu"}


def repeat(number, run="baseline"):
    failures = (PluginFailure("x", 1, "m", "x.py:3"),)
    counts = RequestMetrics(4, 2, (4, 1), (2, 0), 2)
    outputs = (Output((3, 1, 4), "pi", counts), Output((), None))
    metrics = Metrics(tokens=8, seconds=0.5, verified_at=(4, 2), times=(StepTimes(), StepTimes(3, 0.1, 0.2, 0.4)))
    return Repeat("tenth", run, number, metrics, failures, outputs, (0.25, None))


def test_what_was_added_is_there_again(tmp_path):
    journal = Journal(tmp_path / "new" / "folder", IDENTITY)
    journal.add(repeat(1))
    journal.add(repeat(1, "other"))
    again = Journal(tmp_path / "new" / "folder", IDENTITY)
    assert again.finished == {("tenth", "baseline", 1): repeat(1), ("tenth", "other", 1): repeat(1, "other")}


@pytest.mark.parametrize(
    "other", ["my recorder\n", "my recorder", "\x00" * 9, "[" * 100_000 + "\n", "3\n", '{"a": 1}\n']
)
def test_a_file_that_is_no_journal_is_not_touched(tmp_path, other):
    (tmp_path / "repeats.jsonl").write_text(other)
    with pytest.raises(ConfigError, match=r"is not the journal of a study|holds the results of another study"):
        Journal(tmp_path, IDENTITY)
    assert (tmp_path / "repeats.jsonl").read_text() == other


@pytest.mark.parametrize("torn", [b'{"run": "baseline", "rep', b'{"run": "baseline"}', b"\x00\x00\x00"])
def test_a_torn_last_line_is_left_out_and_cut_off(tmp_path, torn):
    Journal(tmp_path, IDENTITY).add(repeat(1))
    with (tmp_path / "repeats.jsonl").open("ab") as file:
        file.write(torn)
    with pytest.warns(RuntimeWarning, match=r"1 line cannot be used \(3\): cut off"):
        journal = Journal(tmp_path, IDENTITY)
    assert set(journal.finished) == {("tenth", "baseline", 1)}
    journal.add(repeat(2))
    assert set(Journal(tmp_path, IDENTITY).finished) == {("tenth", "baseline", 1), ("tenth", "baseline", 2)}


def test_a_torn_first_line_is_as_good_as_none(tmp_path):
    (tmp_path / "repeats.jsonl").write_bytes(b'{"fingerprint": "ab')
    with pytest.warns(RuntimeWarning, match=r"1 line cannot be used \(1\): cut off"):
        journal = Journal(tmp_path, IDENTITY)
    journal.add(repeat(1))
    assert set(Journal(tmp_path, IDENTITY).finished) == {("tenth", "baseline", 1)}


def test_a_first_line_that_never_ends_is_not_read_whole(tmp_path):
    path = tmp_path / "repeats.jsonl"
    with path.open("wb") as file:
        file.write(b'{"fingerprint": "')
        file.truncate(3 << 30)
    with pytest.raises(ConfigError, match="is not the journal of a study"):
        Journal(tmp_path, IDENTITY)
    assert path.stat().st_size == 3 << 30


def test_an_empty_journal_is_started(tmp_path):
    (tmp_path / "repeats.jsonl").touch()
    Journal(tmp_path, IDENTITY).add(repeat(1))
    assert set(Journal(tmp_path, IDENTITY).finished) == {("tenth", "baseline", 1)}


def test_a_pipe_is_not_read(tmp_path):
    os.mkfifo(tmp_path / "repeats.jsonl")
    with pytest.raises(StorageError, match=r"repeats\.jsonl is a pipe or a device\. Remove it"):
        Journal(tmp_path, IDENTITY)


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


def shapes(line):
    """Return lines that a journal may hold instead of a good one."""
    good = json.loads(line)
    changed = [
        {**good, "metrics": {**good["metrics"], "seconds": value}}
        for value in (math.nan, 1e999, -1, "0.5", None, [])
    ]
    changed += [{key: value for key, value in good.items() if key != missing} for missing in good]
    changed += [
        {**good, "outputs": []},
        {**good, "run": "other"},
        {**good, "repeat": 2.5},
        [good],
        "x",
        3,
        None,
        {},
    ]
    bare = [b"", b"{", b"\x00\x00", b"\xff\xfe\x00", b"[" * 100_000, b'{"repeat": ' + b"9" * 5000 + b"}"]
    return [*(json.dumps(one).encode() for one in changed), *bare, line.replace(b"pi", b"po"), line[:-3]]


def test_a_line_of_any_other_shape_costs_that_line_only(tmp_path):
    journal = Journal(tmp_path, IDENTITY)
    for number in (1, 2, 3):
        journal.add(repeat(number))
    path = tmp_path / "repeats.jsonl"
    head, first, second, third = path.read_bytes().splitlines()
    for other in shapes(second):
        path.write_bytes(b"\n".join([head, first, other, third, b""]))
        with pytest.warns(RuntimeWarning, match=r"repeats\.jsonl: 1 line cannot be used \(3\)"):
            journal = Journal(tmp_path, IDENTITY)
        assert set(journal.finished) == {("tenth", "baseline", 1), ("tenth", "baseline", 3)}
        journal.add(repeat(2))
        with pytest.warns(RuntimeWarning, match="1 line cannot be used"):
            again = Journal(tmp_path, IDENTITY)
        assert dict(again.finished) == {one.key: one for one in map(repeat, (1, 2, 3))}


def test_lines_of_another_journal_and_second_ones_are_left_out(tmp_path):
    Journal(tmp_path / "other", {**IDENTITY, "device": "cuda"}).add(repeat(2))
    Journal(tmp_path, IDENTITY).add(repeat(1))
    foreign = (tmp_path / "other" / "repeats.jsonl").read_bytes().splitlines(keepends=True)
    path = tmp_path / "repeats.jsonl"
    own = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*own, *foreign, own[1] * 4]))
    with pytest.warns(RuntimeWarning, match=r"6 lines cannot be used \(3, 4, 5, 6, 7, \.\.\.\)"):
        assert set(Journal(tmp_path, IDENTITY).finished) == {("tenth", "baseline", 1)}


def test_what_is_equal_is_kept_once(tmp_path):
    written = Journal(tmp_path, IDENTITY)
    written.add(repeat(1))
    written.add(repeat(1, "other"))
    for journal in (written, Journal(tmp_path, IDENTITY)):
        one, other = journal.finished.values()
        assert one.outputs is other.outputs
        assert one.metrics.verified_at is other.metrics.verified_at


@pytest.mark.parametrize("ending", ["deleted", "cut", "longer"])
def test_a_journal_that_changes_in_mid_run_is_not_called_stored(tmp_path, ending):
    journal = Journal(tmp_path / "out", IDENTITY)
    journal.add(repeat(1))
    assert journal.missing() is None
    if ending == "deleted":
        shutil.rmtree(tmp_path / "out")
    else:
        journal.path.write_bytes(journal.path.read_bytes()[:-5] if ending == "cut" else bytes(10_000))
    said = "has disappeared while the study ran" if ending == "deleted" else "was changed by something else"
    assert said in journal.missing()
    with pytest.raises(StorageError, match=said):
        journal.add(repeat(2))


def test_fresh_begins_again(tmp_path):
    Journal(tmp_path, IDENTITY).add(repeat(1))
    assert not Journal(tmp_path, {**IDENTITY, "device": "cuda"}, fresh=True).finished
    assert len((tmp_path / "repeats.jsonl").read_text().splitlines()) == 1


def test_no_space_left_keeps_what_is_finished(tmp_path, monkeypatch):
    journal = Journal(tmp_path, IDENTITY)
    journal.add(repeat(1))

    def half_a_line(path, line):
        with path.open("ab") as file:
            file.write(line[: len(line) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(module, "_append_durably", half_a_line)
        with pytest.raises(StorageError, match=r"no space left on this disk\. 1 finished repeat"):
            journal.add(repeat(2))
    lines = (tmp_path / "repeats.jsonl").read_text().splitlines()
    assert [json.loads(line).get("repeat") for line in lines] == [None, 1]
    journal = Journal(tmp_path, IDENTITY)
    journal.add(repeat(2))
    assert set(Journal(tmp_path, IDENTITY).finished) == {("tenth", "baseline", 1), ("tenth", "baseline", 2)}


def test_a_path_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError, match="results cannot be stored there"):
        Journal(tmp_path / "file", IDENTITY)
    with pytest.raises(StorageError, match="results cannot be stored there"):
        make_folder(tmp_path / "file" / "folder")
