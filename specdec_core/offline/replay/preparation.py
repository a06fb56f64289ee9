"""Preparation of a replay: loading the drafter, and the hidden states of the texts if it reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specdec_core.decoding.arguments import create_drafter
from specdec_core.interface import (
    LAST_HIDDEN,
    ConfigError,
    Drafter,
    ModelError,
    PluginConfig,
    PluginError,
    TargetInfo,
)
from specdec_core.models import LoadedModel
from specdec_core.models.load.model_requirements import unmet_requirements
from specdec_core.offline.record.decode import forced_pass
from specdec_core.offline.record.format import PartHeader, Record, RecordedText
from specdec_core.offline.record.recorded_target import load_recorded, target_info
from specdec_core.offline.replay.expected_counts import Uncached
from specdec_core.offline.replay.text_oracle import ForcedText
from specdec_core.registry.nesting import Keys
from specdec_core.registry.registry import Registry


@dataclass(eq=False)
class Preparation:
    """Loads drafters for the target of a record, and the target itself where a drafter needs it.

    Args:
        record: The record.
        header: Settings of the part.
        registry: Where plugins come from.
        folder: Base for relative paths in plugin settings.
        target: The loaded target, if there is one.

    Attributes:
        notes: What a reader of the results should know.
    """

    record: Record
    header: PartHeader
    registry: Registry
    folder: Path
    target: LoadedModel | None
    notes: list[str] = field(default_factory=list)

    def drafter(self, given: PluginConfig | Drafter) -> Drafter:
        """Return the drafter that was given, or load the one that was configured.

        Args:
            given: The drafter, or its settings.

        Raises:
            ConfigError: It drafts for another vocabulary.
            ModelError: It needs the target, which cannot be loaded.
            PluginError: It cannot be loaded, or its requirements are not met.
        """
        drafter = given if isinstance(given, Drafter) else self._load(given)
        vocab = self.record.header.vocab_size
        if drafter.target.vocab_size != vocab:
            raise ConfigError(
                f"{type(drafter).__name__} drafts for a target with {drafter.target.vocab_size} token ids; the "
                f"recorded one has {vocab}. Load it for the target of the record."
            )
        return drafter

    def forced(self, texts: Sequence[RecordedText], hidden_layers: Sequence[int] = ()) -> list[ForcedText]:
        """Return texts ready to be drafted along, with hidden states if they are asked for.

        Args:
            texts: The texts.
            hidden_layers: Those of the drafter. A record holds the states of `LAST_HIDDEN` at most.

        Raises:
            ConfigError: Their probabilities are not probabilities.
            ModelError: Hidden states are neither recorded, nor can the target be loaded.
        """
        return [self._forced(text, tuple(hidden_layers)) for text in texts]

    def _forced(self, text: RecordedText, hidden_layers: tuple[int, ...]) -> ForcedText:
        name = f"text {text.sample} of prompt {text.number}"
        if not len(text.tokens) or len(text.tokens) != len(text.probabilities):
            raise ConfigError(f"{name} has {len(text.tokens)} tokens and {len(text.probabilities)} probabilities.")
        p = text.probabilities
        # Greedy texts have their tokens with certainty, whatever is noted.
        if not (self.header.sampling.greedy or ((p > 0) & (p <= 1 + 1e-4)).all()):
            raise ConfigError(
                f"{name} holds a probability that is not in (0, 1]: {float(p.min()):g} to "
                f"{float(p.max()):g}. Each must be what its token was sampled with."
            )
        start = self.record.header.start_id
        begin = text.prompt if start is None else (start,)
        last, states = self._hidden(text, hidden_layers) if hidden_layers else (None, {})
        limit = self._limit(text, len(begin))
        most = self.record.header.most_uncached
        uncached = None if most is None else Uncached(len(begin), most)
        return ForcedText(text, begin, limit, limit - 1, uncached, last, self._all_p(text), states)

    def _all_p(self, text: RecordedText) -> tuple[NDArray[np.int64], NDArray[np.float32]] | None:
        """Return the most probable tokens and their p, if no others have any; None in greedy decoding."""
        tokens, p = text.top_tokens, text.top_probabilities
        if tokens is None or p is None or self.header.sampling.greedy:
            return None
        whole = tokens.shape[1] == self.record.header.vocab_size or not p[:, -1].any()
        return (tokens, p) if whole else None

    def _limit(self, text: RecordedText, begin: int) -> int:
        """Return the most tokens that a text could have had. One that ended by itself could have gone on."""
        length = len(text.tokens)
        if text.finish_reason in ("length", "context"):
            return length
        longest = self.record.header.max_length
        most = self.header.generation.max_new_tokens
        return max(length, most if longest is None else min(most, longest - begin))

    def _load(self, config: PluginConfig) -> Drafter:
        info = self._info()
        unmet = partial(self._unmet, config)
        if len(unmet(info)) > len(unmet(info, loaded=True)):
            info = self._loaded_target.info(self.folder)
        return create_drafter(self.registry, config, info)

    def _unmet(
        self, config: PluginConfig, info: TargetInfo, *, loaded: bool = False
    ) -> list[tuple[Keys, PluginError]]:
        """Return the unmet requirements of a drafter; with `loaded`, those that the loaded target would leave."""
        return list(
            unmet_requirements(
                self.registry,
                config,
                encoder_decoder=info.encoder_decoder,
                has_tokenizer=info.tokenizer is not None,
                has_hidden_states=loaded or info.features is not None,
                has_model=loaded or info.model is not None,
                folder=self.folder,
            )
        )

    def _info(self) -> TargetInfo:
        if self.target is not None:
            return self.target.info(self.folder)
        return target_info(self.record, self.folder)

    @cached_property
    def _loaded_target(self) -> LoadedModel:
        """The target, loaded if none was given."""
        if self.target is not None:
            return self.target
        if self.record.header.source is not None:
            raise ModelError(
                "this drafter works on the target, or on its hidden states, which an imported record does not "
                "hold. Record the target with `specdec record --hidden`, or choose another drafter."
            )
        return load_recorded(self.record, self.folder)

    def _hidden(self, text: RecordedText, hidden_layers: tuple[int, ...]) -> tuple[Tensor, Mapping[int, Tensor]]:
        layers = [layer for layer in hidden_layers if layer != LAST_HIDDEN]
        if text.hidden is not None and not layers:
            return torch.from_numpy(np.ascontiguousarray(text.hidden)), {}
        what = "no outputs of single layers" if text.hidden is not None else "no hidden states"
        note = f"The record holds {what}: the target read each text once to compute them."
        if note not in self.notes:
            self.notes.append(note)
        target = self._loaded_target
        if target.features is None:
            raise ModelError(f"{target.name} has no output embedding for hidden states; choose another drafter.")
        found = forced_pass(target, text.prompt, text.tokens.tolist(), layers=layers)
        return found.hidden, found.layers
