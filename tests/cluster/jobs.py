"""Jobs for the workers of a pool."""

import os
import time
from pathlib import Path

from specdec_core.interface.errors import PromptError


def square(number: int) -> int:
    time.sleep(0.2 if number == 0 else 0)  # the first ends last
    return number * number


def process() -> int:
    return os.getpid()


def device() -> tuple[int, str]:
    """Return the process, and the GPUs that it sees."""
    time.sleep(0.3)
    return os.getpid(), os.environ["CUDA_VISIBLE_DEVICES"]


def meet(folder: str, name: str, other: str) -> bool:
    """Wait until another job runs too."""
    Path(folder, name).touch()
    until = time.monotonic() + 60
    while not Path(folder, other).exists():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def die_once(folder: str, number: int) -> int:
    """Kill the worker when the job is first tried."""
    mark = Path(folder, f"tried-{number}")
    if not mark.exists():
        mark.touch()
        os._exit(1)
    return number


def die() -> None:
    os._exit(1)


def refuse(text: str) -> None:
    raise PromptError(text)


def divide(number: int) -> float:
    return 1 / number


def wait(folder: str) -> None:
    Path(folder, str(os.getpid())).touch()
    time.sleep(600)
