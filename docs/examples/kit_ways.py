"""Ways to hand a plugin to the conformance kit: quoted by the page of the kit, and run by the tests."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from specdec_core import DeterministicDrafter, Drafter, DrafterConfig, TargetInfo
from specdec_core.testing import DrafterKit, parametrize_with_checks


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
    @pytest.fixture
    def make(self, tmp_path_factory: pytest.TempPathFactory) -> Callable[[TargetInfo], Drafter]:
        folder = tmp_path_factory.mktemp("table")

        def drafter(target: TargetInfo) -> Drafter:
            file = folder / "next.txt"
            file.write_text("\n".join(str((token + 1) % target.vocab_size) for token in range(target.vocab_size)))
            return Table(TableConfig(table=file), target)

        return drafter


# --8<-- [end:make]
class EchoConfig(DrafterConfig):
    """Repeats the last token."""

    targets = "decoder-only"


class Echo(DeterministicDrafter):
    """Repeats the last token."""

    def draft(self, tokens: Sequence[int], budget: int) -> Sequence[int]:
        return [tokens[-1]] * budget


# --8<-- [start:function]
@parametrize_with_checks(
    "drafter",
    lambda target: Echo(EchoConfig(), target),
    config=EchoConfig,
    expected_failures={"empty-context": "it looks at the last token; the core always hands one over"},
    require=["empty-context", "drafts-tokens"],
)
def test_echo(check: Callable[[], None]) -> None:
    check()


# --8<-- [end:function]
