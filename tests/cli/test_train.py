"""`specdec train`, with trainers that are installed for the test only."""

import re
import sys

import pytest
import ruamel.yaml
from rich.console import Console

from specdec_core.study.progress import TerminalProgress
from tests.commands import run_command

PLUGIN = '''
    from enum import Enum
    from pathlib import Path
    from typing import Annotated, Literal

    from pydantic import Field, model_validator

    from specdec_core import PluginSpec, hookimpl
    from specdec_core.interface import TrainerConfig

    class Shade(Enum):
        DARK = "dark"
        LIGHT = "light"

    class CountConfig(TrainerConfig):
        """Count [words] in texts.

        For example:

        ```
        specdec train count --output words.arpa --text a.txt --text b.txt
        ```
        """

        text: tuple[str, ...] = ()
        """What is read."""
        sizes: tuple[Annotated[int, Field(ge=1)], ...] = (3, 5)
        """How large."""
        order: Annotated[int, Field(strict=True, ge=1, le=9)] = 2
        """How many tokens
        in a row."""
        rate: Annotated[float, Field(gt=0, lt=1)] | None = None
        """How fast."""
        most: Annotated[int, Field(multiple_of=8)] | Literal["all"] = "all"
        """How many are kept."""
        kind: Literal["cross-entropy", "total-variation"] = "cross-entropy"
        """What is made small."""
        shade: Shade = Shade.DARK
        """How it looks."""
        table: Path | None = None
        """Where it begins, if not at `max_words`."""
        smooth: bool = True
        """Whether it is smooth."""
        resume: bool = False
        """Go on from the last checkpoint."""
        max_words: int | None = None
        """How many words."""

        @model_validator(mode="after")
        def _check(self):
            if self.max_words is not None and self.table is None:
                raise ValueError("'max_words' limits 'table', which was not given")
            return self

    class AbsentConfig(TrainerConfig):
        """Its module is missing."""

    class BareConfig(TrainerConfig):
        __doc__ = "Nothing " + "at all " * 40 + "ever."
        seed: int
        """The seed."""

    @hookimpl
    def specdec_trainers():
        return [
            PluginSpec("trainer", "count", "train_parts:Count", CountConfig),
            PluginSpec("trainer", "bare", "train_parts:Bare", BareConfig),
            PluginSpec("trainer", "absent", "train_nowhere:Absent", AbsentConfig),
        ]
'''

PARTS = """
    import sys

    from specdec_core.interface import ConfigError, Trainer, TrainingReport

    class Count(Trainer):
        def train(self, progress):
            config = self.config
            progress.stage("reading [a] text", total=4)
            progress.advance(2, "half")
            if "stop" in config.text:
                raise KeyboardInterrupt
            if "refuse" in config.text:
                raise ConfigError(f"text [b]refuse[/b] is empty; give another. {'long ' * 60}END")
            if "fail" in config.text:
                raise ZeroDivisionError("oops")
            progress.stage("fitting")
            progress.measured({"step": 200, "loss": 3.41234, "held-out_alpha": 0.5})
            facts = {"config": repr(config), "n-grams": 12345678, "loss": 3.41234, "[bold]kind": config.kind}
            return TrainingReport((config.output,), facts, f"{{name: count, file: {config.output}}}")

    class Bare(Trainer):
        def train(self, progress):
            return TrainingReport((), {}, "name: bare\\nseed: 1\\n")
"""


@pytest.fixture
def specdec(site, monkeypatch):
    site.module("train_parts", PARTS)
    site.install("dist-train", "train_plugin", PLUGIN)
    # transformers takes seconds to import, and these trainers do not.
    monkeypatch.setattr("specdec_core.cli.options.shared_options.quieten_libraries", lambda: None)

    def run(*arguments):
        return run_command("train", *arguments, env={"COLUMNS": "200"})

    return run


def config_of(result):
    assert result.exit_code == 0, result.output
    return re.search(r"config +(.*)", result.stdout)[1]


def test_the_trainers_are_listed_with_their_summaries(specdec):
    for arguments in [("--help",), ()]:
        said = specdec(*arguments).output
        assert re.search(r"count +Count \[words\] in texts\.", said)
        assert re.search(r"absent +Its module is missing\.", said)
        assert "NAME [OPTIONS]" in said
    assert specdec("--help").exit_code == 0


def test_the_help_teaches_every_option(specdec):
    result = specdec("count", "--help")
    assert result.exit_code == 0
    said = " ".join(result.stdout.replace("│", " ").split())
    assert "Count [words] in texts. For example: specdec train count --output words.arpa --text a.txt" in said
    for row in (
        "--output -o <path> Where the result goes. [required]",
        "--sizes <int> How large. [default: 3, 5; at least 1; may be repeated]",
        "--rate <float> How fast. [above 0; below 1]",
        "--most <int|str> How many are kept. [one of all, a number; default: all; a multiple of 8]",
        "--table <path> Where it begins, if not at --max-words.",
        "--smooth --no-smooth <bool> Whether it is smooth. [default: smooth]",
    ):
        assert row in said.replace("* --output", "--output"), row


