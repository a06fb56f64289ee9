"""The installed version of specdec-core. Importing this imports no torch."""

from importlib.metadata import PackageNotFoundError, version


def installed_version() -> str:
    """Return the version of the installed distribution; `0+uninstalled` when run from a bare checkout."""
    try:
        return version("specdec-core")
    except PackageNotFoundError:
        return "0+uninstalled"
