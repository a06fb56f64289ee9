"""Files that users name: what is no file, never ends or cannot be is said, not read."""

import os
import socket
import threading
from pathlib import Path

import pytest

from specdec_core.interface import ConfigError, ModelError
from specdec_core.interface.errors import exception_text, reading, unknown_name
from specdec_core.interface.files import input_path, open_input, open_text


def test_a_path_is_where_it_was_written(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", "/home/somebody")
    assert input_path("a/b.txt", tmp_path) == tmp_path / "a/b.txt"
    assert input_path("/a/b.txt", tmp_path) == Path("/a/b.txt")
    assert input_path("~/b.txt", tmp_path) == Path("/home/somebody/b.txt")


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("~no-such-user/x", "~no-such-user/x: the home folder ~no-such-user does not exist"),
        ("a\0b", "a\0b: this is not a path: it has a NUL character."),
        ("a\ud800b", "not a path: it has half of a surrogate pair"),
        ("n" * 300, "cannot be read: File name too long."),
        ("n/" * 5000, "cannot be read: File name too long."),
    ],
)
def test_what_cannot_be_a_path(tmp_path, path, said):
    with pytest.raises(ModelError) as caught:
        input_path(path, tmp_path, ModelError)
    assert said in str(caught.value)
    assert len(str(caught.value)) < 300


def test_a_loop_of_links(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(ConfigError, match="loop: cannot be read: Too many levels of symbolic links"):
        input_path("loop", tmp_path)


def read(path, **options):
    with reading(path, ConfigError, "text"), open_text(path, **options) as file:
        return file.read()


def test_a_file_is_read_up_to_a_limit(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfa\r\nb\n")
    assert read(path) == "a\nb\n"
    assert read(path, newline="", limit=8) == "a\r\nb\n"
    with pytest.raises(ConfigError, match=r"a\.txt: cannot be read: it has more than 7 bytes"):
        read(path, limit=7)
    with pytest.raises(OSError, match="more than 7 bytes"), open_input(path, 7) as file:
        list(file)


def test_the_lines_before_the_limit_can_be_read(tmp_path):
    path = tmp_path / "long.txt"
    path.write_bytes(b"line\n" * 100_000)
    with open_text(path, limit=200_000) as lines:
        assert next(lines) == "line\n"


def test_what_is_no_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
        for name, kind in (("pipe", "a named pipe"), ("socket", "a socket"), ("/dev/zero", "a device")):
            with pytest.raises(ConfigError, match=f"cannot be read: it is {kind}; a file is needed"):
                read(tmp_path / name)
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        read(tmp_path)


def test_what_the_shell_has_opened_is_read():
    out, into = os.pipe()
    try:
        writer = threading.Thread(target=lambda: (os.write(into, b"import os\n"), os.close(into)))
        writer.start()
        assert read(Path(f"/dev/fd/{out}")) == "import os\n"
        writer.join()
    finally:
        os.close(out)


def test_a_message_has_a_beginning_and_an_end_however_long_it_is():
    columns = ", ".join(f"column{number}" for number in range(200_000))
    said = str(ConfigError(f"no column 'prompt' among {columns}. Name it with `column`."))
    assert len(said) <= 8000
    assert said.startswith("no column 'prompt' among column0")
    assert said.endswith("column199999. Name it with `column`.")
    assert "characters ..." in said
    assert len(exception_text(ValueError("x" * 100_000))) < 1100


def test_a_message_does_not_repeat_a_long_name_or_a_long_list():
    said = unknown_name("drafter", "x" * 100_000, map(str, range(10_000)))
    assert len(said) < 1000
    assert said.endswith("and 9,900 more.")


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
    with said, reading(path, ConfigError, "JSON lines"), open_text(path) as lines:
        list(lines)
