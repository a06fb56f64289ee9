"""Profiles of acceptance: what they say, that a replay and live decoding agree, and what is refused."""

import json
from itertools import pairwise

import pytest
from typer.testing import CliRunner

from specdec_core.cli.main import app
from specdec_core.interface import ConfigError
from specdec_core.offline.profile import (
    DraftCounts,
    Measured,
    SpeculationProfile,
    measured_in_log,
    measured_in_study,
    measured_on_record,
    read_profile,
    speculation_profile,
    write_profile,
)
from specdec_core.offline.record import read_record
from specdec_core.offline.record.recording import RecordOptions, record_study
from specdec_core.study import load_study
from specdec_core.study.report.result_files import first_outputs, write_results
from specdec_core.study.report.summary import summarize
from specdec_core.study.run.runner import run_study
from tests.offline.replay.studies import study_of
from tests.study.toy_study import Recorder

GAMMAS = [1, 2, 3]
FIGURES = {
    "acceptance_histogram": [40, 30, 30, 0],
    "num_spec_steps": 100,
    "num_accepted_draft_tokens": 90,
    "num_spec_tokens": 3,
}


def counts(*accepted_at, steps=100.0, **facts):
    return DraftCounts(steps, float(sum(accepted_at)), tuple(map(float, accepted_at)), **facts)


def profiled(*accepted_at, **facts):
    return speculation_profile(Measured({len(accepted_at): [counts(*accepted_at)]}, **facts))


def changed(path, **fields):
    plain = json.loads(profiled(60, 30).model_dump_json())
    path.write_text(json.dumps({**plain, **fields}))
    return path


@pytest.fixture(scope="module")
def studied(model_folder, tmp_path_factory):
    """The folder of a record, and one of the results of its study."""
    runs = [{"drafter": "prompt-copy", "grid": {"gamma": GAMMAS}}]
    study = load_study(study_of(model_folder, *runs))
    record, results = tmp_path_factory.mktemp("records") / "record", tmp_path_factory.mktemp("results")
    record_study(study, record, Recorder(), RecordOptions())
    live = run_study(study, Recorder())
    write_results(results, study, summarize(live), first_outputs(live))
    return record, results


def test_rates_by_position_follow_from_the_steps():
    # The numbers of the schema's reference implementation.
    profile = profiled(60, 30, 0)
    assert profile.marginal_accept_rates == (0.6, 0.3, 0.0)
    assert profile.conditional_accept_rates == (0.6, 0.5, 0.0)
    assert profile.mean_accept_length == pytest.approx(1.9)
    assert profile.acceptance_length_histogram == {"1": 40, "2": 30, "3": 30, "4": 0}
    assert profile.alpha == pytest.approx(90 / 190)
    checks = profile.validation
    assert checks.mean_consistency.passed
    assert checks.marginal_monotonicity.passed


def test_a_greedy_replay_and_live_decoding_have_the_same_profile(studied):
    record, results = studied
    live = speculation_profile(measured_in_study(results, task="greedy"))
    replayed = speculation_profile(
        measured_on_record(read_record(record), "prompt-copy", max_gamma=max(GAMMAS), task="greedy")
    )
    assert live.num_speculative_tokens == replayed.num_speculative_tokens == max(GAMMAS)
    assert live.mean_accept_length > 1
    for name in ("marginal_accept_rates", "conditional_accept_rates", "mean_accept_length_per_request"):
        assert getattr(replayed, name) == pytest.approx(getattr(live, name), abs=2e-6), name
    for name in ("accept_length_by_k", "acceptance_length_histogram"):
        assert getattr(replayed, name) == pytest.approx(getattr(live, name), abs=2e-6), name
    assert (live.method, live.accept_length_model) == (replayed.method, replayed.accept_length_model)
    assert "/" not in (live.target_model or "").replace("/", "", 1), "a path has two components"
    assert all(one >= other for one, other in pairwise(replayed.marginal_accept_rates))


