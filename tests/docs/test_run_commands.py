"""The commands that pages show run, at the smallest cost that they can have."""

from __future__ import annotations

import importlib
import re
import shlex
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from specdec_core.cli.main import app
from specdec_core.registry import default_registry
from tests.docs.pages import ROOT
from tests.docs.test_commands import identity, shown_commands

EXAMPLES = ROOT / "docs" / "examples"

# What is not run here, and why. Its options are read by test_commands.py all the same.
OTHER_PROGRAMS = {
    "echo": "a part of the shell",
    "pip": "installs; .ci/run and .ci/newcomer do it",
    "python": "a measurement of minutes",
    "python3.11": "makes an environment; .ci/run does it",
    "pytest": "a run of tests within tests; .ci/newcomer, and tests/testing runs the kit so",
    "run": "all of CI",
}
NOT_RUN = {
    r"train (heads|transformer) .*--minutes": "trains for minutes; tests/cli runs them on little text",
    r"owner/name|meta-llama/": "stands for a model of the hub",
    r"^train ngram .*--text": "reads the whole standard library; the fixture `arpa` trains on little text",
    r"^measure ": "takes long; tests/cli runs it on little",
    r"^check ": "the whole kit; tests/cli runs it",
    r"^compare (?!examples/quickstart)": "takes long; their studies are read by other tests",
}

# Put behind a command, so that it costs little. The last word counts where an option is given twice.
SMALLER = {
    "compare": "--set repeats=1 --set generation.max_new_tokens=8 --set prompts.limit=1",
    "generate": "--max-new-tokens 8",
}
REFUSED = {"prompt-cpoy": "Did you mean 'prompt-copy'?"}

STUDY = """\
target: builtin:target
prompts: [import os]
generation: {max_new_tokens: 8}
runs:
  - {drafter: prompt-copy, gamma: 4}
"""


def distinct() -> list[list[str]]:
    """Each command of specdec once, without what is set in the environment."""
    found: dict[str, list[str]] = {}
    for _, words in shown_commands():
        name = next(n for n, word in enumerate(words) if "=" not in word)
        if Path(words[name]).name == "specdec":
            found.setdefault(shlex.join(words[name + 1 :]), words[name + 1 :])
    return list(found.values())


def reason_not_to(words: list[str]) -> str | None:
    """Why a command is not run here; None where it is."""
    line = " ".join(words)
    return next((reason for pattern, reason in NOT_RUN.items() if re.search(pattern, line)), None)


def smaller(words: list[str]) -> list[str]:
    """The command with what makes it cost little."""
    return [*words, *shlex.split(SMALLER.get(words[0], ""))]


@pytest.fixture(scope="module")
def arpa(tmp_path_factory):
    """A table of the order that pages train, of little text."""
    folder = tmp_path_factory.mktemp("arpa")
    (folder / "text.py").write_text("import os\nimport sys\n", encoding="utf-8")
    made = folder / "stdlib.3.arpa"
    words = ["train", "ngram", "--text", str(folder / "text.py"), "--order", "3", "--output", str(made)]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    return made


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with what readers have in theirs, where the plugins of the tutorials are installed."""
    for name in ("examples", "docs"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "study.yaml").write_text(STUDY, encoding="utf-8")
    (tmp_path / "prompt.txt").write_text("def main():", encoding="utf-8")
    for plugin in ("recent", "follow"):
        monkeypatch.syspath_prepend(str(EXAMPLES / f"specdec-{plugin}"))
        info = tmp_path / "installed" / f"specdec_{plugin}-0.1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: specdec-{plugin}\nVersion: 0.1.0\n")
        (info / "entry_points.txt").write_text(f"[specdec]\n{plugin} = specdec_{plugin}\n")
    monkeypatch.syspath_prepend(str(tmp_path / "installed"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SPECDEC_PLUGINS", raising=False)
    torch.set_num_threads(1)  # what conftest.py does once torch is imported, and a command imports it later
    importlib.invalidate_caches()
    default_registry.cache_clear()
    yield tmp_path
    default_registry.cache_clear()
    for module in ("specdec_recent", "specdec_follow"):
        sys.modules.pop(module, None)


@pytest.mark.parametrize("words", [words for words in distinct() if reason_not_to(words) is None], ids=identity)
def test_a_command_that_is_shown_runs(place, request, words):
    if any("stdlib.3.arpa" in word for word in words) and words[0] != "train":
        (place / "stdlib.3.arpa").symlink_to(request.getfixturevalue("arpa"))
    given = "def main():" if "-" in words else None
    result = CliRunner().invoke(app, smaller(words), input=given)
    refusal = next((said for word, said in REFUSED.items() if word in words), None)
    if refusal is None:
        assert result.exit_code == 0, result.output
        if "--output" in words:
            assert (place / words[words.index("--output") + 1]).exists()
        else:
            assert result.stdout.strip()
    else:
        assert result.exit_code == 2, result.output
        assert refusal in " ".join(result.stderr.split())


def test_what_is_not_run_stands_on_a_page():
    lines = [" ".join(words) for words in distinct()]
    for pattern in NOT_RUN:
        assert any(re.search(pattern, line) for line in lines), pattern
    assert set(REFUSED) <= {word for words in distinct() for word in words}


def test_other_programs_are_known():
    programs = {Path(next(word for word in words if "=" not in word)).name for _, words in shown_commands()}
    assert programs - {"specdec"} == set(OTHER_PROGRAMS)
