"""The plugins of the tutorials do what their pages say."""

import importlib
import json
import re
import textwrap
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.metadata import EntryPoint, entry_points
from itertools import pairwise
from pathlib import Path
from time import monotonic
from types import SimpleNamespace

import pytest
import torch

from specdec_core import Decoder, GenerationSettings, SamplingSettings, TargetInfo
from specdec_core.cli.check import _SLOW
from specdec_core.decoding.drawing import DraftRecorder
from specdec_core.decoding.observers import TraceObserver
from specdec_core.decoding.rows import TokenView
from specdec_core.interface import TokenTree
from specdec_core.registry.registry import Registry
from specdec_core.sampling.generators import RowGenerators
from specdec_core.sampling.logits import LogitsToProbs
from specdec_core.study import load_study, run_model
from specdec_core.testing import DrafterKit, RuleKit
from specdec_core.verification import dense
from tests.commands import run_command
from tests.conformance import failures, kit_of
from tests.docs.pages import ROOT
from tests.drafters.support import info_for, request_for
from tests.lossless import PROMPT, VOCAB, doubled_p_value, enumerate_continuations, small_target
from tests.packages import install, run
from tests.tiny import tiny_model
from tests.toys import Gamma, RememberingDrafter, TableDrafter

EXAMPLES = ROOT / "docs" / "examples"
OF_THE_TUTORIAL = (
    *("pairs", "second-thought", "cap", "mixture", "frequent", "own-model"),
    *("fading", "everywhere", "branching"),
)
TABLE = {"2": {"3": 4, "5": 1}, "3": {"5": 2}, "0": {"0": 1, "1": 3, "2": 9}}
LENGTH = GenerationSettings(max_new_tokens=12, ignore_eos=True)


@pytest.fixture
def registry(installed):
    """The registry with the example packages, and the drafters of `parts.py`."""
    assert installed
    return Registry([*entry_points(group="specdec"), EntryPoint("parts", "parts", "specdec")])


@pytest.fixture
def make(registry, tmp_path):
    """Makes a plugin from what a study would say of it."""
    (tmp_path / "table.json").write_text(json.dumps(TABLE), encoding="utf-8")
    tiny_model("llama", VOCAB, seed=5).save_pretrained(tmp_path / "model")
    pairs = {"name": "pairs", "table": str(tmp_path / "table.json")}
    long = {
        "pairs": pairs,
        "cap": {"name": "cap", "drafter": pairs, "max_tokens": 1},
        "mixture": {"name": "mixture", "drafters": [pairs, {"name": "suffix"}]},
        "own-model": {"name": "own-model", "model": str(tmp_path / "model")},
    }

    def make(kind, written, *target):
        written = long.get(written, written) if isinstance(written, str) else written
        run = run_model(registry).model_validate({"drafter": "random", "gamma": 1, **{kind: written}})
        config = getattr(run, kind)
        return registry.create(kind, config.name, config, *target)

    return make


def test_the_packages_are_listed(installed):
    records = [record for record in installed.records() if record.distribution != "specdec-core"]
    assert all(record.state == "ready" and record.summary for record in records)
    assert {(record.kind, record.name) for record in records} == {
        ("drafter", "recent"),
        ("gamma", "follow"),
        ("lenience", "late"),
        ("rule", "floor"),
        ("drafter", "pairs"),
        ("trainer", "pairs"),
        ("models", "samples"),
    }


def test_the_studies_of_the_packages_name_them(registry):
    names = {
        name: [run.name for run in load_study(EXAMPLES / f"specdec-{name}" / "study.yaml", registry=registry).runs]
        for name in ("recent", "follow", "floor", "samples")
    }
    assert names["floor"][1:] == ["token", "floor", "lenient"]
    assert names["recent"][1:] == ["recent-1", "recent-3", "prompt-copy-3"]
    assert len(names["samples"][1:]) == 3
    assert names["follow"][1:] == ["always-4", "follow", "late"]


@pytest.mark.parametrize("name", OF_THE_TUTORIAL)
def test_greedy_tokens_with_a_drafter_of_the_tutorial_are_the_targets(make, name):
    target, prompts = small_target("cpu"), [[2, 3, 5, 2], [1], [5, 2, 3, 2]]
    drafter = make("drafter", name, target.info())
    sampling = SamplingSettings(temperature=0)
    baseline = Decoder(target, sampling=sampling).generate(prompts, LENGTH)
    drafted = Decoder(target, drafter, gamma=Gamma(2), sampling=sampling, strict=True).generate(prompts, LENGTH)
    assert [one.tokens for one in drafted.sequences] == [one.tokens for one in baseline.sequences]
    assert drafted.metrics.drafted > 0


