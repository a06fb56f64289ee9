"""Studies with `timing: false`: acceptance alone, and results that are the same bytes wherever they decode."""

import json

import pytest

from specdec_core.cluster import LocalPool
from specdec_core.study import compare

STUDY = """\
target: {folder}
generation: {{max_new_tokens: 6, ignore_eos: true}}
repeats: auto
timing: false
tasks:
  - {{name: short, prompts: [a b c, d e]}}
  - {{name: greedy, prompts: [f], sampling: {{temperature: 0}}}}
runs:
  - {{drafter: echo, gamma: 2}}
  - {{name: broken, drafter: {{name: echo, breaks: true}}, gamma: 2}}
  - {{name: lenient, drafter: {{name: echo, token: 3}}, gamma: 3, lenience: 0.5}}
  - {{name: impossible, drafter: absent, gamma: 1}}
"""
_FILES = ("results.jsonl", "outputs.jsonl", "repeats.jsonl", "summary.csv")


class WaitingPool(LocalPool):
    """Starts no job before the first result is asked for, and counts those that wait."""

    def __init__(self):
        self.waiting = 0
        self.most = 0

    def alone(self, function, *arguments, **resources):
        raise AssertionError("nothing is timed")

    def map(self, function, jobs, **resources):
        self.waiting += len(jobs)
        self.most = max(self.most, self.waiting)
        return self._results(function, jobs)

    def _results(self, function, jobs):
        for job in jobs:
            self.waiting -= 1
            yield function(*job)


@pytest.fixture
def written(study, tmp_path):
    """Return a function that runs the study, and returns it with what it wrote."""

    def run(name, *settings, **options):
        result = compare(study(None, *settings), tmp_path / name, progress=False, **options)
        return result, {file: (tmp_path / name / file).read_bytes() for file in _FILES}

    return run


def test_the_counts_are_those_of_a_timed_study(written):
    result, files = written("untimed")
    timed, _ = written("timed", "timing=true", "repeats=1")
    for one, other in zip(result.rows, timed.rows, strict=True):
        assert one.repeats == (one.status != "error")
        for name in ("tokens", "target_calls", "alpha", "alpha_by_position", "block_efficiency", "deviation"):
            assert getattr(one, name) == getattr(other, name), name
        assert one.seconds == 0
        assert one.tokens_per_second is None
        assert one.speedup is None
        assert one.gamma_best is None
    assert all(row.seconds for row in timed.rows if row.status == "ok")
    failed = {"broken": "plugin-failure", "impossible": "error"}
    assert [row.status for row in result.rows] == [failed.get(row.name, "ok") for row in result.rows]
    shown = str(result)
    assert "Not timed: acceptance alone was measured." in shown
    assert not any(word in shown for word in ("tokens/s", "speed-up", "Theorem", "best"))
    assert "tokens per second" not in result.report.read_text()
    assert [json.loads(line)["config"]["timing"] for line in files["results.jsonl"].splitlines()] == [False] * 10


@pytest.mark.slow
@pytest.mark.parametrize("where", ["here", "side by side"])
def test_results_are_the_same_bytes_wherever_and_whenever_they_are_decoded(written, where):
    pool = WaitingPool() if where == "side by side" else None
    result, files = written("first")
    again, others = written("second", ray=pool)
    assert files == others
    assert again.exit_code == result.exit_code == 2, "runs that fail are reported"
    if pool is not None:
        assert pool.most == 2 * 5, "the runs of all tasks are decoded side by side"
