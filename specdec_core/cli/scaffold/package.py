"""The files of a new plugin package, of which all are written or none."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from jinja2 import Environment, PackageLoader, StrictUndefined

from specdec_core._version import installed_version
from specdec_core.cli.scaffold.names import Names
from specdec_core.interface.errors import ConfigError
from specdec_core.interface.files import check_output, writing_folder
from specdec_core.registry.hookspecs import HOOKS_BY_KIND, KIND_LABELS

Kind: TypeAlias = Literal["drafter", "gamma", "lenience", "rule"]
"""The kinds of plugins that a package can be for."""
Style: TypeAlias = Literal["deterministic", "autoregressive", "session", "remembers"]
"""How a drafter is written."""
STYLES: tuple[Style, ...] = ("deterministic", "autoregressive", "session", "remembers")

_NO_TEXT_IN_YAML = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}
"""Names that some version of YAML reads as booleans or null."""


@dataclass(frozen=True)
class _Shape:
    """The parts of the shared files that depend on the kind and style of a plugin.

    Attributes:
        summary: One line for listings.
        setting: One of its settings, as in a study.
        temperature: Sampling temperature of its study.
    """

    summary: str
    setting: str
    temperature: int


_SHAPES = {
    "deterministic": _Shape("Proposes the tokens that have followed most often so far.", "min_count: 2", 0),
    "autoregressive": _Shape("Samples tokens by how often they followed the last one.", "unseen_weight: 0.5", 1),
    "session": _Shape("Samples tokens by how often they followed the last one.", "unseen_weight: 0.5", 1),
    "remembers": _Shape("Proposes what followed the last tokens in a user's earlier requests.", "match: 3", 0),
    "gamma": _Shape("Drafts one token more than were accepted on average lately.", "max_gamma: 8", 1),
    "lenience": _Shape("Lenient while a sequence has deviated little from the target.", "max_deviation: 0.05", 1),
    "rule": _Shape("Accepts draft tokens that are not much less probable than the best.", "share: 0.5", 1),
}


@dataclass(frozen=True)
class File:
    """One file of a package.

    Attributes:
        path: Path in the package, with '/' between folders.
        about: Description in a few words.
        text: Content.
    """

    path: str
    about: str
    text: str


def package_files(names: Names, kind: Kind, style: Style = "deterministic") -> tuple[File, ...]:
    """Return the files of a package with a working plugin.

    Args:
        names: The plugin's names.
        kind: The kind of plugin.
        style: The drafter's interface: `deterministic`, a function from tokens to tokens; `autoregressive`, a
            function from a prefix to logits; `session`, with state for each batch; `remembers`, which learns from
            earlier requests. Controllers ignore it.
    """
    module = f"{names.module}.py"
    template = style if kind == "drafter" else kind
    sources = (
        (module, f"{template}.py.jinja", f"the {KIND_LABELS[kind]}; start here"),
        (
            f"tests/test_{names.module.removeprefix('specdec_')}.py",
            "test.py.jinja",
            "the conformance kit, and a test of its behavior",
        ),
        ("pyproject.toml", "pyproject.toml.jinja", "the package and its entry point"),
        ("study.yaml", "study.yaml.jinja", "compares it with others"),
        ("README.md", "README.md.jinja", "how to use it"),
        (".gitignore", "gitignore.jinja", "what git leaves out"),
    )
    context: dict[str, Any] = {
        "names": names,
        "written": f'"{names.name}"' if names.name in _NO_TEXT_IN_YAML else names.name,
        "kind": kind,
        "style": template,
        "word": KIND_LABELS[kind],
        "hook": HOOKS_BY_KIND[kind],
        "shape": _SHAPES[template],
        "core": _version_range(installed_version()),
    }
    environment = _environment()
    return tuple(
        File(path, about, environment.get_template(name).render(context)) for path, name, about in sources
    )


def write_package(folder: Path, files: Sequence[File]) -> None:
    """Write a package into a new or empty folder.

    Args:
        folder: The folder. Missing parents are created.
        files: Its files.

    Raises:
        ConfigError: The folder cannot be written. Nothing was changed.
    """
    check_output(folder, overwrite=True, folder_with="pyproject.toml")
    if folder.is_dir() and any(folder.iterdir()):
        raise ConfigError(f"output {folder} is not empty. Give another --output.")
    with writing_folder(folder) as temporary:
        for file in files:
            path = temporary / file.path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(file.text, encoding="utf-8", newline="\n")


def _version_range(version: str) -> str:
    """Return the versions of specdec-core that share the plugin interface with this one, as `>=0.1,<0.2`.

    Before 1.0 a minor release may change the interface, after it only a major release.
    """
    release = re.match(r"(\d+)\.(\d+)", version)
    if release is None:
        return ""
    major, minor = map(int, release.groups())
    return f">={major}.{minor},<{f'0.{minor + 1}' if major == 0 else major + 1}"


def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("specdec_core.cli.scaffold", "templates"),
        autoescape=False,  # Python, TOML and YAML with validated names
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
