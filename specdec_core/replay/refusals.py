"""What a replay cannot know: the settings of a run that it refuses, each with the reason."""

from __future__ import annotations

import torch

from specdec_core.interface import (
    AcceptanceRule,
    ConfigError,
    GenerationSettings,
    LenienceController,
    PointMass,
    Proposal,
    TokenRuleConfig,
)
from specdec_core.verification.acceptance import accept_greedy

_BATCH, _WIDTH, _VOCAB = 256, 4, 3


def check_replayable(
    *,
    rule: AcceptanceRule | None = None,
    lenience: LenienceController | None = None,
    greedy: bool = False,
    generation: GenerationSettings | None = None,
) -> None:
    """Refuse a run whose texts do not have the target's law, or whose acceptance takes more than p of one token.

    A controller that asks for trees is refused when it does so.

    Args:
        rule: The acceptance rule; None for Algorithm 1.
        lenience: The lenience controller; None for l = 1.
        greedy: Whether the target decodes greedily.
        generation: Length limits, seed, and beams.

    Raises:
        ConfigError: It cannot be replayed; with the reason, and what to do.
    """
    if lenience is not None and not getattr(lenience.config, "lossless", False):
        raise ConfigError(
            "lenience below 1 cannot be replayed: its texts do not have the target's law, and what it accepts "
            "depends on the text before. Remove `lenience`, or compare live."
        )
    if rule is not None and not _accepts_as_token(rule, greedy):
        name = getattr(rule.config, "name", type(rule).__name__)
        raise ConfigError(
            f"the rule {name!r} cannot be replayed{' at this temperature' if not greedy else ''}: it does not "
            "verify token by token, so that what it accepts depends on all of p and q. Use the rule `token`, or "
            "compare live."
        )
    if generation is not None and generation.beams > 1:
        raise ConfigError("beam search cannot be replayed: the record holds one text, and no beams. Set beams: 1.")
    if generation is not None and generation.constraint is not None:
        raise ConfigError(
            "constrained texts cannot be replayed: the record holds p without a constraint. Compare live, or "
            "remove `constraint`."
        )


def _accepts_as_token(rule: AcceptanceRule, greedy: bool) -> bool:
    """Return whether a rule is Algorithm 1, or accepts the same in greedy decoding."""
    if isinstance(rule.config, TokenRuleConfig):
        return True
    if not greedy:
        return False
    # A rule is a pure function; among these drafts, every number of tokens in common with the argmax occurs.
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(_VOCAB, (_BATCH, _WIDTH), generator=generator)
    lengths = torch.randint(_WIDTH + 1, (_BATCH,), generator=generator).tolist()
    scores = torch.randn(_BATCH, _WIDTH + 1, _VOCAB, generator=generator)
    proposal = Proposal(tokens, (_WIDTH, *lengths[1:]), PointMass())
    own, expected = rule.greedy(proposal, scores, None), accept_greedy(proposal, scores, None)
    return bool((own.accepted == expected.accepted).all() and (own.token == expected.token).all())
