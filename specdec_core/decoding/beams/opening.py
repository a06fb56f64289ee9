"""Opening a batch of beam searches: a row of the target's cache for each prompt, of the drafter for each beam."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from specdec_core.decoding.beams.batch import BeamBatch
from specdec_core.decoding.beams.drafting import BeamGamma, DraftSearch
from specdec_core.decoding.beams.prompt import PromptBeams
from specdec_core.decoding.beams.search import BeamRules
from specdec_core.decoding.drafting.proposer import Proposer
from specdec_core.decoding.drafting.request import DraftRecorder
from specdec_core.decoding.loop import LoopContext, kept_layers
from specdec_core.decoding.row import Row
from specdec_core.decoding.stopping import StopRule
from specdec_core.interface import BatchInfo, Drafter, GammaController, ModelError, SessionInfo
from specdec_core.interface.settings import GenerationSettings
from specdec_core.models import LoadedModel, open_session
from specdec_core.sampling.logits import LogitsToProbs


def open_beams(
    context: LoopContext,
    target: LoadedModel,
    rows: Sequence[Row],
    info: SessionInfo,
    drafter: Drafter | None,
    gamma: GammaController | None,
    settings: GenerationSettings,
    *,
    draft_beams: int | None,
    to_probs: LogitsToProbs,
    stops: StopRule,
) -> BeamBatch:
    """Open a batch of beam searches.

    Args:
        context: Generators for `w` rows of each prompt, and the guard.
        target: The model whose beam search it is.
        rows: A row for each prompt.
        info: What drafters know about the prompts.
        drafter: Drafts for the target; None for plain beam search.
        gamma: Decides how many levels are drafted.
        settings: The number of beams, and what they are ranked by.
        draft_beams: u, the number of nodes of a level; None for w.
        to_probs: The target's sampling settings, greedy.
        stops: Decides when a beam ends.

    Raises:
        ConfigError: The gamma controller does not work with beams.
        ModelError: The target reads no trees.
    """
    if not target.family.trees:
        raise ModelError(
            f"{target.name} cannot read a token tree in one forward pass, which beams need: its attention takes "
            "no mask for each token. Use beams=1."
        )
    beams, width = settings.beams, draft_beams or settings.beams
    candidates = BeamRules.count_candidates(beams, len(stops.eos_ids))
    bounded = to_probs.never_positive
    prompts = [_prompt(row, settings, stops, candidates, bounded=bounded) for row in rows]
    copies = [replace(row, tokens=list(row.tokens)) for row in rows for _ in range(beams)]
    levels = info.max_gamma
    sources = None if info.sources is None else [source for source in info.sources for _ in range(beams)]
    spread = replace(info, batch_size=len(copies), max_gamma=width * levels, sources=sources, trees=True)
    room = tuple(row.limit - len(row.tokens) for row in rows)
    shape = (len(copies), info.vocab_size, spread.max_gamma, info.device)
    search = DraftSearch(beams, width, tuple(stops.eos_ids))
    recorder = DraftRecorder(context.draft_to_probs, context.generators, *shape, new_tree=search)
    rows_gamma = None
    if drafter is not None and gamma is not None:
        batch = BatchInfo(len(rows), levels, room, greedy=True)
        rows_gamma = BeamGamma(gamma, levels, beams, width, batch, context.guard)
    session = open_session(
        target,
        len(rows),
        # The beams of a prompt may have no token in common.
        max(len(row.tokens) + beams * (row.limit - len(row.tokens)) for row in rows) + width * levels + beams,
        info.sources if target.encoder_decoder else None,
        vocab_size=info.vocab_size,
        hidden_layers=kept_layers(drafter, context.guard),
    )
    rows_info = BatchInfo(len(copies), spread.max_gamma, tuple(n for n in room for _ in range(beams)), greedy=True)
    proposer = Proposer(drafter, rows_gamma, recorder, context.with_loop(spread), rows_info, context.guard)
    return BeamBatch(prompts, copies, session, proposer, rows_gamma, recorder, search, to_probs, candidates)


def _prompt(
    row: Row, settings: GenerationSettings, stops: StopRule, candidates: int, *, bounded: bool
) -> PromptBeams:
    rules = BeamRules(
        settings.beams,
        candidates,
        row.limit - len(row.tokens),
        settings.length_penalty,
        settings.early_stopping,
        bounded,
    )
    return PromptBeams(
        row.tokens, rules, row.reason_at_limit, lambda text, token: stops.clip(text[-stops.reach :], [token])[1]
    )
