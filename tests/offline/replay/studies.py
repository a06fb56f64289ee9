"""Records of a tiny target, and a drafter that counts how often it is asked, for tests of replays."""

from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from specdec_core.registry.registry import Registry

TOY = """
from specdec_core import DeterministicDrafter, DrafterConfig, PluginSpec, hookimpl


class AgainConfig(DrafterConfig):
    breaks: bool = False


class Again(DeterministicDrafter):
    asked = 0

    def draft(self, tokens, budget):
        Again.asked += 1
        if self.config.breaks:
            raise RuntimeError("it broke")
        return [tokens[-1]] * budget


@hookimpl
def specdec_drafters():
    return [PluginSpec("drafter", "again", "again_toy:Again", AgainConfig)]
"""
GREEDY, SAMPLED = {"temperature": 0}, {"temperature": 1.0}


def toy_registry(folder: Path) -> Registry:
    """Return the plugins that ship, and `again`, whose module is written to a folder of the path."""
    (folder / "again_toy.py").write_text(TOY)
    own = [entry for entry in entry_points(group="specdec") if entry.dist and entry.dist.name == "specdec-core"]
    return Registry([*own, EntryPoint("again", "again_toy", "specdec")])


def study_of(target: Path, *runs: dict[str, Any], **changed: Any) -> dict[str, Any]:
    """Return a study of the tiny target with a greedy and a sampled task."""
    tasks = [{"name": "greedy", "sampling": GREEDY}, {"name": "sampled", "sampling": SAMPLED}]
    return {
        "target": str(target),
        "prompts": ["a b c", "d e f", "g h a b"],
        "generation": {"max_new_tokens": 12, "ignore_eos": True},
        "repeats": 1,
        "tasks": tasks,
        "runs": list(runs) or [{"drafter": "prompt-copy", "gamma": 2}],
        **changed,
    }
