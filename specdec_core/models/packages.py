"""Optional packages: an error that names the package and how to install it."""

from __future__ import annotations

from importlib.util import find_spec

from specdec_core.interface.errors import ModelError


def require(package: str, purpose: str, install: str) -> None:
    """Check that an optional package is installed, without importing it.

    Args:
        package: Name of the package, as it is imported.
        purpose: What needs it, to begin the message with.
        install: What to install with pip.

    Raises:
        ModelError: It is not installed.
    """
    if find_spec(package) is None:
        raise ModelError(
            f"{purpose} needs the package {package}, which is not installed: pip install '{install}'."
        )
