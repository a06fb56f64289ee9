"""The commands that pages show run, each at the smallest cost that it can have."""

from __future__ import annotations

import importlib
import json
import re
import runpy
import shlex
import shutil
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from specdec_core.cli.main import app
from specdec_core.registry import default_registry
from specdec_core.shipped import builtin_model
from tests.docs.pages import ROOT
from tests.docs.test_commands import identity, shown_commands

EXAMPLES = ROOT / "docs" / "examples"

# Programs that are not run here, and where they are. Their options are read by test_commands.py all the same.
OTHER_PROGRAMS = {
    "echo": "a part of the shell",
    "pip": ".ci/run installs the checkout, .ci/newcomer new packages, test_write_a_plugin.py docs/examples",
    "python3.11": ".ci/run makes its environment",
    "pytest": "test_write_a_plugin.py tests docs/examples, tests/testing/test_pytest.py has --specdec",
    "run": "all of CI",
}

# Put behind a command that has a pattern, the first that fits, so that it costs little: the last word counts where
# an option is given twice.
ONCE = "--set repeats=1 --set generation.max_new_tokens=4"
HARDLY_INFLATED = "--inflate-layers 1 --inflate-width 8 --repeats 1"
BRIEF = f"{HARDLY_INFLATED} --threads 1 --prompts 1 --new-tokens 8"
SMALLER = {
    r"^compare examples/paper/": f"{ONCE} --set target=builtin:t5-target"
    " --set tasks.ende.prompts.limit=1 --set tasks.summaries.prompts.limit=1",
    r"^compare ": f"{ONCE} --set prompts.limit=1",
    r"^generate ": "--max-new-tokens 8",
    r"^measure ": "--tokens 16 --max-new-tokens 8 --gamma 2 --rows 1 --timings 1",
    r"^check drafter": "--only budget-respected",
    r"^check gamma": "--only gamma-a-row",
    r"^train ngram ": "--text text.py",
    r"^train (transformer|heads)": "--text text.py --samples 128 --held-out 32 --length 32 --batch-tokens 64"
    " --minutes 0.001",
    r"^python benchmarks/vs_transformers": f"{HARDLY_INFLATED} --tokens 4 --prompts 1 --temperatures 0",
    r"^python benchmarks/batches": f"{HARDLY_INFLATED} --threads 1 --new-tokens 8 --batch-sizes 2",
    r"^python benchmarks/overhead": "--vocab 100 --layers 1 --hidden 8 --contexts 10 --steps 12 --threads 1",
    r"^python benchmarks/controllers": f"{BRIEF} --only prompt-copy --gammas 1 --temperatures 0",
    r"^python benchmarks/drafters": f"{BRIEF} --only random --vocabs 100 --contexts 16 --steps 1",
    r"^python benchmarks/packed": f"{HARDLY_INFLATED} --threads 1 --context 4 --drafted 0",
}
# A model of the hub that a page names, and that is a folder here: it has a chat template of its own.
OF_THE_HUB = re.compile(r"(owner|meta-llama)/[\w.-]+")
REFUSED = {"prompt-cpoy": "Did you mean 'prompt-copy'?"}

STUDY = """\
target: builtin:target
prompts: [import os]
generation: {max_new_tokens: 8}
runs:
  - {drafter: prompt-copy, gamma: 4}
"""


def distinct(program: str) -> list[list[str]]:
    """Each command of a program once, without what is set in the environment."""
    found: dict[str, list[str]] = {}
    for _, words in shown_commands():
        name = next(n for n, word in enumerate(words) if "=" not in word)
        if Path(words[name]).name == program:
            found.setdefault(shlex.join(words[name + 1 :]), words[name + 1 :])
    return list(found.values())


def smaller(words: list[str]) -> list[str]:
    """The command with what makes it cost little."""
    line = " ".join(words)
    return [
        *words,
        *next((shlex.split(more) for pattern, more in SMALLER.items() if re.search(pattern, line)), []),
    ]


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
    (tmp_path / "text.py").write_text(Path(__file__).read_text(encoding="utf-8"), encoding="utf-8")
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


@pytest.fixture
def talker(place):
    """A model that was taken from a hub: the built-in target, with a chat template of its own."""
    folder = place / "talker"
    shutil.copytree(builtin_model("builtin:target"), folder)
    shutil.copy(ROOT / "examples" / "prompts" / "dialogue.jinja", folder / "chat_template.jinja")
    return folder


@pytest.mark.parametrize("words", distinct("specdec"), ids=identity)
def test_a_command_that_is_shown_runs(place, request, words):
    if any("stdlib.3.arpa" in word for word in words) and words[0] != "train":
        (place / "stdlib.3.arpa").symlink_to(request.getfixturevalue("arpa"))
    if any(map(OF_THE_HUB.search, words)):
        words = [OF_THE_HUB.sub(str(request.getfixturevalue("talker")), word) for word in words]
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


@pytest.mark.parametrize("words", distinct("python"), ids=identity)
def test_a_script_that_is_shown_runs(monkeypatch, capsys, words):
    script = ROOT / words[0]
    monkeypatch.syspath_prepend(str(script.parent))
    monkeypatch.setattr(sys, "argv", smaller(["python", *words])[1:])
    runpy.run_path(str(script), run_name="__main__")
    printed = capsys.readouterr().out
    assert printed.strip()
    if script.parent.name == "benchmarks":
        assert json.loads(printed)["benchmark"]


def test_what_makes_commands_small_is_needed():
    lines = [" ".join(words) for words in distinct("specdec")]
    lines += [" ".join(["python", *words]) for words in distinct("python")]
    for pattern in (*SMALLER, OF_THE_HUB.pattern, *REFUSED):
        assert any(re.search(pattern, line) for line in lines), pattern


def test_other_programs_are_known():
    programs = {Path(next(word for word in words if "=" not in word)).name for _, words in shown_commands()}
    assert programs - {"specdec", "python"} == set(OTHER_PROGRAMS)
