"""One study at a time writes into a folder of results."""

import subprocess
import sys

import pytest

from specdec_core.study import compare
from specdec_core.study.report import result_files
from specdec_core.study.report.result_files import write_results
from specdec_core.study.run.folder import StorageError, exclusive_lock
from tests.study.toy_study import STUDY, Recorder

HOLD = """
import sys
from pathlib import Path
from specdec_core.study.run.folder import exclusive_lock

with exclusive_lock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_folder_has_one_study_at_a_time(tmp_path):
    folder = tmp_path / "new" / "folder"
    refused = pytest.raises(StorageError, match=r"folder: another study is running.*--output")
    with exclusive_lock(folder), refused, exclusive_lock(folder):
        pass
    with exclusive_lock(folder), exclusive_lock(tmp_path):
        pass


def test_a_killed_study_locks_nothing(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        try:
            assert other.stdout.readline() == b"held\n"
            with pytest.raises(StorageError, match="another study is running"), exclusive_lock(tmp_path):
                pass
        finally:
            other.kill()
    with exclusive_lock(tmp_path):
        assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_a_second_study_is_refused_before_a_model_is_loaded(study, tmp_path):
    recorder = Recorder()
    with exclusive_lock(tmp_path / "out"), pytest.raises(StorageError, match="another study is running"):
        compare(study(STUDY), tmp_path / "out", progress=recorder)
    assert recorder.stages == []


def test_a_folder_is_locked_until_the_results_are_written(study, tmp_path, monkeypatch):
    def written(folder, *given):
        with pytest.raises(StorageError, match="another study is running"), exclusive_lock(folder):
            pass
        return write_results(folder, *given)

    monkeypatch.setattr(result_files, "write_results", written)
    assert compare(study(STUDY, "repeats=1"), tmp_path / "out", progress=False).report.is_file()


def test_what_cannot_be_locked_is_not_refused(tmp_path):
    (tmp_path / ".lock").mkdir()
    with exclusive_lock(tmp_path):
        pass