@pytest.mark.parametrize("name", ["everywhere", "branching"])
def test_drafters_of_the_tutorial_draft_trees(make, name):
    target, tree = small_target("cpu"), TokenTree.from_widths((2, 2))
    decoder = Decoder(target, make("drafter", name, target.info()), gamma=Gamma(6, tree=tree), strict=True)
    trace = TraceObserver()
    decoder.generate([[2, 3, 5, 2]], LENGTH, [trace])
    drafted = [report.outcome.parents[0] for report in trace.reports if report.outcome.parents]
    assert any(parents.count(-1) == 2 for parents in drafted)


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_THE_TUTORIAL)
def test_a_drafter_of_the_tutorial_conforms(registry, make, name):
    config = registry.drafter_config(name)
    assert not failures(kit_of(DrafterKit, lambda target: make("drafter", name, target), config=config))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_packages_pass_their_own_tests(tmp_path):
    folders = [EXAMPLES / f"specdec-{name}" for name in ("recent", "follow", "floor")]
    install(tmp_path / "site", folders)
    words = ["-m", "pytest", "-p", "no:cacheprovider", "-rA", "--timeout=0", "-k", f"not ({_SLOW})"]
    done = run(tmp_path / "site", *words, *folders, folder=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    for folder in folders:
        name = "distribution" if folder.name == "specdec-floor" else "lossless"
        assert re.search(rf"PASSED .*{folder.name}.*::test_{name}$", done.stdout, re.MULTILINE)


def test_q_of_the_table_is_its_counts(make):
    drafter = make("drafter", "pairs", small_target("cpu").info())
    proposal = drafter.open(info_for(2, VOCAB)).propose(request_for([[2], [4]], [1, 1]))
    # After 2, token 3 was counted four times and 5 once. Nothing was counted after 4, so that all counts are used.
    q = dense(proposal.q, proposal.tokens, VOCAB)[:, 0]
    counted = torch.zeros(2, VOCAB)
    counted[0, 3], counted[0, 5] = 4, 1
    for counts in TABLE.values():
        for token, count in counts.items():
            counted[1, int(token)] += count
    torch.testing.assert_close(q, counted / counted.sum(dim=1, keepdim=True))


def test_a_capped_drafter_drafts_no_more_than_its_cap(make):
    target = small_target("cpu")
    decoder = Decoder(target, make("drafter", "cap", target.info()), gamma=Gamma(3), strict=True)
    metrics = decoder.generate([[2, 3, 5]], LENGTH).metrics
    assert 0 < metrics.drafted <= metrics.target_calls


class Answers(BaseHTTPRequestHandler):
    """Answers with the last tokens of the text."""

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(asked["tokens"][-3:]).encode())

    def log_message(self, *_):
        pass


def test_a_service_that_is_away_costs_no_token_and_little_time(make):
    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        drafter = make(
            "drafter", {"name": "served", "url": f"http://127.0.0.1:{server.server_port}"}, TargetInfo(9)
        )
        threading.Thread(target=server.handle_request, daemon=True).start()
        assert drafter.draft([1, 2, 3, 4], 2) == [2, 3]
    begun = monotonic()
    assert [drafter.draft([1, 2, 3, 4], 2) for _ in range(99)] == [[]] * 99
    assert monotonic() - begun < 1


MIXED = SamplingSettings(temperature=0.7, top_p=0.6)


@pytest.mark.parametrize(
    "said", ["own-model", {"name": "mixture", "drafters": ["random", "prompt-copy"]}], ids=["model", "mixture"]
)
def test_drafters_that_draw_their_tokens_give_the_targets_distribution(make, said):
    target, prompt = small_target("cpu"), [2, 3, 5, 2]
    drafter = make("drafter", said, target.info())
    decoder = Decoder(target, drafter, gamma=Gamma(3, 0, 2, stop_below=0.1), sampling=MIXED, strict=True)
    assert doubled_p_value(decoder, enumerate_continuations(target, MIXED, prompt), 2500, 500, prompt) > 1e-4


