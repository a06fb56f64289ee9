"""Studies with `deploy: vllm`: the counts are those of vLLM's runner, and the end is the command to serve."""

import json
import re
import runpy

import pytest

from specdec_core.interface import ConfigError
from specdec_core.serving.vllm import VllmProposer
from specdec_core.study import compare, load_study
from specdec_core.study.report.served import served_counts
from tests.commands import run_command
from tests.pairwise import some
from tests.serving.vllm_runner import Runner, vllm_config
from tests.tiny import tiny_model

VOCAB, GAMMA, MOST = 10, 3, 24
PROMPTS = [[3, 1, 4, 1, 5], [2, 7, 1, 2], [3, 1, 4, 1, 6], [9]]
COPY = {"name": "prompt-copy", "max_spec_factor": 2.0}
HEAD = {"name": "eagle3", "model": "x"}
SUFFIX = {"name": "suffix", "max_spec_factor": 3.0, "min_token_prob": 0.3}


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    folder = tmp_path_factory.mktemp("deploy") / "target"
    tiny_model("llama", vocab=VOCAB).save_pretrained(folder)
    return str(folder)


def study_of(target, *runs, **more):
    return {
        "target": {"model": target, "device": "cpu"},
        "prompts": {"tokens": PROMPTS},
        "sampling": {"temperature": 0},
        "generation": {"max_new_tokens": MOST, "ignore_eos": True},
        "timing": False,
        "deploy": "vllm",
        "runs": list(runs),
        **more,
    }


def counted(proposer, texts, together):
    """Serve prompts as vLLM does, some together; return its counters."""
    runner = Runner(proposer, GAMMA)
    for number in range(0, len(texts), together):
        names = [str(one) for one in range(number, min(number + together, len(texts)))]
        for name in names:
            runner.add(name, PROMPTS[int(name)], texts[int(name)])
        while going := [name for name in names if len(runner.requests[name].output) < MOST]:
            runner.step(going)
    # Drafts that a request left behind were never verified.
    drafted = sum(len(one.draft) for one in runner.asked if len(one.text) < len(PROMPTS[int(one.name)]) + MOST)
    steps = [accepted for request in runner.accepted.values() for accepted in request]
    return len(steps), drafted, *(sum(one > position for one in steps) for position in range(GAMMA))


@pytest.mark.parametrize(("drafter", "together"), some([(COPY, 3), (SUFFIX, 1), (COPY, 1)], 1))
def test_counts_are_those_of_vllms_runner(target, tmp_path, drafter, together):
    result = compare(
        study_of(target, {"name": "run", "drafter": drafter, "gamma": GAMMA}), tmp_path, progress=False
    )
    lines = map(json.loads, (tmp_path / "outputs.jsonl").read_text().splitlines())
    texts = [line["tokens"] for line in lines if line["run"] == "baseline"]
    assert {len(text) for text in texts} == {MOST + GAMMA}
    proposer = type("Proposer", (VllmProposer,), {"settings": drafter})(vllm_config(VOCAB, GAMMA))
    expected = served_counts(result.rows[1])
    # What a memory learns of a text ends here gamma tokens after the last one, and there with its last step.
    apart = 2 if drafter is SUFFIX else 0
    here = (expected.drafts, expected.draft_tokens, *expected.accepted_per_pos)
    assert here == pytest.approx(counted(proposer, texts, together), abs=apart)
    assert sum(expected.accepted_per_pos) > 20


def test_drafts_are_greedy_where_the_target_samples(target):
    study = load_study(study_of(target, {"drafter": COPY, "gamma": 2}, sampling={"temperature": 0.7}))
    (run,) = study.tasks[0].runs[1:]
    assert run.draft_sampling.temperature == 0
    assert run.gamma.skip_first
    assert run.labels.gamma == 2


RUNS = [
    {"drafter": COPY, "gamma": 2},
    {"name": "adapts", "drafter": COPY, "gamma": "running-average"},
    {"name": "lossy", "drafter": COPY, "gamma": 2, "lenience": 0.5},
    {"name": "block", "drafter": COPY, "gamma": 2, "rule": "block"},
    {"name": "heads", "drafter": {"name": "heads", "model": "x"}, "gamma": 2},
    {
        "name": "in-a-chain",
        "drafter": {"name": "chain", "drafters": [COPY, {"name": "eagle3", "model": "x"}]},
        "gamma": 2,
    },
]
REASONS = {
    "adapts": "a fixed number",
    "lossy": "without lenience",
    "block": "by the rule `token`",
    "heads": "hidden states",
    "in-a-chain": r"\(drafters\[1\]\) works on the target's hidden states",
}


def test_runs_that_vllm_cannot_decode_are_left_out_with_the_reason(target):
    study = load_study(study_of(target, *RUNS))
    assert [run.name for run in study.tasks[0].runs] == ["baseline", "prompt-copy-2"]
    assert [run.name for run in study.runs] == ["baseline", "prompt-copy-2"]
    found = dict(line.split(": ", 1) for line in study.left_out)
    assert found.keys() == REASONS.keys()
    assert all(re.search(reason, found[name]) for name, reason in REASONS.items())
    with pytest.raises(ConfigError, match="can decode none of these runs"):
        load_study(study_of(target, *RUNS[1:]))


@pytest.mark.slow
def test_the_end_is_a_command_that_serves_what_was_exported(target, tmp_path):
    path = tmp_path / "study.yaml"
    path.write_text(json.dumps(study_of(target, *RUNS[:2], {"drafter": "random", "gamma": 2})))
    words = ["compare", str(path), "--quiet"]
    plain = run_command(*words)
    assert plain.exit_code == 0, plain.output
    assert "Left out: adapts" in plain.output
    assert "specdec export --to vllm exported --drafter" in plain.output
    done = run_command(*words, "--output", str(tmp_path / "out"))
    folder = tmp_path / "out/vllm/prompt_copy_2"
    assert f"PYTHONPATH={folder} vllm serve {target} --speculative-config" in done.output
    assert "the most tokens per forward pass" in done.output
    exported = runpy.run_path(str(folder / "exported_prompt_copy.py"))["Proposer"]
    assert exported.settings == COPY
    assert exported(vllm_config(VOCAB, gamma=2)).drafter.config.max_spec_factor == 2
