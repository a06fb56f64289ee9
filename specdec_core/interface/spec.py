"""Plugin specifications and the bases of plugin settings, which listing and validation read without torch."""

import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from specdec_core.interface.validated import Validated

PluginKind: TypeAlias = Literal["drafter", "gamma", "lenience", "rule", "trainer"]
"""The kind of a plugin; `gamma` and `lenience` are controllers, `rule` is an acceptance rule."""
ListedKind: TypeAlias = PluginKind | Literal["models"]
"""The kinds of what hooks register: plugins, and collections of models."""
LosslessAt: TypeAlias = Literal["always", "greedy", "never"]
"""Where a rule keeps the target's distribution: everywhere, in greedy decoding only, or nowhere."""


@dataclass(frozen=True)
class Nested:
    """Marks a setting that holds a plugin.

    In a study it takes what a run takes for that kind: a name, or a mapping with `name` and settings. It may stand
    for the whole setting, for the entries of a tuple or the values of a dict, or beside None.

    Attributes:
        kind: What plugs in there.
        same_target: Whether it works for the target of the plugin around it, so that the target must have what it
            needs. False where it works for a model that the plugin around it brings.
        same_tokens: Whether its token ids are those of the plugin around it.
    """

    kind: PluginKind
    same_target: bool = True
    same_tokens: bool = True


NestedDrafter: TypeAlias = Annotated[Any, Nested("drafter")]
"""A setting that names a drafter; holds its settings, to be made with `TargetInfo.build`."""
NestedGamma: TypeAlias = Annotated[Any, Nested("gamma")]
"""A setting that names a gamma controller; holds its settings, to be made with `TargetInfo.build`."""


class PluginConfig(Validated):
    """Base of every plugin's settings: unknown keys are errors, and values are frozen."""


class DrafterConfig(PluginConfig):
    """Base of the settings of drafters. Class variables say what it needs; a study that lacks it is an error."""

    targets: ClassVar[Literal["any", "decoder-only", "encoder-decoder"]] = "any"
    """The kind of target it works for."""
    needs_tokenizer: ClassVar[bool] = False
    """Whether it reads text, so that the target must come with a tokenizer."""
    needs_hidden_states: ClassVar[bool] = False
    """Whether it works on the target's hidden states, `DraftRequest.hidden_states`."""
    needs_model: ClassVar[bool] = False
    """Whether it is made of the target's own weights, `TargetInfo.model`, so that the target must be loaded."""
    token_ids_only: ClassVar[bool] = False
    """Whether it drafts from committed token ids and its own tables alone: it has no model, reads no weights or
    hidden states of the target, and opens no `SessionInfo.loop`. It can then draft in another engine; see
    `specdec export`. A drafter composed of others declares it if they need nothing more."""

    vllm_method: ClassVar[str | None] = None
    """The `method` of vLLM's speculative config that drafts as this drafter does; None if there is none. A drafter
    that names one implements `export_vllm`."""

    def export_vllm(self, folder: Path) -> dict[str, Any]:
        """Write what vLLM loads for `vllm_method`, for `specdec export --to vllm`.

        Args:
            folder: An empty folder. Relative paths in the settings start in the current one.

        Returns:
            Keys of the speculative config beyond `method`; `model` replaces the folder, None for the target's own
            checkpoint, and `num_speculative_tokens` is the draft length that the drafter was made for.

        Raises:
            ConfigError: vLLM cannot load the drafter with these settings.
        """
        raise NotImplementedError(f"{type(self).__name__}.vllm_method is set, but export_vllm is not implemented")


class LenienceConfig(PluginConfig):
    """Base of the settings of lenience controllers."""

    @property
    def lossless(self) -> bool:
        """Whether l is always 1; a study with `lossless: true` accepts no other controller."""
        return False

    def lossless_for(self, *, greedy: bool) -> bool:  # noqa: ARG002  (for controllers that look at it)
        """Return whether l is always 1 in greedy decoding, or where the target samples."""
        return self.lossless


class RuleConfig(PluginConfig):
    """Base of the settings of acceptance rules."""

    greedy_only: ClassVar[bool] = False
    """Whether the rule works for greedy decoding only; a temperature above 0 is then an error."""
    takes_lenience: ClassVar[bool] = False
    """Whether the rule is defined for lenience l < 1; if not, a run that combines them is an error."""
    replays_from: ClassVar[Literal["token", "all"] | None] = None
    """The probabilities that a replay takes where the target samples: p of the `token` that was emitted, or of
    `all` tokens. None if it cannot be replayed there. In greedy decoding, every lossless rule can be replayed."""

    @property
    def lossless_at(self) -> LosslessAt:
        """Where all outputs have the target's distribution, with l = 1.

        In greedy decoding, such a rule accepts draft tokens while they are the argmax.
        """
        return "never"

    @property
    def lossless(self) -> bool:
        """Whether all outputs have the target's distribution, at any temperature."""
        return self.lossless_at == "always"

    def lossless_for(self, *, greedy: bool) -> bool:
        """Return whether all outputs have the target's distribution, in greedy decoding or where it samples."""
        return self.lossless or (greedy and self.lossless_at == "greedy")


class TrainerConfig(PluginConfig):
    """Options of every trainer; each field is an option of the command, and its docstring is the help."""

    target: str = "builtin:target"
    """The target: a folder, a hub name, or builtin:target."""
    output: Path
    """Where the result goes."""
    overwrite: bool = False
    """Replace what is there."""


CONFIG_BASES: dict[PluginKind, type[PluginConfig]] = {
    "drafter": DrafterConfig,
    "gamma": PluginConfig,
    "lenience": LenienceConfig,
    "rule": RuleConfig,
    "trainer": TrainerConfig,
}
"""The base of settings by kind. A plugin without settings may use it as it is, and then has no summary."""


@dataclass(frozen=True)
class PluginSpec:
    """One plugin, as a hook returns it.

    Attributes:
        kind: What it plugs into.
        name: The name used in a study.
        factory: `package.module:Class`, imported only when a run needs it.
        config: The pydantic model of its settings. For plugins of those kinds, it is a `DrafterConfig`,
            `LenienceConfig`, `RuleConfig` or `TrainerConfig`. The first line of its docstring is the plugin's
            summary in listings. Its module must import without torch.
        shorthand: The setting that a bare value in a study fills: with `gamma`, `gamma: 5` means
            `gamma: {name: fixed, gamma: 5}`. None where a bare value has no meaning.
        aliases: Other names that a study may use. Results, tables and listings show `name`.
    """

    kind: PluginKind
    name: str
    factory: str
    config: type[PluginConfig]
    shorthand: str | None = None
    aliases: tuple[str, ...] = ()

    @property
    def summary(self) -> str:
        """One line for listings: the first line of the docstring of `config`; empty if it has no docstring."""
        own = None if self.config in CONFIG_BASES.values() else vars(self.config).get("__doc__")
        return inspect.cleandoc(own).partition("\n")[0] if own else ""


@dataclass(frozen=True)
class ModelsSpec:
    """A collection of models and other files, as a hook returns it. `NAME:ITEM` refers to a file in it.

    Attributes:
        name: The name before the colon; two characters or more, as one letter may be a drive.
        folder: The folder that holds the files, such as `Path(__file__).parent`.
        summary: One line for listings.
    """

    kind: ClassVar[Literal["models"]] = "models"
    aliases: ClassVar[tuple[str, ...]] = ()

    name: str
    folder: Path
    summary: str = ""
