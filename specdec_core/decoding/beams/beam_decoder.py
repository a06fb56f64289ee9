"""The decoder of beam searches: a row of the target's cache for each prompt, and of the drafter for each beam."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from specdec_core.decoding.beams.beam_batch import BeamBatch
from specdec_core.decoding.beams.beam_draft import BeamDraft, BeamGamma, DraftSearch
from specdec_core.decoding.beams.beam_rows import BeamRows
from specdec_core.decoding.beams.prompt_beams import PromptBeams
from specdec_core.decoding.beams.search import BeamRules
from specdec_core.decoding.guard import PluginGuard
from specdec_core.decoding.opening import LoopContext, kept_layers
from specdec_core.decoding.result import Generation, generation
from specdec_core.decoding.rows import Row, StopRule
from specdec_core.interface import BatchInfo, Drafter, GammaController, ModelError, SessionInfo
from specdec_core.interface.settings import GenerationSettings
from specdec_core.models import LoadedModel, ModelSession
from specdec_core.sampling.generators import RowGenerators, row_seed
from specdec_core.sampling.logits import LogitsToProbs


@dataclass(frozen=True)
class BeamDecoder:
    """Decodes with beams, where a `Decoder` is asked for them.

    Args:
        target: The model whose beam search it is.
        drafter: Drafts for the target; None for plain beam search.
        gamma: Decides how many levels are drafted.
        to_probs: The target's sampling settings.
        draft_to_probs: Those for drafts.
        draft_beams: u, the number of nodes of a level; None for w.
    """

    target: LoadedModel
    drafter: Drafter | None
    gamma: GammaController | None
    to_probs: LogitsToProbs
    draft_to_probs: LogitsToProbs
    draft_beams: int | None

    def open(
        self,
        info: SessionInfo,
        rows: Sequence[Row],
        seeds: Sequence[int],
        guard: PluginGuard,
        settings: GenerationSettings,
        stops: StopRule,
    ) -> BeamBatch:
        """Open a batch of beam searches.

        Args:
            info: What drafters know about the prompts.
            rows: A row for each prompt.
            seeds: One for each prompt.
            guard: Records plugin failures.
            settings: The number of beams, and what they are ranked by.
            stops: Decides when a beam ends.

        Raises:
            ConfigError: The gamma controller does not work with beams.
            ModelError: The target reads no trees, and has no states.
        """
        family = self.target.family
        if family.recurrent and self.drafter is not None:
            guard.note(
                f"{type(self.drafter).__name__} drafts nothing: a recurrent state follows one path, so that a "
                "draft for beams would take a pass for each of its levels."
            )
            alone = replace(self, drafter=None, gamma=None)
            return alone.open(replace(info, max_gamma=0), rows, seeds, guard, settings, stops)
        if not family.trees and not family.recurrent:
            raise ModelError(
                f"{self.target.name} cannot read a token tree in one forward pass, which beams need: "
                "its attention does not take a mask for each token. Use beams=1."
            )
        beams, levels = settings.beams, info.max_gamma
        width = self.draft_beams or beams
        candidates = BeamRules.count_candidates(beams, len(stops.eos_ids))
        begins = [row.begin for row in rows]
        to_probs = self.to_probs.for_batch(begins, None, settings.min_new_tokens, stops.eos_ids)
        bounded = to_probs.never_positive
        prompts = [_prompt(row, settings, stops, candidates, bounded=bounded) for row in rows]
        copies = [replace(row, tokens=list(row.tokens)) for row in rows for _ in range(beams)]
        sources = None if info.sources is None else [source for source in info.sources for _ in range(beams)]
        metadata = [one for one in info.metadata for _ in range(beams)]
        spread = replace(
            info,
            batch_size=len(copies),
            max_gamma=width * levels,
            sources=sources,
            trees=True,
            metadata=metadata,
            encoded=None if info.encoded is None else info.encoded.repeated(beams),
        )
        room = tuple(row.limit - len(row.tokens) for row in rows)
        gamma = None
        if self.drafter is not None and self.gamma is not None:
            batch = BatchInfo(len(rows), levels, room, greedy=True)
            gamma = BeamGamma(self.gamma, levels, beams, width, batch, guard)
        # The beams of a prompt may have no token in common.
        nodes = max(len(row.tokens) + beams * (row.limit - len(row.tokens)) for row in rows)
        session = self._session(info, prompts, nodes + width * levels + beams, kept_layers(self.drafter, guard))
        search = DraftSearch(beams, width, tuple(stops.eos_ids))
        each = RowGenerators([row_seed(seed, beam) for seed in seeds for beam in range(beams)])
        rows_room = tuple(n for n in room for _ in range(beams))
        proposer = LoopContext(self.draft_to_probs.for_batch(()), each, guard).open_drafting(
            self.drafter,
            gamma,
            spread,
            BatchInfo(len(copies), spread.max_gamma, rows_room, greedy=True),
            # The scores decide on the shape, and drafts are greedy.
            new_tree=lambda _, budget, probs, record, texts, __: BeamDraft(search, budget, probs, record, texts),
        )
        return BeamBatch(prompts, copies, session, proposer, gamma, search, to_probs, candidates)

    def _session(
        self, info: SessionInfo, prompts: Sequence[PromptBeams], capacity: int, layers: Sequence[int]
    ) -> ModelSession:
        """Open the target's cache, with a row for each prompt, or for each beam of a recurrent model."""
        if self.target.family.recurrent:
            return BeamRows(self.target, prompts, info.capacity, vocab_size=info.vocab_size)
        return ModelSession.of_batch(self.target, info, capacity, hidden_layers=layers)

    def generations(
        self, batch: BeamBatch, prompts: Sequence[Sequence[int]], returned: int
    ) -> Iterator[Generation]:
        """Yield the best sequences of each prompt, at most `returned` of them."""
        for prompt, found in zip(prompts, batch.hypotheses, strict=True):
            for one in found[:returned]:
                yield replace(generation(prompt, one.tokens, one.reason, self.target.tokenizer), score=one.score)


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
