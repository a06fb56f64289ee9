"""The installed version of specdec-core, and of packages that work with it. Importing this imports no torch."""

from functools import cache
from importlib.metadata import PackageNotFoundError, entry_points, version

PLUGINS = "specdec"
"""The entry-point group of plugins."""
OWN = "specdec-core"
"""The distribution of this package, and of the plugins that ship with it."""


def installed_version() -> str:
    """Return the version of the installed distribution; `0+uninstalled` when run from a bare checkout."""
    try:
        return version(OWN)
    except PackageNotFoundError:
        return "0+uninstalled"


@cache
def installed_versions() -> dict[str, str]:
    """Return the versions that results depend on: of specdec, torch, transformers and everything with plugins.

    Builds of one version, such as 2.13.0+cpu and 2.13.0+cu126, count as the same.
    """
    found = {point.dist.name: point.dist.version for point in entry_points(group=PLUGINS) if point.dist}
    found |= {name: version(name) for name in ("torch", "transformers")}
    found.pop(OWN, None)
    return {"specdec": installed_version(), **{name: one.partition("+")[0] for name, one in found.items()}}