def test_what_is_given_arrives_with_its_type(specdec):
    arguments = "-o 12 --overwrite --text 1 --text b --sizes 7 --order 3 --rate 1e-3 --most 16 --no-smooth"
    said = config_of(
        specdec("count", *arguments.split(), "--kind", "total-variation", "--shade", "light", "--table", "3")
    )
    assert (
        "output=PosixPath('12'), overwrite=True, text=('1', 'b'), sizes=(7,), order=3, rate=0.001, most=16,"
        in said
    )
    assert "kind='total-variation', shade=<Shade.LIGHT: 'light'>, table=PosixPath('3'), smooth=False" in said
    said = config_of(specdec("count", "--output", "x", "--most", "all"))
    assert "text=(), sizes=(3, 5), order=2, rate=None, most='all', kind='cross-entropy', shade=<Shade.DARK" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--order 0", "--order: input should be greater than or equal to 1 and at most 9; given 0."),
        (
            "--kind total",
            "--kind: unknown value of kind 'total'. Did you mean 'total-variation'? Available: cross-",
        ),
        ("--max-words 3", "specdec train count: --max-words limits --table, which was not given"),
    ],
)
def test_a_value_that_is_not_allowed_is_said_of_the_option(specdec, arguments, said):
    result = specdec("count", "--output", "x", *arguments.split())
    assert result.exit_code == 2
    assert said in result.stderr
    assert "Traceback" not in result.output
    assert "reading" not in result.stderr


@pytest.mark.parametrize("more", [(), ("--help",), ("--output", "x")])
def test_a_name_that_is_not_there_gets_near_misses(specdec, more):
    result = specdec("cuont", *more)
    assert result.exit_code == 2
    assert "unknown trainer 'cuont'. Did you mean 'count'? Available: absent, bare, count." in result.stderr


def test_the_report_is_shown_with_a_study_that_can_be_pasted(specdec):
    result = specdec("count", "--output", "words.arpa", "--quiet")
    assert result.stderr == ""
    assert re.search(r"^n-grams +12345678$", result.stdout, re.MULTILINE)
    assert re.search(r"^loss +3\.412$", result.stdout, re.MULTILINE)
    assert re.search(r"^\[bold\]kind +cross-entropy$", result.stdout, re.MULTILINE)
    assert "\nwritten: words.arpa\n" in result.stdout
    study = ruamel.yaml.YAML(typ="safe").load(result.stdout[result.stdout.index("    runs:") :])
    assert study == {"runs": [{"drafter": {"name": "count", "file": "words.arpa"}, "gamma": 4}]}


def test_what_the_user_can_mend_exits_with_2(specdec):
    result = specdec("count", "--output", "x", "--text", "refuse")
    assert result.exit_code == 2
    assert "text [b]refuse[/b] is empty; give another." in result.stderr
    assert "long END" in result.stderr.splitlines()[-1]
    assert "reading [a] text: done" not in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(("more", "how"), [((), "with --resume"), (("--resume",), "again")])
def test_ctrl_c_says_how_to_go_on(specdec, more, how):
    result = specdec("count", "--output", "x", "--text", "stop", *more)
    assert result.exit_code == 130
    last = result.stderr.splitlines()[-1]
    assert last == f"stopped. Run the same command {how} to resume from the last checkpoint, if there is one."
    assert "In a study" not in result.stdout


def test_help_and_lists_import_no_trainer(specdec, site):
    site.module("train_parts", "raise SystemExit('imported')")
    for arguments in (["--help"], ["count", "--help"]):
        assert specdec(*arguments).exit_code == 0, arguments
    result = specdec("count", "--output", "x", "--order", "0")
    assert (result.exit_code, "--order" in result.stderr) == (2, True)
    assert "train_parts" not in sys.modules


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def progress(capsys):
    clock = Clock()

    def say():
        return capsys.readouterr().err.splitlines()

    with TerminalProgress(Console(stderr=True, width=80), clock=clock) as shown:
        yield shown, clock, say


def test_a_line_every_ten_seconds(progress):
    shown, clock, say = progress
    shown.stage("fitting", total=100)
    for second in range(1, 31):
        clock.now = second
        shown.advance(second, f"loss {second}")
    assert say() == [
        "fitting ...",
        "fitting: 10% after 10 s  loss 10",
        "fitting: 20% after 20 s  loss 20",
        "fitting: 30% after 30 s  loss 30",
    ]
    shown.measured({"step": 200, "loss": 3.41234, "held-out_alpha": 0.5})
    assert say() == ["step 200  loss 3.412  held-out alpha 0.5"]
    shown.stage("writing")
    clock.now = 45
    shown.advance(7)
    assert say() == ["fitting: done in 30 s", "writing ...", "writing: 7 done after 15 s"]
