"""`specdec new` writes a plugin that works; what it refuses changes nothing."""

import re
import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint, entry_points
from itertools import cycle

import pytest
import ruamel.yaml

import specdec_core
from specdec_core.registry.hookspecs import HOOKS_BY_KIND
from specdec_core.registry.registry import Registry
from specdec_core.study import load_study
from specdec_core.testing import DrafterKit
from tests.commands import run_command
from tests.conformance import failures, kit_of
from tests.docs.pages import ROOT, load

SHAPES = {
    "deterministic": (),
    "autoregressive": ("--style", "autoregressive"),
    "session": ("--style", "session"),
    "remembers": ("--style", "remembers"),
    "gamma": ("--kind", "gamma"),
    "lenience": ("--kind", "lenience"),
    "rule": ("--kind", "rule"),
}


NAMES = [
    # Their classes would have the names of classes that the module imports.
    *("plugin", "drafter", "nested", "deterministic", "autoregressive", "gamma", "lenience", "session"),
    *("last-word", "last_word", "x1"),
    # These have another meaning in Python or YAML.
    *("none", "true", "null", "no", "class", "list", "counter", "field", "tests"),
]


@pytest.fixture
def new(tmp_path, monkeypatch):
    """Runs the command in an empty folder and returns the result."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SPECDEC_PLUGINS", raising=False)

    def run(*arguments):
        return run_command("new", *arguments)

    return run


@pytest.fixture
def refused(new, tmp_path):
    """Runs a command that must be refused and change nothing; returns the message."""

    def run(*arguments):
        before = everything(tmp_path)
        result = new(*arguments)
        assert result.exit_code == 2, result.output
        assert result.stdout == ""
        assert everything(tmp_path) == before
        return " ".join(result.stderr.split())

    return run


def everything(folder):
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def announced(folder):
    """The specifications that a package's module announces, found as its pyproject.toml says."""
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    ((entry, module),) = project["entry-points"]["specdec"].items()
    made = load(folder / f"{module}.py")
    hooks = [hook for hook in HOOKS_BY_KIND.values() if hasattr(made, hook)]
    return entry, module, made, [spec for hook in hooks for spec in getattr(made, hook)()]


@pytest.mark.parametrize(("name", "shape"), [*zip(NAMES, cycle(SHAPES))])
def test_a_name_becomes_a_module_that_announces_it(new, tmp_path, shape, name):
    result = new(name, "--output", "made", *SHAPES[shape])
    assert result.exit_code == 0, result.output
    entry, module, made, (spec,) = announced(tmp_path / "made")
    assert (entry, spec.name) == (name, name)
    assert spec.kind == (shape if shape in HOOKS_BY_KIND else "drafter")
    factory, _, made_class = spec.factory.partition(":")
    assert factory == module == f"specdec_{name.replace('-', '_')}"
    assert hasattr(made, made_class)
    assert spec.summary.endswith(".")
    assert spec.config.__module__ == made.__name__
    assert not {made_class, spec.config.__name__} & set(specdec_core.__all__)
    (test,) = (tmp_path / "made" / "tests").iterdir()
    compile(test.read_text(encoding="utf-8"), test, "exec")
    study = ruamel.yaml.YAML(typ="safe").load(tmp_path / "made" / "study.yaml")
    assert study["runs"][0]["name"] == study["runs"][0][spec.kind]["name"] == name


@pytest.mark.parametrize("shape", SHAPES)
def test_its_study_loads_and_compares_it_with_others(new, tmp_path, monkeypatch, shape):
    assert new("last-word", *SHAPES[shape]).exit_code == 0
    folder = tmp_path / "specdec-last-word"
    monkeypatch.syspath_prepend(str(folder))
    own = [entry for entry in entry_points(group="specdec") if entry.dist and entry.dist.name == "specdec-core"]
    registry = Registry([*own, EntryPoint("last-word", "specdec_last_word", "specdec")])
    runs = load_study(folder / "study.yaml", registry=registry).runs
    sys.modules.pop("specdec_last_word")
    assert sum(run.name.startswith("last-word") for run in runs) in (1, 2)
    assert len(runs) >= 4


