"""Ways to hand a plugin to the conformance kit: quoted by the page of the kit, and run by the tests."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from specdec_core import DeterministicDrafter, DrafterConfig, TargetInfo
from specdec_core.testing import DrafterKit


class TableConfig(DrafterConfig):
    """Where the table is."""

    table: Path
    """A file with what follows each token, one number a line."""


class Table(DeterministicDrafter):
    """Looks up what follows."""

    def __init__(self, config: TableConfig, target: TargetInfo) -> None:
        super().__init__(config, target)
        self.next = [int(line) for line in config.table.read_text(encoding="utf-8").splitlines()]

    def draft(self, tokens: Sequence[int], budget: int) -> Sequence[int]:
        guesses = [tokens[-1]]
        for _ in range(budget):
            guesses.append(self.next[guesses[-1]])
        return guesses[1:]


# --8<-- [start:make]
class TestTable(DrafterKit):
    def make(self, target: TargetInfo) -> Table:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "next.txt")
            file.write_text("\n".join(str((token + 1) % target.vocab_size) for token in range(target.vocab_size)))
            return Table(TableConfig(table=file), target)


# --8<-- [end:make]
class Budgeted(DeterministicDrafter):
    """Drafts other tokens where more are asked for."""

    def draft(self, tokens: Sequence[int], budget: int) -> Sequence[int]:
        return [(tokens[-1] + budget) % self.target.vocab_size] * budget


class TestBudgeted(DrafterKit):
    def make(self, target: TargetInfo) -> Budgeted:
        return Budgeted(DrafterConfig(), target)

    @pytest.mark.xfail(reason="it drafts other tokens where more are asked for", strict=True)
    def test_replay_equals_live(self) -> None:
        super().test_replay_equals_live()

    def test_drafts_tokens(self) -> None:
        super().test_drafts_tokens()