@pytest.mark.slow
def test_a_sampled_replay_agrees_with_live_decoding_at_every_gamma(tmp_path):
    """The built-in pair on other texts of the recorded prompts: the lengths are within the intervals of both."""
    drafter = {"name": "transformer", "model": "builtin:drafter"}
    study = load_study(
        {
            "target": "builtin:target",
            "prompts": {"builtin": "heldout"},
            "sampling": {"temperature": 1},
            "generation": {"max_new_tokens": 128},
            "repeats": 1,
            "batch_size": 12,
            "runs": [{"drafter": drafter, "grid": {"gamma": [*range(1, 9)]}}],
        }
    )
    result = run_study(study, Recorder())
    write_results(tmp_path, study, summarize(result), first_outputs(result))
    live = speculation_profile(measured_in_study(tmp_path))
    record = read_record("builtin:code")
    replayed = speculation_profile(measured_on_record(record, drafter, max_gamma=8, task="temperature-1"))
    for k, length in live.accept_length_by_k.items():
        ends = [one.measurement_conditions["accept_length_intervals_by_k"][k] for one in (live, replayed)]
        widths = [(high - low) / 2 for low, high in ends]
        # Eight intervals of 95% have one miss in three samples; 1.5 times as wide ones in fifty.
        assert abs(length - replayed.accept_length_by_k[k]) < 1.5 * sum(one**2 for one in widths) ** 0.5, k


def test_the_rates_serve_for_every_gamma_only_if_they_give_the_lengths_that_were_measured():
    def model(first, *, prefix):
        return speculation_profile(Measured({1: [counts(first)], 2: [counts(60, 30)]}, prefix=prefix))

    assert model(61, prefix=True).accept_length_model == "chain_analytic"
    assert model(61, prefix=False).accept_length_model == "measured_per_k"
    harder = model(70, prefix=True)
    assert harder.accept_length_model == "measured_per_k"
    assert harder.measurement_conditions["largest_analytic_error"] == pytest.approx(0.1)
    assert harder.accept_lengths() == {1: 1.7, 2: 1.9}


def test_categories_and_requests_have_figures():
    each = [
        counts(80, 40, prompt="1", category="code"),
        counts(20, 0, steps=50.0, prompt="2", category="prose"),
        counts(10, 0, steps=50.0, prompt="3", category="prose"),
    ]
    profile = speculation_profile(Measured({2: each}))
    assert profile.per_category["code"]["conditional_accept_rates"] == (0.8, 0.5)
    assert profile.per_category["prose"]["mean_accept_length"] == pytest.approx(1.3)
    assert profile.per_category["prose"]["num_requests"] == 2
    assert profile.mean_accept_length == pytest.approx(1.75)
    assert profile.mean_accept_length_per_request == pytest.approx((2.2 + 1.4 + 1.2) / 3, abs=1e-6)


def test_a_rule_that_verifies_drafts_as_a_whole_has_no_rates():
    profile = profiled(60, 30, block=True)
    assert profile.verification_method == "block"
    assert profile.marginal_accept_rates is profile.conditional_accept_rates is profile.validation is None
    assert "longest-prefix" in profile.vectors_unavailable_reason
    assert profile.accept_lengths() == {2: 1.9}


