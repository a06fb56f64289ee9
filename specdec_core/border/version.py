"""The version of the plugin border, apart from that of the distribution. Importing this imports no torch."""

from __future__ import annotations

import re
from typing import Any

BORDER_VERSION = "1.0"
"""The version of the border, `MAJOR.MINOR`.

The border is what `specdec_core` exports for plugins, the hooks, and what the core promises on when it calls what.

- **MAJOR** rises when a plugin that kept to the border may have to change: a type, a method or a promise went, or
  means something else. A plugin that states another major version is refused.
- **MINOR** rises when something is added that a plugin may use and need not. A plugin that states an older minor
  version works; one that states a newer one may need what is not there, and is refused.

A plugin states the oldest version that it works with in the module that it announces: `SPECDEC_BORDER = "1.0"`.
One that states none is taken as it is.
"""

STATEMENT = "SPECDEC_BORDER"
"""The name under which a plugin states the version of the border it was built for."""


def border_mismatch(stated: Any, distribution: str, core: str) -> str | None:
    """Return why a plugin that states a version of the border cannot be used here.

    Args:
        stated: What it states under `SPECDEC_BORDER`; None where it states nothing.
        distribution: The distribution that it comes from.
        core: The version of specdec-core.

    Returns:
        Both versions and what to do; None where nothing is wrong.
    """
    if stated is None:
        return None
    read = re.fullmatch(r"(\d+)\.(\d+)", stated, re.ASCII) if isinstance(stated, str) else None
    if read is None:
        return (
            f"{STATEMENT} is {stated!r}; it must be the text MAJOR.MINOR of the border that {distribution} "
            f'was built for, as in {STATEMENT} = "{BORDER_VERSION}"'
        )
    major, minor = map(int, read.groups())
    here = tuple(map(int, BORDER_VERSION.split(".")))
    if major == here[0] and minor <= here[1]:
        return None
    built = f"{distribution} is built for border {stated} of specdec, and this is border {BORDER_VERSION}"
    remedies = [f"install a version of {distribution} made for border {here[0]}"] if major != here[0] else []
    if (major, minor) > here:
        remedies.append("upgrade specdec-core")
    else:
        remedies.append(f"install a specdec-core that has border {major}")
    return f"{built} (specdec-core {core}): {', or '.join(remedies)}"
