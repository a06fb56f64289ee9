"""Making the plugins that a drafter is made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from specdec_core.border import Drafter, GammaController
from specdec_core.errors import PluginError

if TYPE_CHECKING:
    from specdec_core.border import PluginKind, TargetInfo


def make_nested(kind: PluginKind, setting: Any, target: TargetInfo, whose: str) -> Any:
    """Return the plugin that a setting stands for: itself where it is one, else what its settings make.

    Args:
        kind: `drafter` or `gamma`.
        setting: A plugin, or the settings of one.
        target: What a drafter is to work for.
        whose: The name of the drafter around it, for messages.

    Raises:
        PluginError: It cannot be made.
    """
    if isinstance(setting, (Drafter, GammaController)):
        return setting
    if target.build is None:
        raise PluginError(
            f"drafter {whose!r} was given {setting!r}, which it cannot make by itself: hand over plugins, or have "
            "the drafter made by a registry (registry.create), as studies do."
        )
    return target.build(kind, setting, target)
