"""The drafter `pairs`: a table of which token follows which, and the trainer that counts it."""

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np

from specdec_core import (
    Drafter,
    DrafterConfig,
    DraftRequest,
    DraftSession,
    PluginSpec,
    Proposal,
    SessionInfo,
    TargetInfo,
    hookimpl,
)
from specdec_core.interface import (
    Candidates,
    ConfigError,
    Progress,
    Trainer,
    TrainerConfig,
    TrainingReport,
)
from specdec_core.interface.files import check_output, writing_file


class PairsConfig(DrafterConfig):
    """The token that followed another in a text."""

    table: Path
    """The file that `specdec train pairs` wrote."""


class Pairs(Drafter):
    """Guesses what followed the last token in the counted text; where nothing did, what followed others."""

    def __init__(self, config: PairsConfig, target: TargetInfo) -> None:
        super().__init__(config, target)
        path = target.folder / config.table
        try:
            followers = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(f"table {path}: {error}; `specdec train pairs` makes one.") from error
        self.rows = {int(token): _candidates(counts) for token, counts in followers.items()}
        anything: Counter[str] = Counter()
        for counts in followers.values():
            anything.update(counts)
        self.unseen = _candidates(anything)

    def open(self, session: SessionInfo) -> DraftSession:  # noqa: ARG002
        return PairsSession(self)


def _candidates(counts: dict[str, int]) -> Candidates:
    ids = sorted(map(int, counts))
    return Candidates(np.array(ids), np.log([counts[str(token)] for token in ids]))


class PairsSession(DraftSession):
    def __init__(self, drafter: Pairs) -> None:
        self.drafter = drafter

    def propose(self, request: DraftRequest) -> Proposal:
        last = [row[-1] for row in request.tokens]
        while request.wants_more():
            last = request.sample_candidates([self.drafter.rows.get(token, self.drafter.unseen) for token in last])
        return request.proposal()


class PairsTrainerConfig(TrainerConfig):
    """Count which token follows which in a text."""

    text: Path
    """A UTF-8 text."""


class PairsTrainer(Trainer):
    """Writes a JSON object: each token, and how often each other one followed it."""

    def train(self, progress: Progress) -> TrainingReport:
        config = self.config
        check_output(config.output, config.overwrite)
        from specdec_core import load_model

        progress.stage("counting")
        tokens = load_model(config.target).tokenizer.encode(config.text.read_text(encoding="utf-8"))
        if len(tokens) < 2:
            raise ConfigError(f"text {config.text} has fewer than two tokens; give a longer one.")
        followers: dict[int, Counter[int]] = {}
        for token, following in pairwise(tokens):
            followers.setdefault(token, Counter())[following] += 1
        with writing_file(config.output) as temporary:
            temporary.write_text(json.dumps(followers), encoding="utf-8")
        usage = f"{{name: pairs, table: {json.dumps(str(config.output))}}}"
        return TrainingReport((config.output,), {"tokens": len(tokens)}, usage)


@hookimpl
def specdec_drafters() -> list[PluginSpec]:
    """Announce the drafter."""
    return [PluginSpec("drafter", "pairs", "specdec_pairs:Pairs", PairsConfig)]


@hookimpl
def specdec_trainers() -> list[PluginSpec]:
    """Announce the trainer, under the drafter's name."""
    return [PluginSpec("trainer", "pairs", "specdec_pairs:PairsTrainer", PairsTrainerConfig)]