def test_a_log_of_responses_is_read(tmp_path):
    response = {"model": "m", "usage": {}, "metrics": {"speculative_decoding": FIGURES}}
    served = "INFO:     9 tokens in 4 target forward passes " + json.dumps({"speculative_decoding": FIGURES})
    log = tmp_path / "log.jsonl"
    log.write_text(f"{json.dumps(response)}\nsomething else\n{served}\n")
    profile = speculation_profile(measured_in_log(log))
    assert profile.marginal_accept_rates == (0.6, 0.3, 0.0)
    assert (profile.target_model, profile.accept_length_model) == ("m", "measured_per_k")
    assert profile.measurement_conditions["requests"] == 2

    wrapped = {"request": {"prompt": "a"}, "response": {"body": response}}
    lines = ({**response, "category": "code"}, {**wrapped, "group": ["prose"]}, {**response, "category": None})
    log.write_text("\n".join(map(json.dumps, lines)))
    profile = speculation_profile(measured_in_log(log))
    assert {name: one["num_requests"] for name, one in profile.per_category.items()} == {"code": 1, "prose": 1}
    assert (profile.target_model, profile.measurement_conditions["requests"]) == ("m", 3)
    log.write_text("\n".join(json.dumps({**response, "run": name}) for name in ("a", "b", "a")))
    with pytest.raises(ConfigError, match=r"the lines are of several runs \(a, b\).* --run"):
        measured_in_log(log)
    log.write_text(json.dumps({**response, "category": {"a": 1}}))
    with pytest.raises(ConfigError, match=r"log\.jsonl:1: column 'category' .* must hold a text"):
        measured_in_log(log)

    log.write_text(json.dumps({"metrics": {"speculative_decoding": {**FIGURES, "num_spec_steps": 7}}}))
    with pytest.raises(ConfigError, match=r"log\.jsonl:1: speculative_decoding is damaged"):
        measured_in_log(log)
    log.write_text("{}\n")
    with pytest.raises(ConfigError, match="per-request-spec-decode-metrics"):
        measured_in_log(log)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"marginal_accept_rates": [0.3, 0.6]}, "increase at position 1, from 0.3 to 0.6"),
        ({"mean_accept_length": 2.5}, "mean_accept_length is 2.5, but .* is 1.9"),
        ({"conditional_accept_rates": [0.6, 0.6]}, "differ at position 1"),
        ({"num_speculative_tokens": 3}, "there are 2 and 2 rates"),
        ({"marginal_accept_rates": [0.6, 1.7]}, r"marginal_accept_rates\.1"),
        ({"marginal_accept_rates": None}, "the rates by position are missing"),
        ({"measured": False}, "a placeholder without numbers"),
        ({"schema_version": "2.0"}, "schema_version is '2.0'"),
    ],
)
def test_a_profile_that_contradicts_itself_is_refused(tmp_path, fields, message):
    with pytest.raises(ConfigError, match=message):
        read_profile(changed(tmp_path / "speculation_profile.json", **fields))


def test_a_written_profile_is_read_again(tmp_path):
    profile = profiled(60, 30, method="mine", draft_model="/lustre/secret/org/model")
    write_profile(profile, tmp_path / "speculation_profile.json")
    read = read_profile(tmp_path)
    assert isinstance(read, SpeculationProfile)
    assert read == profile
    assert read.draft_checkpoint == "org/model"
    # Another tool may know more fields, and say who measured as an object.
    other = changed(tmp_path / "other.json", draft_checkpoint={"id": "org/model"}, later="field")
    assert read_profile(other).marginal_accept_rates == (0.6, 0.3)


def test_the_command_writes_a_profile_that_theory_forecasts_with(studied, tmp_path):
    record, results = studied
    path = tmp_path / "profile.json"
    options = ["--drafter", "prompt-copy", "--gamma", "3", "--task", "greedy", "--quiet"]
    done = CliRunner().invoke(app, ["profile", str(record), *options, "--output", str(path)])
    assert done.exit_code == 0, done.output
    assert "Both checks hold" in done.output
    again = CliRunner().invoke(app, ["profile", str(results), "--task", "greedy", "--json"])
    lengths = read_profile(path).accept_lengths()
    assert json.loads(again.output)["mean_accept_length"] == pytest.approx(lengths[3], abs=2e-6)

    speed = ["theory", "speed", "--profile", str(path), "--c", "0.1", "--json"]
    forecast = json.loads(CliRunner().invoke(app, speed).output)["gammas"]
    assert [one["tokens"] for one in forecast] == [1.0, *lengths.values()]
    assert [one["improvement"] for one in forecast] == pytest.approx(
        [1.0, *(tokens / (0.1 * k + 1) for k, tokens in lengths.items())]
    )
    timed = CliRunner().invoke(app, [*speed, "--verify", "1,1,1,4"])
    last = json.loads(timed.output)["gammas"][3]
    assert last["improvement_at_cost"] == pytest.approx(last["tokens"] / 4.3)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["RECORD"], "name the drafter"),
        (["RECORD", "--drafter", "prompt-copy"], "choose one with --task"),
        (["RESULTS"], "choose one with --task"),
        (["RESULTS", "--task", "greedy", "--run", "x"], "has no run 'x'"),
        (["RESULTS", "--drafter", "x"], "is for records"),
        (["log.jsonl"], "does not exist"),
    ],
)
def test_mistakes_say_what_to_do(studied, words, message):
    names = dict(zip(("RECORD", "RESULTS"), map(str, studied), strict=True))
    done = CliRunner().invoke(app, ["profile", *(names.get(word, word) for word in words)])
    assert done.exit_code == 2
    assert message in " ".join(done.output.split())
