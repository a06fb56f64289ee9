"""Lines of `results.jsonl` for tests."""

BASE = {
    "task": None,
    "status": "ok",
    "repeats": 5,
    "device": "cpu",
    "versions": {"torch": "2.13"},
    "alpha": 0.8,
    "verified_by_position": [300, 200],
    "speedup": 2.0,
    "speedup_low": 1.95,
    "speedup_high": 2.05,
    "tokens_per_second": 100.0,
    "tokens_per_second_min": 97.0,
    "tokens_per_second_max": 103.0,
    "config": {"repeats": 5, "sampling": {"temperature": 1.0}, "run": {"name": "draft", "gamma": {"gamma": 4}}},
}


def row(name="draft", factor=1.0, **changed):
    """A line of results whose speeds are those of `BASE` times a factor."""
    speeds = {key: value * factor for key, value in BASE.items() if key.startswith(("speedup", "tokens_per"))}
    return {**BASE, **speeds, "name": name, **changed}
