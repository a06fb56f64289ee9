"""`specdec measure`: acceptance by position, times, and the file of both."""

import numpy as np
import pytest

from specdec_core.costs.measurement import read_measurement
from specdec_core.interface.settings import SamplingSettings
from specdec_core.offline.measure import mean_acceptance
from specdec_core.offline.replay.replayed_metrics import TextAcceptance
from specdec_core.study import load_study
from specdec_core.study.config.study import drafter_key
from specdec_core.testing.harness.tiny_target import uncached_logits
from tests.commands import run_command
from tests.offline.replay.support import PROMPT, all_texts, probabilities, replayed, small_target
from tests.toys import TableDrafter

QUICK = ("--timings", "2", "--gamma", "3", "--max-new-tokens", "12", "--quiet")
STUDY = """\
target: {folder}
prompts: [a b c, d e, f g h]
sampling: {{top_k: 4}}
generation: {{max_new_tokens: 12, ignore_eos: true, seed: 7}}
runs:
  - {{drafter: prompt-copy, grid: {{gamma: [2, 3]}}}}
  - {{name: flat, drafter: random, gamma: 1, draft_sampling: {{temperature: 0.5}}}}
  - {{name: missing, drafter: {{name: transformer, model: nowhere}}, gamma: 1}}
"""


def text(ratio, offered, number=0):
    length = len(offered)
    none = np.zeros((length, len(ratio[0])), dtype=np.float32)
    tokens = np.zeros(length, dtype=np.int64)
    return TextAcceptance(np.array(ratio), np.array(offered), none, tokens, length + 1, length, number=number)


def test_positions_are_weighed_by_how_often_they_are_verified():
    found = mean_acceptance([text([[0.5, 0.8], [2.0, 9.0], [9.0, 9.0]], [2, 1, 0])], 1.0)
    assert found.alpha == pytest.approx(1.5 / 2)  # the third draft is empty
    assert found.by_position == pytest.approx((1.5 / 2, 0.4 / 0.5))
    assert found.proposed == pytest.approx((2 / 3, 0.5 / 1.5))
    assert found.drafted == pytest.approx((2 / 3, 1 / 2))
    assert found.rates(3) == pytest.approx((0.5, 0.8 / 3, 0.0))
    assert found.mean_seconds((1.0, 1.5, 1.7)) == pytest.approx(
        (1.0, 1 + 0.5 * 2 / 3, 1 + 0.5 * 2 / 3 + 0.2 * 0.5)
    )


def test_alpha_is_the_mean_of_sum_min_p_q():
    target, sampling, length = small_target(), SamplingSettings(), 3
    drafter = TableDrafter(target.vocab_size)
    texts, weights = all_texts(target, sampling, length)
    measured = expected = positions = 0.0
    for one, weight in zip(
        replayed(target, texts, sampling, drafter, 2, length).acceptance(), weights, strict=True
    ):
        count = min(len(one), length - 1)  # the last token has no room for a draft
        measured += weight * count * mean_acceptance([one], 1.0).alpha
        positions += weight * count
        for end in range(count):
            prefix = [*PROMPT, *one.tokens[:end].tolist()]
            p = probabilities(uncached_logits(target, [prefix])[0, -1], sampling)
            q = probabilities(drafter.table[prefix[-1]], sampling)
            expected += weight * np.minimum(p, q).sum()
    assert measured / positions == pytest.approx(expected / positions, abs=1e-6)
    assert 0.05 < expected / positions < 0.95


def test_the_interval_is_over_prompts():
    accepted = [0.4, 0.5, 0.6]
    found = mean_acceptance([text([[rate]], [1], number) for number, rate in enumerate(accepted)], 0.0)
    assert (found.low + found.high) / 2 == pytest.approx(found.alpha) == pytest.approx(0.5)
    assert found.high - found.low == pytest.approx(2 * 4.303 * 0.1 / np.sqrt(3), rel=1e-3)
    alone = mean_acceptance([text([[0.5]], [1])], 0.0)
    assert (alone.low, alone.high) == (0.0, 1.0), "one prompt says nothing of others"


@pytest.fixture
def measure(tmp_path, monkeypatch, model_folder):
    (tmp_path / "study.yaml").write_text(STUDY.format(folder=model_folder))
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: run_command("measure", *arguments)


def test_a_study_gives_its_distinct_drafters_and_those_that_fail_are_named(measure, tmp_path):
    result = measure("study.yaml", "--timings", "2", "--gamma", "3", "--output", "m.json")
    assert result.exit_code == 2
    assert "transformer failed: " in result.stderr
    assert "prompt-copy: c = " in result.stdout
    found = read_measurement(tmp_path / "m.json")
    assert [one.name for one in found.drafters] == ["prompt-copy", "random"]
    assert found.sampling["top_k"] == 4
    for one in found.drafters:
        assert [each.temperature for each in one.acceptance] == [0, 1]
        assert all(each.low <= each.alpha <= each.high and each.tokens == 36 for each in one.acceptance)
        assert len(one.seconds.verify) == len(one.seconds.draft) == 4
        assert one.seconds.verify == found.drafters[0].seconds.verify
    machine = found.machine("here")
    for run in load_study(tmp_path / "study.yaml").runs[1:4]:
        assert drafter_key(run.drafter, run.draft_sampling) in machine.drafters


def test_drafters_that_share_a_name_are_told_apart(measure, tmp_path, model_folder):
    copies = ("--drafter", "{name: prompt-copy, min_match: 1}", "--drafter", "{name: prompt-copy, min_match: 2}")
    where = ("--target", str(model_folder), "--prompts", "{texts: [a b c a b c]}", "--output", "m.json")
    result = measure(*copies, *where, *QUICK, "--temperature", "0.5")
    assert result.exit_code == 0, result.output
    found = read_measurement(tmp_path / "m.json")
    assert [one.settings["min_match"] for one in found.drafters] == [1, 2]
    assert len({one.name for one in found.drafters}) == 2
    assert [one.temperature for one in found.drafters[0].acceptance] == [0.5]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "no drafter"),
        (("study.yaml", "--drafter", "random"), "--drafter: the study sets this"),
        (("study.yaml", "--set", "tasks=[{name: a}, {name: b}]"), "choose one with --task: a, b"),
    ],
)
def test_what_cannot_be_measured_is_said(measure, arguments, said):
    result = measure(*arguments)
    assert result.exit_code == 2
    assert said in " ".join(result.stderr.split())
