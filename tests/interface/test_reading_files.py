"""Files that users name, and the length of messages about them."""

from pathlib import Path

import pytest

from specdec_core.interface import ConfigError
from specdec_core.interface.errors import exception_text, reading
from specdec_core.interface.files import input_path


def test_a_path_is_where_it_was_written(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", "/home/somebody")
    assert input_path("a/b.txt", tmp_path) == tmp_path / "a/b.txt"
    assert input_path("/a/b.txt", tmp_path) == Path("/a/b.txt")
    assert input_path("~/b.txt", tmp_path) == Path("/home/somebody/b.txt")


@pytest.mark.parametrize(
    ("home", "said"),
    [("/home/me", "~/a (~) /home/meadow /srv/home/me"), ("/", "/home/me/a (/home/me) /home/meadow /srv/home/me")],
)
def test_messages_that_are_kept_do_not_say_where_a_home_folder_is(monkeypatch, home, said):
    monkeypatch.setenv("HOME", home)
    error = OSError("/home/me/a (/home/me) /home/meadow /srv/home/me")
    assert exception_text(error) == f"OSError: {said}"


def test_bytes_that_are_not_utf8_are_found_in_a_long_file(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_bytes(b"{}\n" * 30_000 + b"a\xff\n")
    said = pytest.raises(ConfigError, match="line 30001: byte 1 is not UTF-8")
    with said, reading(path, ConfigError, "JSON lines"), path.open(encoding="utf-8") as lines:
        list(lines)
