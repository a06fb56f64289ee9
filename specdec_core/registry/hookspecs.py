"""Plugin hooks: the manual for plugin authors.

A plugin is a distribution with an entry point in the group `specdec`. The entry point names a module, or any other
object, that implements one or more of the hooks below:

    # pyproject.toml
    [project]
    name = "my-drafters"
    dependencies = ["specdec-core>=0.1,<0.2"]

    [project.entry-points.specdec]
    my-drafters = "my_package.plugin"

    # my_package/plugin.py
    from my_package.config import RepeatConfig
    from specdec_core import PluginSpec, hookimpl

    @hookimpl
    def specdec_drafters():
        return [
            PluginSpec("drafter", "repeat", "my_package.drafter:Repeat", RepeatConfig),
        ]

**When hooks run.** The registry calls every hook once per process, without arguments, on first use. Listing
plugins, validating a study and starting a run all use the registry.

**What a hook returns.** A list or tuple of `PluginSpec` of the hook's own kind; `specdec_models` returns
`ModelsSpec`. None and an empty list register
nothing. Order does not matter. A name or alias may be registered once for each kind: if two plugins register the
same one, both are listed as a conflict, and a study that uses it is an error that names both distributions.

**What to import.** The entry-point module and the modules of the config classes must not import torch, so that
listing and validation stay fast. `factory` is a string: its class is imported when a run first needs it, and may
import anything.

**What `factory` is called with.** Drafters: `factory(config, target)`. Controllers, acceptance rules and trainers:
`factory(config)`. The result must be an instance of `Drafter`, `GammaController`, `LenienceController`,
`AcceptanceRule` or `Trainer`.

**What happens on errors.** If the import fails, a hook raises, or a specification is invalid, the plugin is listed
as broken with the reason. All other plugins keep working.

**Versions.** State the versions of specdec-core that you support in your distribution's dependencies. If they
exclude the installed version, the plugin is not imported and is listed with the reason.

**Choosing plugins.** If the environment variable `SPECDEC_PLUGINS` is set, only the distributions and entry points
that it names, separated by commas, are loaded.
"""

from collections.abc import Sequence

import pluggy

from specdec_core._version import PLUGINS
from specdec_core.interface import ModelsSpec, PluginSpec
from specdec_core.interface.spec import ListedKind

PROJECT = PLUGINS
"""Name of the pluggy project and of the entry-point group."""

hookspec = pluggy.HookspecMarker(PROJECT)
"""Declares a hook. Only this module uses it."""
hookimpl = pluggy.HookimplMarker(PROJECT)
"""Marks a plugin's function as the implementation of the hook with the same name."""


class HookSpecs:
    """The hooks. Implement the ones you need; all are optional."""

    @hookspec
    def specdec_drafters(self) -> Sequence[PluginSpec] | None:
        """Register drafters.

        The settings of a drafter derive from `DrafterConfig`, whose class variables say what the drafter needs. A
        study that lacks it is rejected when it is read, before any model is loaded.

        Returns:
            One specification of kind `drafter` for each drafter, or None.
        """

    @hookspec
    def specdec_gamma_controllers(self) -> Sequence[PluginSpec] | None:
        """Register controllers of gamma, the number of tokens drafted per step.

        A study may write a bare number (`gamma: 4`). It selects the controller whose specification sets
        `shorthand`, and fills the config field that `shorthand` names. Only one installed controller may set it.

        Returns:
            One specification of kind `gamma` for each controller, or None.
        """

    @hookspec
    def specdec_lenience_controllers(self) -> Sequence[PluginSpec] | None:
        """Register controllers of lenience, the factor l by which q is multiplied before the comparison with p.

        See appendix A.5 of arXiv 2211.17192. A study may write a bare number (`lenience: 0.5`), which
        selects the controller whose specification sets `shorthand`, as for gamma.

        Returns:
            One specification of kind `lenience` for each controller, or None.
        """

    @hookspec
    def specdec_rules(self) -> Sequence[PluginSpec] | None:
        """Register acceptance rules, which decide which draft tokens are accepted and which token follows.

        `config` must be a subclass of `RuleConfig`, which declares where a rule keeps the target's distribution,
        and whether it takes lenience.

        Returns:
            One specification of kind `rule` for each acceptance rule, or None.
        """

    @hookspec
    def specdec_trainers(self) -> Sequence[PluginSpec] | None:
        """Register trainers. `specdec train NAME` runs one.

        Give a trainer the name of the drafter that it trains. Its `config` must be a subclass of `TrainerConfig`.
        Each field becomes a command-line option, so a field's type must be `bool`, `int`, `float`, `str`, `Path`,
        `Literal` or an `Enum`, any of these or None, or `tuple[X, ...]` of them. `specdec train NAME --help` shows
        the docstrings of the config class and of its fields.

        Returns:
            One specification of kind `trainer` for each trainer, or None.
        """

    @hookspec
    def specdec_models(self) -> Sequence[ModelsSpec] | None:
        """Register collections of models and other files that the distribution contains.

        With a collection `toys`, `toys:ITEM` works wherever a study or a command takes a file of one of these
        kinds. The files may be in any folder of the collection:

        - a model: ITEM is a folder that holds `generation_config.json`, as `save_pretrained` writes it;
        - a record: a folder that holds `record.json`, written by `specdec record`;
        - weights of a drafter: a folder that holds what the drafter looks for, such as `heads.safetensors`, or the
          `config.json` of a draft head in the format of the speculators package;
        - an n-gram model: `ITEM.arpa`;
        - prompts: `ITEM.jsonl`.

        A file `drafters.json` in the folder itself tells `specdec replay` which settings to try where none are
        named: for a target (of any collection, or of the hub), settings by the name of the drafter.

            {"toys:target": {"transformer": {"model": "toys:drafter"}}}

        Returns:
            One `ModelsSpec` for each collection, or None.
        """


HOOKS_BY_KIND: dict[ListedKind, str] = {
    "drafter": "specdec_drafters",
    "gamma": "specdec_gamma_controllers",
    "lenience": "specdec_lenience_controllers",
    "rule": "specdec_rules",
    "trainer": "specdec_trainers",
    "models": "specdec_models",
}
"""The hook that registers each kind."""

KIND_LABELS: dict[ListedKind, str] = {
    "drafter": "drafter",
    "gamma": "gamma controller",
    "lenience": "lenience controller",
    "rule": "rule",
    "trainer": "trainer",
    "models": "collection of models",
}
"""How messages refer to each kind."""