def test_the_q_of_a_mixture_is_the_mean_of_those_with_a_draft(make):
    drafter = make("drafter", "mixture", small_target("cpu").info())
    request = DraftRecorder(LogitsToProbs(SamplingSettings()), RowGenerators([1, 2]), 2, VOCAB, 2, "cpu")
    request.start([TokenView([2, 5, 2]), TokenView([2, 4, 3])], (2, 2))
    proposal = drafter.open(info_for(2, VOCAB)).propose(request)
    q = dense(proposal.q, proposal.tokens, VOCAB)[:, 0]
    counted = torch.zeros(2, VOCAB)
    counted[0, 3], counted[0, 5], counted[1, 5] = 0.4, 0.1 + 0.5, 1
    torch.testing.assert_close(q, counted)


def test_the_drafters_of_a_mixture_learn_the_text_and_not_the_drafts(make):
    target, inner = small_target("cpu"), RememberingDrafter(VOCAB)
    inner.learn([[2, 3, 5, 2, 6], [6, 2, 1]])
    info = replace(target.info(), build=lambda _kind, config, _target: config)
    mixture = importlib.import_module("parts").Mixture(
        SimpleNamespace(drafters=[inner, TableDrafter(VOCAB)]), info
    )
    result = Decoder(target, mixture, gamma=Gamma(3), strict=True).generate([PROMPT, PROMPT[:2]], LENGTH)
    other = RememberingDrafter(VOCAB)
    other.learn([[2, 3, 5, 2, 6], [6, 2, 1], *([*one.prompt, *one.tokens] for one in result)])
    assert inner.known == other.known
    assert result.metrics.accepted < result.metrics.drafted


def test_the_gamma_controller_asks_for_one_token_more_than_were_accepted(make):
    trace = TraceObserver()
    decoder = Decoder(small_target("cpu"), TableDrafter(VOCAB), gamma=make("gamma", "follow"), strict=True)
    decoder.generate([PROMPT, PROMPT[:2]], LENGTH, observers=[trace])
    steps = trace.reports[:-4]  # near the end there is less room
    assert {1, 2} <= {asked for report in steps for asked in report.asked}
    for before, report in pairwise(steps):
        assert report.asked == tuple(accepted + 1 for accepted in before.outcome.accepted)


def test_the_lenience_controller_is_strict_at_first(make):
    late = make("lenience", {"name": "late", "strict_for": 5, "lenience": 0.2})
    assert not late.config.lossless
    spent = {True: 0.0, False: 0.0}
    for seed in range(4):
        trace = TraceObserver()
        decoder = Decoder(
            small_target("cpu"), TableDrafter(VOCAB), gamma=make("gamma", 3), lenience=late, strict=True
        )
        decoder.generate([PROMPT], LENGTH.model_copy(update={"seed": seed}), observers=[trace])
        length = 0
        for report in trace.reports:
            spent[length + report.verified[0] <= 5] += report.deviation[0]
            length += len(report.outcome.committed[0])
    assert spent[True] == 0
    assert spent[False] > 0.4


@pytest.mark.slow
def test_the_rule_deviates_as_it_reports(make):
    floor = make("rule", {"name": "floor", "share": 0.5})
    assert not failures(kit_of(RuleKit, lambda: floor), "distribution")
    decoder = Decoder(small_target("cpu"), TableDrafter(VOCAB), gamma=make("gamma", 3), rule=floor, strict=True)
    assert decoder.generate([PROMPT], LENGTH).metrics.deviation > 0


def test_the_trainer_writes_what_its_drafter_reads(registry, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    Path("text.py").write_text("import os\nimport sys\nimport re\n", encoding="utf-8")
    command = ["train", "pairs", "--text", "text.py", "--output", "pairs.json"]
    result = run_command(*command)
    assert result.exit_code == 0, result.output
    assert json.loads(Path("pairs.json").read_text(encoding="utf-8"))
    shown = textwrap.dedent(result.stdout.split(":\n\n")[-1])
    Path("study.yaml").write_text(f"target: builtin:target\nprompts: [import]\n{shown}", encoding="utf-8")
    assert [run.name for run in load_study(Path("study.yaml"), registry=registry).runs][1:] == ["pairs-4"]
    again = run_command(*command)
    assert (again.exit_code, "--overwrite replaces it" in again.stderr) == (2, True)


def test_hidden_states_are_declared_as_they_are_needed(registry):
    for name in ("second-thought", "fading"):
        spec = registry.spec("drafter", name)
        module, _, factory = spec.factory.partition(":")
        drafter = getattr(importlib.import_module(module), factory)
        assert bool(drafter.hidden_layers) == spec.config.needs_hidden_states