@pytest.mark.parametrize("shape", SHAPES)
def test_its_own_tests_pass(new, tmp_path, toys, shape):
    assert new("last-word", *SHAPES[shape]).exit_code == 0
    folder = tmp_path / "specdec-last-word"
    toys.install("specdec-last-word", "specdec_last_word", (folder / "specdec_last_word.py").read_text())
    tests = load(folder / "tests" / "test_last_word.py")
    (kit,) = [made for name, made in vars(tests).items() if name.startswith("TestLastWord")]
    assert kit.plugin == "last-word"
    (own,) = [made for name, made in vars(tests).items() if name.startswith("test_")]
    own()


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["autoregressive", "session", "remembers"])
def test_it_passes_the_kit(new, tmp_path, shape):
    # .ci/newcomer does the same for the other shapes, from installation to comparison.
    assert new("last-word", "--output", "made", *SHAPES[shape]).exit_code == 0
    _, _, made, (spec,) = announced(tmp_path / "made")
    drafter = getattr(made, spec.factory.partition(":")[2])
    config = type("DecoderOnly", (spec.config,), {"targets": "decoder-only", "__module__": __name__})
    assert not failures(kit_of(DrafterKit, lambda target: drafter(spec.config(), target), config=config))


@pytest.mark.parametrize("shape", SHAPES)
def test_it_prints_the_files_and_the_next_commands(new, tmp_path, shape):
    result = new("last-word", "--output", "a folder/of mine", *SHAPES[shape])
    folder = tmp_path / "a folder" / "of mine"
    written = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    listed, _, coming = result.stdout.partition("Next:")
    assert sorted(re.findall(r"^  (\S+)  ", listed, re.MULTILINE)) == written
    assert "a folder/of mine:" in listed
    change, *commands = [line.partition("  #")[0].strip() for line in coming.strip().splitlines()]
    assert change == "cd 'a folder/of mine'"
    readme = (folder / "README.md").read_text(encoding="utf-8")
    assert commands == re.findall(r"^```sh\n(.*?)\n```$", readme, re.MULTILINE | re.DOTALL)
    replayed = [] if shape in HOOKS_BY_KIND else ["specdec replay builtin:code last-word"]
    assert commands[2:-2] == replayed
    assert [command.split()[0] for command in (*commands[:2], *commands[-2:])] == [
        *("pip", "specdec", "pytest", "specdec")
    ]


def test_the_files_pass_the_linter_of_this_repository(new, tmp_path):
    for shape, options in SHAPES.items():
        assert new(f"last-{shape}", *options).exit_code == 0
    # In the package, specdec is a third-party import.
    settings = [
        "--config",
        str(ROOT / "pyproject.toml"),
        "--config",
        f"src = {[str(p) for p in tmp_path.iterdir()]}",
    ]
    check = ["check", "--no-cache", "--extend-per-file-ignores", "**/tests/**:D"]
    for command in (check, ["format", "--check", "--no-cache"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, *settings, "."], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("random",), "the name 'random' is taken: specdec-core "),
        (("prompt_copy",), "has the drafter 'prompt-copy'"),
        (("fixed", "--kind", "gamma"), "has the gamma controller 'fixed'"),
        (("drafters",), "a module specdec_drafters is installed"),
        (("LastWord",), "plugin name"),
        (("last-word", "-o", "other"), "other is a folder with other things in it"),
        (("last-word", "-o", "other/a"), "other/a is a file, and a folder goes there"),
        (("last-word", "-o", "."), "output . is the folder you are in"),
        (("last-word", "--kind", "gamma", "--style", "session"), "--style is for drafters"),
    ],
)
def test_what_cannot_be_made(refused, tmp_path, arguments, said):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "a").write_text("dear", encoding="utf-8")
    assert said in refused(*arguments)
