"""The description of a run: what drafts, how drafts are verified, and which of its settings go together."""

from collections.abc import Iterator

from pydantic import BaseModel, ConfigDict, InstanceOf

from specdec_core.interface.settings import BEAM_SETTINGS, GenerationSettings, SamplingSettings
from specdec_core.interface.spec import LenienceConfig, PluginConfig, RuleConfig


class RunSettings(BaseModel):
    """The settings of a run, beside its target and prompts. None stands for the default.

    Attributes:
        drafter: Settings of the drafter, including its name; None for autoregressive decoding.
        gamma: Settings of the gamma controller.
        lenience: Settings of the lenience controller; None is lossless.
        rule: Settings of the acceptance rule; None is Algorithm 1.
        draft_sampling: The drafter's own sampling settings; None uses those of the target.
        draft_beams: With beams, the number of nodes in each level of the draft; None for as many as beams.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    drafter: InstanceOf[PluginConfig] | None = None
    gamma: InstanceOf[PluginConfig] | None = None
    lenience: InstanceOf[PluginConfig] | None = None
    rule: InstanceOf[PluginConfig] | None = None
    draft_sampling: SamplingSettings | None = None
    draft_beams: int | None = None

    @property
    def lenient(self) -> bool:
        """Whether lenience may be below 1, as its controller declares."""
        lossless = isinstance(self.lenience, LenienceConfig) and self.lenience.lossless
        return self.lenience is not None and not lossless

    def lossless_for(self, sampling: SamplingSettings) -> bool:
        """Return whether outputs have the target's distribution, as lenience and rule declare."""
        exact = isinstance(self.rule, RuleConfig) and self.rule.lossless_for(greedy=sampling.greedy)
        return not self.lenient and (self.rule is None or exact)

    def problems(self, *, greedy: bool) -> Iterator[tuple[str, str]]:
        """Yield the settings that do not go together, each with the reason.

        Args:
            greedy: Whether the target decodes greedily.
        """
        if self.drafter is None:
            for name in ("gamma", "lenience", "draft_sampling", "draft_beams"):
                if getattr(self, name) is not None:
                    yield (
                        name,
                        "given without a drafter, so nothing is drafted; pass a drafter too, such as prompt-copy, "
                        "or leave it out.",
                    )
        elif self.gamma is None:
            yield (
                "gamma",
                "a drafter was given without gamma; pass the number of tokens to draft in a step, such as 4, or a "
                "gamma controller.",
            )
        if isinstance(self.rule, RuleConfig):
            rule = getattr(self.rule, "name", type(self.rule).__name__)
            if self.rule.greedy_only and not greedy:
                yield (
                    "temperature",
                    f"the rule {rule!r} compares draft tokens with the argmax, for greedy decoding only; set "
                    "temperature to 0, or choose another rule.",
                )
            if self.lenient and not self.rule.takes_lenience:
                yield (
                    "lenience",
                    f"the rule {rule!r} is not defined for lenience below 1; remove the lenience, or choose the "
                    "rule 'token'.",
                )

    def generation_problems(
        self, sampling: SamplingSettings, generation: GenerationSettings
    ) -> Iterator[tuple[str, str]]:
        """Yield the settings that do not go together with those of a generation, each with the reason.

        Args:
            sampling: The target's sampling settings.
            generation: How long to decode, and with how many beams.
        """
        if (least := generation.min_new_tokens) > (most := generation.max_new_tokens):
            yield "min_new_tokens", f"{least} is more than max_new_tokens ({most})."
        beams = generation.beams
        if beams == 1:
            for name in BEAM_SETTINGS:
                if (value := getattr(generation, name)) != GenerationSettings.model_fields[name].default:
                    yield name, f"{value!r} was given, but it only has a meaning with beams, such as beams: 4."
            if self.draft_beams is not None:
                yield "draft_beams", f"{self.draft_beams} was given, but only with beams above 1 is it used."
            return
        if not sampling.greedy:
            yield (
                "temperature",
                f"{sampling.temperature:g} was given, but beam search takes the best, and draws nothing; set "
                "temperature: 0, or beams: 1.",
            )
        if generation.num_return_sequences > beams:
            count = generation.num_return_sequences
            yield "num_return_sequences", f"{count} is more than there are beams ({beams})."
        if self.draft_beams is not None and self.draft_beams < beams:
            yield (
                "draft_beams",
                f"{self.draft_beams} is less than the number of beams ({beams}): the beams could never all be "
                "drafted.",
            )
        if self.draft_sampling is not None and not self.draft_sampling.greedy:
            yield "draft_sampling", "with beams the drafter takes its best tokens, too; set temperature: 0."
        for name, given in (("lenience", self.lenient), ("rule", self.rule is not None)):
            if given:
                yield name, "beams are exact: nothing is accepted but what beam search would do; remove it."
