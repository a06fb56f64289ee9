"""The hooks a plugin may implement. This module is their manual.

A distribution announces a module (or any object) under the entry-point group `specdec`::

    [project.entry-points.specdec]
    my-drafters = "my_package.plugin"

and in it implements any of the hooks below, each marked with `hookimpl`::

    from specdec_core import PluginSpec, hookimpl

    SPECDEC_BORDER = "1.0"

    @hookimpl
    def specdec_drafters():
        return [PluginSpec("drafter", "mine", "my_package.mine:Mine", MineConfig, "Guesses.")]

Every hook is called once in a process, when the registry is first asked for anything: listing, validation and
runs alike. So the announced module, and the modules that hold the config models, must import without torch;
the class behind `factory` is imported only when a run needs it. A hook that raises, or returns something else
than what is said here, marks its plugin as broken: it is listed with the reason and stops nothing else.

`SPECDEC_BORDER` states the oldest version of the border that the plugin works with, `MAJOR.MINOR`; this one's is
`specdec_core.BORDER_VERSION`. A plugin that states another major version, or a newer minor one, is broken: the
reason names both versions and what to do. It is read before the hooks are called, and from the source where the
module cannot be imported. A plugin that states none is taken as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdec_core.border import PluginSpec

PROJECT = "specdec"
"""Name of the pluggy project and of the entry-point group."""

hookspec = pluggy.HookspecMarker(PROJECT)
"""Marks a hook; for this module alone."""
hookimpl = pluggy.HookimplMarker(PROJECT)
"""Marks a function as an implementation of one of the hooks below."""


class HookSpecs:
    """What specdec asks of every plugin; a plugin implements the hooks it needs and leaves out the rest."""

    @hookspec
    def specdec_drafters(self) -> Sequence[PluginSpec] | None:
        """Announce drafters.

        Called by the registry, once, without arguments. Order does not matter: of two plugins that
        announce one name, neither is given out.

        Returns:
            One specification of kind `drafter` for each drafter. None or an empty list announces nothing.
        """

    @hookspec
    def specdec_gamma_controllers(self) -> Sequence[PluginSpec] | None:
        """Announce controllers of gamma, the number of tokens drafted in a step.

        Called by the registry, once, without arguments.

        Returns:
            One specification of kind `gamma` for each controller. None or an empty list announces nothing.
            The one whose `shorthand` is set is meant by a bare number in a study (`gamma: 4`).
        """

    @hookspec
    def specdec_lenience_controllers(self) -> Sequence[PluginSpec] | None:
        """Announce controllers of lenience, the factor q is multiplied with before the comparison.

        Called by the registry, once, without arguments.

        Returns:
            One specification of kind `lenience` for each controller. None or an empty list announces nothing.
            The one whose `shorthand` is set is meant by a bare number in a study (`lenience: 0.5`).
        """

    @hookspec
    def specdec_trainers(self) -> Sequence[PluginSpec] | None:
        """Announce trainers, each run by `specdec train` and its name.

        Called by the registry, once, without arguments. A trainer should have the name of the drafter that
        it makes something for.

        Returns:
            One specification of kind `trainer` for each trainer. None or an empty list announces nothing.
            `config` is a subclass of `TrainerConfig`, and flat, since each field is an option: `bool`, `int`,
            `float`, `str`, `Path`, `Literal` or `Enum`, any of these or None, and `tuple[X, ...]`. Its docstring
            and those of its fields are what `specdec train NAME --help` shows.
        """


HOOK_OF_KIND = {
    "drafter": "specdec_drafters",
    "gamma": "specdec_gamma_controllers",
    "lenience": "specdec_lenience_controllers",
    "trainer": "specdec_trainers",
}
"""The hook through which each kind of plugin is announced."""

WORD_FOR_KIND = {
    "drafter": "drafter",
    "gamma": "gamma controller",
    "lenience": "lenience controller",
    "trainer": "trainer",
}
"""What messages call a plugin of each kind."""
