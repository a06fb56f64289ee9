"""Checks of the kit, run one by one without a session of pytest for each."""

import pytest
import torch

from specdec_core.testing import CheckFailure
from specdec_core.testing.harness.state import restored_globals
from specdec_core.testing.harness.tiny_target import discard_modified


def kit_of(base, make=None, **attributes):
    """Return a kit's class for a plugin that a function makes, or for an installed one."""
    if make is not None:
        attributes["make"] = lambda self, *target: make(*target)
    return type("Kit", (base,), attributes)


def names_of(kit):
    """Return the names of a kit's checks, without `test_`."""
    return [name.removeprefix("test_") for name in dir(kit) if name.startswith("test_")]


def failure_of(kit, name):
    """Run a check as pytest does; return its failure, None if it passes, or a skip's reason after `skipped: `."""
    with restored_globals():
        torch.set_num_threads(1)
        try:
            getattr(kit(), f"test_{name}")()
        except CheckFailure as failure:
            return str(failure)
        except pytest.skip.Exception as skipped:
            return f"skipped: {skipped}"
        finally:
            discard_modified()
    return None


def failures(kit, *names):
    """Return the failures of some checks, or of all, by name."""
    found = {name: failure_of(kit, name) for name in names or names_of(kit)}
    return {name: text for name, text in found.items() if text is not None and not text.startswith("skipped: ")}
