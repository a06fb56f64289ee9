"""An attack, and how a case of it is tried and judged."""

from __future__ import annotations

import re
import signal
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from time import perf_counter
from typing import TypeAlias

TIMEOUT = 30
"""Seconds after which a case counts as one that hangs. Loading a model beside other work takes a few."""

Case: TypeAlias = Callable[[Random, Path], Iterator[str]]
"""Tries one case in an empty folder: yields what it is about to do, and raises `BrokenError` if it goes wrong."""


class BrokenError(Exception):
    """The program gave way; the message says how."""


class HangError(BaseException):
    """A case did not end. Not an `Exception`, so that what catches those cannot keep it."""


@dataclass(frozen=True)
class Attack:
    """A family of cases.

    Attributes:
        name: For the command line and the table.
        about: What it tries, in a few words.
        case: Tries one case.
        cost: Roughly how many cases of the cheapest family take as long as one of these.
    """

    name: str
    about: str
    case: Case
    cost: int = 1


@dataclass(frozen=True)
class Result:
    """The result of a case.

    Attributes:
        number: Its number; with the seed and the name of the attack it says what was drawn.
        did: What was done.
        broken: How the program gave way; empty if it held.
        seconds: Wall time.
    """

    number: int
    did: str
    broken: str
    seconds: float

    @property
    def kind(self) -> str:
        """How it gave way, without the numbers, addresses and names that differ between cases."""
        return re.sub(r"'[^']*'|\"[^\"]*\"|0x[0-9a-f]+|/\S+|-?\d[\d.e+-]*", "_", self.broken.split("\n")[0])[:120]


def attempt(attack: Attack, seed: int, number: int, *, debug: bool = False) -> Result:
    """Try one case of an attack.

    Args:
        attack: The attack.
        seed: Seed of the whole test.
        number: Number of the case.
        debug: Print the traceback of what gave way.
    """
    random = Random(f"{seed} {attack.name} {number}")
    did: list[str] = []
    broken = ""
    begun = perf_counter()
    with tempfile.TemporaryDirectory(prefix="specdec-") as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with _limit(TIMEOUT):
                for step in attack.case(random, Path(folder)):
                    did.append(step)  # noqa: PERF402  (kept although the next step may raise)
        except KeyboardInterrupt:
            raise
        except BrokenError as error:
            broken = str(error)
        except BaseException as error:
            if debug:
                traceback.print_exc()
            broken = f"{type(error).__name__}: {error}"
    return Result(number, "; ".join(did), broken, perf_counter() - begun)


@contextmanager
def _limit(seconds: int) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise HangError(f"no end after {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
