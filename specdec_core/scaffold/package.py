"""The files of a new plugin package: rendered first, then written, all of them or none."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from jinja2 import Environment, PackageLoader, StrictUndefined

import specdec_core
from specdec_core.border.version import BORDER_VERSION
from specdec_core.errors import ConfigError
from specdec_core.output import check_output, writing_folder
from specdec_core.registry import HOOK_OF_KIND, WORD_FOR_KIND

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from specdec_core.scaffold.names import Names

Kind: TypeAlias = Literal["drafter", "gamma", "lenience"]
"""What a package can be made for."""
Style: TypeAlias = Literal["deterministic", "autoregressive", "session"]
"""How a drafter is written."""
STYLES: tuple[Style, ...] = ("deterministic", "autoregressive", "session")

_NO_TEXT_IN_YAML = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}
"""Names that YAML, of one version or another, takes for something else."""
_LISTED = 5
"""How many of the things that are in the way are named."""


@dataclass(frozen=True)
class _Shape:
    """What the shared files say of one kind and style of plugin.

    Attributes:
        summary: One line for listings.
        setting: A setting of it, as a study may say it.
        temperature: What its study samples with.
    """

    summary: str
    setting: str
    temperature: int


_SHAPES = {
    "deterministic": _Shape("What has followed the last token most often so far.", "least: 2", 0),
    "autoregressive": _Shape("Any token, by how often it has followed the last one so far.", "unseen: 0.5", 1),
    "session": _Shape("Any token, by how often it has followed the last one so far.", "unseen: 0.5", 1),
    "gamma": _Shape("One token more than have been accepted on average lately.", "most: 8", 1),
    "lenience": _Shape("Lenient while a text has departed little from the target's.", "rate: 0.05", 1),
}


@dataclass(frozen=True)
class File:
    """One file of a package.

    Attributes:
        path: Where it goes in the package, with '/' between folders.
        about: What it is, in a few words.
        text: What is in it.
    """

    path: str
    about: str
    text: str


def package_files(names: Names, kind: Kind, style: Style = "deterministic") -> tuple[File, ...]:
    """Return the files of a package for a plugin that works.

    Args:
        names: What the plugin is called.
        kind: What it plugs into.
        style: How a drafter is written: `deterministic`, one function from tokens to tokens; `autoregressive`, one
            from a prefix to logits; `session`, with state of its own for each batch. No matter for controllers.
    """
    module = f"{names.module}.py"
    template = style if kind == "drafter" else kind
    made_from = (
        (module, f"{template}.py.jinja", f"the {WORD_FOR_KIND[kind]}; begin here"),
        (
            f"tests/test_{names.module.removeprefix('specdec_')}.py",
            "test.py.jinja",
            "the conformance kit, and a test",
        ),
        ("pyproject.toml", "pyproject.toml.jinja", "what makes it a plugin: the entry point"),
        ("study.yaml", "study.yaml.jinja", "compares it with others"),
        ("README.md", "README.md.jinja", "how to use it"),
        (".gitignore", "gitignore.jinja", "what git leaves out"),
    )
    said: dict[str, Any] = {
        "names": names,
        "written": f'"{names.name}"' if names.name in _NO_TEXT_IN_YAML else names.name,
        "kind": kind,
        "style": template,
        "word": WORD_FOR_KIND[kind],
        "hook": HOOK_OF_KIND[kind],
        "shape": _SHAPES[template],
        "border": BORDER_VERSION,
        "core": _oldest_core(specdec_core.__version__),
    }
    environment = _environment()
    return tuple(File(path, about, environment.get_template(name).render(said)) for path, name, about in made_from)


def write_package(folder: Path, files: Sequence[File]) -> None:
    """Write a package into a folder that is not there yet, or is empty.

    Args:
        folder: Where it goes; folders above it are made.
        files: What goes there.

    Raises:
        ConfigError: It cannot go there; then nothing was written, and what is there stays as it was.
    """
    _check_empty(folder)
    check_output(folder, overwrite=False, folder_with="pyproject.toml")
    with writing_folder(folder) as place:
        for file in files:
            path = place / file.path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(file.text, encoding="utf-8", newline="\n")


def _check_empty(folder: Path) -> None:
    try:
        there = sorted(entry.name for entry in folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return  # what it is instead is for others to say
    except OSError as error:
        raise ConfigError(f"output {folder} cannot be read: {error.strerror}; give another --output.") from error
    if there:
        more = f" and {len(there) - _LISTED} more" if len(there) > _LISTED else ""
        raise ConfigError(
            f"output {folder} is not empty: there is {', '.join(there[:_LISTED])}{more}, which stays as it is; "
            "give another --output."
        )


def _oldest_core(version: str) -> str:
    """Return the oldest specdec-core that a package asks for: this one's release, without its patch number."""
    release = re.match(r"\d+\.\d+", version)
    return release[0] if release else "0"


def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("specdec_core.scaffold", "templates"),
        autoescape=False,  # Python, TOML and YAML; what is inserted are names that were checked
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
