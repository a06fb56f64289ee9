"""The installed version of specdec-core, and of packages that work with it. Importing this imports no torch."""

import hashlib
from collections.abc import Iterable
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES, SOURCE_SUFFIXES
from importlib.metadata import PackageNotFoundError, entry_points, version
from importlib.util import find_spec
from pathlib import Path

PLUGINS = "specdec"
"""The entry-point group of plugins."""
OWN = "specdec-core"
"""The distribution of this package, and of the plugins that ship with it."""

_CODE = (*SOURCE_SUFFIXES, *EXTENSION_SUFFIXES)


def installed_version() -> str:
    """Return the version of the installed distribution; `0+uninstalled` when run from a bare checkout."""
    try:
        return version(OWN)
    except PackageNotFoundError:
        return "0+uninstalled"


@cache
def installed_versions() -> dict[str, str]:
    """Return the versions that results depend on: of specdec, torch, transformers and everything with plugins.

    Those of plugins have a digest of their code. Builds of one version, such as 2.13.0+cpu and 2.13.0+cu126, count
    as the same.
    """
    libraries = {name: version(name).partition("+")[0] for name in ("torch", "transformers")}
    plugins = {
        point.dist.name: f"{point.dist.version} {code_digest([point.module])}"
        for point in entry_points(group=PLUGINS)
        if point.dist and point.dist.name != OWN
    }
    return {"specdec": installed_version(), **libraries, **plugins}


def code_digest(modules: Iterable[str]) -> str:
    """Return a digest of the Python and compiled modules in the packages of some modules, as they are on disk.

    The package is the outermost one that is a folder of its own.
    """
    whole = hashlib.sha256()
    for path in sorted({path for module in modules for path in _code_files(module)}):
        whole.update(f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return whole.hexdigest()[:16]


def _code_files(module: str) -> list[Path]:
    parts = module.split(".")
    if parts[0] == __package__:  # a plugin without settings has a base of the interface for them
        return []
    for count in range(1, len(parts) + 1):
        try:
            found = find_spec(".".join(parts[:count]))
        except (ImportError, ValueError):
            break
        if found is not None and found.has_location and found.origin is not None:
            path = Path(found.origin)
            if found.submodule_search_locations is None:
                return [path]
            return [file for file in path.parent.rglob("*") if file.name.endswith(_CODE) and file.is_file()]
    return []
