"""Settings of a run that a replay does not support, each with the reason."""

from __future__ import annotations

from specdec_core.interface import AcceptanceRule, ConfigError, LenienceConfig, LenienceController, RuleConfig
from specdec_core.interface.settings import GenerationSettings
from specdec_core.offline.replay.text_acceptance import rule_name


def check_replayable(
    *,
    rule: AcceptanceRule | None = None,
    lenience: LenienceController | None = None,
    greedy: bool = False,
    generation: GenerationSettings | None = None,
) -> None:
    """Check that a run is lossless, and that its rule says how it is replayed.

    A controller that asks for trees raises when it does so, and a rule that takes more of p than the record
    holds when the texts have been read.

    Args:
        rule: The acceptance rule; None for Algorithm 1.
        lenience: The lenience controller; None for l = 1.
        greedy: Whether the target decodes greedily.
        generation: Length limits, seed, and beams.

    Raises:
        ConfigError: It cannot be replayed; with the reason, and what to do.
    """
    if lenience is not None and not _is_one(lenience, greedy):
        raise ConfigError(
            "lenience below 1 cannot be replayed: once it accepts a token that the target would not have emitted, "
            "the text goes on otherwise than the recorded one. Remove `lenience`, or compare live."
        )
    if rule is not None and (reason := _unknown(rule, greedy)):
        raise ConfigError(
            f"the rule {rule_name(rule)!r} cannot be replayed{'' if greedy else ' at this temperature'}: {reason} "
            "Use the rule `token`, or compare live."
        )
    if generation is not None and generation.beams > 1:
        raise ConfigError("beam search cannot be replayed: the record holds one text, and no beams. Set beams: 1.")
    if generation is not None and generation.constraint is not None:
        raise ConfigError(
            "constrained texts cannot be replayed: the record holds p without a constraint. Compare live, or "
            "remove `constraint`."
        )


def _is_one(lenience: LenienceController, greedy: bool) -> bool:
    """Return whether lenience is 1 throughout, as its settings declare."""
    config = lenience.config
    return isinstance(config, LenienceConfig) and config.lossless_for(greedy=greedy)


def _unknown(rule: AcceptanceRule, greedy: bool) -> str | None:
    """Return why a replay does not know what a rule accepts, from what its settings declare; None if it does."""
    config = rule.config
    if not (isinstance(config, RuleConfig) and config.lossless_for(greedy=greedy)):
        return (
            "it is lossy, and once it accepts a token that the target would not have emitted, the text goes on "
            "otherwise than the recorded one."
        )
    if not greedy and config.replays_from is None:
        return "its settings do not say, as `replays_from`, what of p a replay takes."
    return None
