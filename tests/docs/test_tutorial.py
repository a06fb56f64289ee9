"""The tutorial, followed from its first command to its last."""

import importlib
import os
import shlex
import subprocess
import sys

import pytest

from specdec_core import TargetInfo
from specdec_core.registry.registry import default_registry
from tests.commands import run_command
from tests.docs.pages import ROOT, TUTORIAL, blocks, load, name, outputs, shell_lines, unchanging

walk = load(ROOT / "docs" / "walk.py")
tidy = load(ROOT / "docs" / "generate.py").tidy
# Run by .ci/newcomer, which follows the page with pip in an environment of its own.
OTHERS = ["cd specdec-last-word", "pip install -e .[test]", "pip wheel . --no-deps --wheel-dir dist"]


@pytest.fixture
def follow(tmp_path, monkeypatch):
    """Runs a command as the tutorial does, in this process unless it is pytest."""
    monkeypatch.setenv("SPECDEC_PLUGINS", "specdec-core,specdec-last-word")

    def run(command, folder):
        command, _, shortened = command.partition(" | ")
        words = shlex.split(command)
        monkeypatch.chdir(folder)
        monkeypatch.syspath_prepend(str(folder))
        monkeypatch.syspath_prepend(str(folder / walk.INSTALLED))
        sys.modules.pop("specdec_last_word", None)  # the file may have been replaced
        importlib.invalidate_caches()
        default_registry.cache_clear()
        if words[0] == "pytest":
            path = os.pathsep.join([*sys.path[:2], *filter(None, [os.environ.get("PYTHONPATH")])])
            done = subprocess.run(
                [sys.executable, "-m", *words],
                env={**os.environ, "PYTHONPATH": path},
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, done.stdout + done.stderr
            return done.stdout
        if words[1] == "compare":  # each repeat counts the same
            words += ["--set", "repeats=1"]
        result = run_command(*words[1:], env={"NO_COLOR": "1"})
        assert result.exit_code == 0, result.output
        if not shortened:
            return result.stdout
        done = subprocess.run(
            ["sh", "-c", shortened], input=result.stdout, capture_output=True, text=True, check=True
        )
        return done.stdout

    yield run
    sys.modules.pop("specdec_last_word", None)
    default_registry.cache_clear()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_command_prints_what_the_page_shows(follow, tmp_path):
    for command, shown, printed in walk.walk(tmp_path, follow):
        assert unchanging(command, printed) == unchanging(command, shown), (
            "python docs/generate.py --outputs last-word"
        )


def test_every_command_of_the_page_is_run():
    shown = {output.language.partition(" |")[0] for output in outputs(TUTORIAL)}
    for block in blocks("sh", page=name(TUTORIAL)):
        for line in block.text.splitlines():
            assert line in shown or next(iter(shell_lines(line))) in map(shlex.split, OTHERS), line


def test_the_drafter_of_the_page_is_the_written_one_with_more_context(follow, tmp_path):
    command, shown, printed = next(walk.walk(tmp_path, follow))
    assert command.startswith("specdec new")
    assert tidy(printed) == tidy(shown)
    written = load(tmp_path / walk.PACKAGE / "specdec_last_word.py")
    sys.modules.pop("loaded_specdec_last_word")
    better = load(ROOT / "docs" / "examples" / walk.PACKAGE / "specdec_last_word.py")
    target, tokens = TargetInfo(vocab_size=16), [1, 2, 5, 3, 4, 1, 2, 6, 3, 4, 3]
    old = written.LastWordDrafter(written.LastWordConfig(), target)
    one = better.LastWordDrafter(better.LastWordConfig(context=1), target)
    assert old.draft(tokens, 3) == one.draft(tokens, 3) == [4]
    longer = better.LastWordDrafter(better.LastWordConfig(), target)
    assert longer.draft([6, 1, 2, 7, 1, 3, 7, 1], 2) == [3, 7]
    assert old.draft([6, 1, 2, 7, 1, 3, 7, 1], 2) == []
