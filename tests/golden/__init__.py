"""Whole sentences that users read, in `messages.txt`: `python -m tests.golden` writes them again.

Other tests look for what a reader needs: the value that was given, what is allowed, and numbers.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from typer.testing import CliRunner

from specdec_core.cli.main import app
from specdec_core.decoding import Decoder
from specdec_core.interface import ConfigError
from specdec_core.interface.errors import ArgumentError
from specdec_core.study import load_study
from specdec_core.testing.harness.tiny_target import tiny_target

PATH = Path(__file__).parent / "messages.txt"
STUDY = "target: builtin:target\nprompts: [import os]\nlossless: true\nruns:\n  - {drafter: random, gamma: 2}\n"
STUDIES = {
    "misspelt key": STUDY.replace("target:", "targt:", 1),
    "misspelt drafter": STUDY.replace("random", "randm"),
    "misspelt setting of a drafter": STUDY.replace("random", "{name: prompt-copy, min_mach: 2}"),
    "missing setting of a drafter": STUDY.replace("random", "transformer"),
    "negative gamma": STUDY.replace("gamma: 2", "gamma: -1"),
    "lenience in a lossless study": STUDY.replace("gamma: 2", "gamma: 2, lenience: 0.5"),
    "grid that is too large": STUDY.replace("gamma: 2", "grid: {gamma: [1, 2, 3, 4, 5, 6]}"),
    "repeats": STUDY + "repeats: 0\n",
    "chat among texts": STUDY.replace("[import os]", "[{messages: [{role: user, content: []}]}]"),
    "tab": STUDY.replace("  - {", "\t- {"),
}
ARGUMENTS = {
    "number as a drafter": {"drafter": 3, "gamma": 2},
    "bool as gamma": {"drafter": "random", "gamma": True},
    "misspelt rule": {"drafter": "random", "gamma": 2, "rule": "blok"},
    "negative temperature": {"temperature": -1},
    "gamma without a drafter": {"gamma": 2},
}
COMMANDS = {
    "unknown trainer": ("train", "ngrams"),
    "nothing to count": ("train", "ngram", "--output", "words.arpa"),
    "nothing to tune": ("tune",),
    "option of drafts without a drafter": ("generate", "import os", "--gamma", "4"),
    "top-p": ("generate", "import os", "--top-p", "2"),
    "alpha below c": ("theory", "speed", "--alpha", "0.1", "--c", "0.5"),
    "drafter that costs nothing": ("theory", "speed", "--alpha", "1", "--c", "0", "--max-gamma", "3"),
}


def messages() -> str:
    """Return every sentence under its name."""
    groups = {"study": _studies(), "decoder": _decoders(), "command": _commands()}
    return "\n".join(
        f"{group}: {name}\n{text.strip()}\n" for group, texts in groups.items() for name, text in texts
    )


def _raised(call: Callable[[], object]) -> str:
    try:
        call()
    except (ConfigError, ArgumentError) as error:
        return str(error)
    raise AssertionError("nothing was raised")


def _studies() -> Iterator[tuple[str, str]]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "study.yaml"
        for name, text in STUDIES.items():
            path.write_text(text, "utf-8")
            yield name, _raised(lambda: load_study(path, max_runs=5)).replace(str(path), "study.yaml")


def _decoders() -> Iterator[tuple[str, str]]:
    target = tiny_target(False, "cpu").loaded
    for name, given in ARGUMENTS.items():
        yield name, _raised(lambda given=given: Decoder(target, **given))


def _commands() -> Iterator[tuple[str, str]]:
    for name, arguments in COMMANDS.items():
        done = CliRunner().invoke(app, list(arguments))
        yield name, "\n".join(line.rstrip() for line in done.output.splitlines())
