"""Files and folders are written completely or not at all."""

import errno
import os
from pathlib import Path

import pytest

from specdec_core.interface import ConfigError
from specdec_core.interface.files import check_output, writing_file, writing_folder


def tree(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def test_a_file_gets_its_name_when_it_is_complete(tmp_path):
    path = tmp_path / "new" / "deep" / "table.arpa"
    with writing_file(path) as made:
        made.write_text("half")
        assert made.name == "table.arpa"
        assert not path.exists()
        written = made.stat().st_ino
    assert path.read_text() == "half"
    assert path.stat().st_ino == written  # renamed, not copied
    assert tree(tmp_path) == ["new", "new/deep", "new/deep/table.arpa"]


@pytest.mark.parametrize("raised", [ValueError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("writing", [writing_file, writing_folder])
def test_an_interrupted_write_leaves_nothing_and_keeps_the_old_file(tmp_path, writing, raised):
    def fail(path: Path) -> None:
        with writing(path) as made:
            (made if writing is writing_file else made / "part").write_text("half")
            raise raised("oops")

    with pytest.raises(raised):
        fail(tmp_path / "new" / "deep" / "result")
    assert tree(tmp_path) == []
    (tmp_path / "result").write_text("old")
    with pytest.raises(raised):
        fail(tmp_path / "result")
    assert tree(tmp_path) == ["result"]
    assert (tmp_path / "result").read_text() == "old"


def test_a_folder_is_replaced_as_a_whole(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "stale").write_text("")
    with writing_folder(folder) as made:
        (made / "config.json").write_text("{}")
        assert tree(folder) == ["stale"]
    assert tree(tmp_path) == ["model", "model/config.json"]


def test_a_folder_that_cannot_be_moved_into_place_leaves_the_old_one(tmp_path, monkeypatch):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("old")
    rename = Path.rename

    def fail(self, to):
        if ".part" in str(self) and self.name == "model":
            raise OSError(errno.EIO, "bad sector")
        return rename(self, to)

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(ConfigError, match=r"cannot be written: .*bad sector"), writing_folder(folder) as made:
        (made / "config.json").write_text("new")
    assert tree(tmp_path) == ["model", "model/config.json"]
    assert (folder / "config.json").read_text() == "old"


@pytest.mark.parametrize("writing", [writing_file, writing_folder])
def test_os_errors_become_messages(tmp_path, writing):
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    said = r"output .*result cannot be written: .*No space left.*another --output"
    with pytest.raises(ConfigError, match=said), writing(tmp_path / "result"):
        raise full
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"), writing(tmp_path / "file" / "result"):
        pass
    assert tree(tmp_path) == ["file"]


def test_a_file_is_replaced_only_with_overwrite(tmp_path):
    path = tmp_path / "table"
    path.write_text("")
    with pytest.raises(ConfigError, match=r"table is there already; --overwrite replaces it"):
        check_output(path, overwrite=False)
    check_output(path, overwrite=True)


def test_a_folder_is_replaced_only_if_it_holds_the_same_kind_of_files(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "thesis.tex").write_text("")
    for overwrite in (False, True):
        with pytest.raises(ConfigError, match=r"with other things in it \(but no config\.json\), which stay"):
            check_output(folder, overwrite=overwrite, folder_with="config.json")
    (folder / "config.json").write_text("")
    with pytest.raises(ConfigError, match="is there already"):
        check_output(folder, overwrite=False, folder_with="config.json")
    check_output(folder, overwrite=True, folder_with="config.json")


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_file_does_not_replace_a_folder_nor_a_folder_a_file(tmp_path, overwrite):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="is a file, and a folder goes there"):
        check_output(tmp_path / "file", overwrite, folder_with="config.json")
    with pytest.raises(ConfigError, match="is a folder, and a file goes there"):
        check_output(tmp_path, overwrite)
    with pytest.raises(ConfigError, match="file is not a folder"):
        check_output(tmp_path / "file" / "below" / "deep", overwrite)
