"""Runs that a server decodes: its figures in our columns, and a server that is slow, busy, wrong or gone."""

import csv
import json
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from specdec_core.interface.errors import ConfigError, SpecdecError
from specdec_core.offline.record.recording import RecordOptions, record_study
from specdec_core.offline.replay.comparison import replay
from specdec_core.study import compare, load_study
from specdec_core.study.run.engine_run import read_answer
from tests.study.toy_study import Recorder as Quiet

PROMPTS = ["import os", "def main():", "class A:", "return"]
TOKENS = 10
RECORDED = json.loads((Path(__file__).parents[1] / "serving" / "vllm_answers.json").read_text())
"""What vLLM 0.32 answered; `.ci/run vllm` asks it again."""
VLLM = {"metrics": RECORDED["summary"]["class A:"]["metrics"]}
"""Of an answer of 10 tokens: the prompt and five drafts made 6 + 7 tokens, of which 10 are kept."""


class Server:
    """Plays an engine: answers each prompt with a text that follows from it."""

    def __init__(self, owner="someone", more=None, choice=None, counters=None, answers=None):
        self.owner, self.more, self.choice, self.counters = owner, more or {}, choice or {}, counters
        self.answers = answers or {}
        self.asked = []
        self.dies_after = None
        self.busy = 0
        self.pause = threading.Event()
        self.text = "{prompt} and so on"
        self.status = 200
        self.longest = 9
        self.now, self.most = 0, 0
        self._lock = threading.Lock()
        self._http = None
        self.start()

    def start(self, port=0):
        self.dies_after = None
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_GET(self):
                if self.path == "/v1/models":
                    return self._send({"object": "list", "data": [outer._model()]})
                if self.path == "/metrics" and outer.counters is not None:
                    return self._send(outer.counters(outer))
                return self._send({}, 404)

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with outer._lock:
                    outer.now += 1
                    outer.most = max(outer.most, outer.now)
                try:
                    outer._answer(self, body)
                finally:
                    with outer._lock:
                        outer.now -= 1

            def _send(self, content, status=200):
                data = (content if isinstance(content, str) else json.dumps(content)).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.send_header("Content-Type", "application/json")
                self.end_headers()
                with suppress(BrokenPipeError, ConnectionResetError):  # the client no longer waits
                    self.wfile.write(data)

        self._http = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._http.daemon_threads = True
        threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def port(self):
        return self._http.server_address[1]

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}/v1"

    def stop(self):
        self._http.shutdown()
        self._http.server_close()

    def _model(self):
        return {"id": "served", "object": "model", "created": 0, "owned_by": self.owner}

    def _answer(self, handler, body):
        warm = body["max_tokens"] < TOKENS
        with self._lock:
            self.asked.append(body)
            count = sum(one["max_tokens"] == TOKENS for one in self.asked)
            busy, self.busy = self.busy, max(0, self.busy - 1)
        if self.pause.is_set() and not warm:
            threading.Event().wait(0.3)
        if self.dies_after is not None and count > self.dies_after:
            handler.close_connection = True
            handler.connection.close()
            return
        if busy or self.status != 200:
            handler._send({"error": {"message": "not now"}}, 503 if busy else self.status)
            return
        if len(body.get("messages", ())) > self.longest:
            handler._send({"error": {"message": "This model's maximum context length is 9 tokens."}}, 400)
            return
        prompt = body["prompt"] if "prompt" in body else body["messages"][-1]["content"]
        if prompt in self.answers:
            handler._send(self.answers[prompt])
            return
        text = self.text.format(prompt=prompt)
        said = {"text": text} if "prompt" in body else {"message": {"role": "assistant", "content": text}}
        choice = {"index": 0, "finish_reason": "length", "logprobs": None, **said, **self.choice}
        usage = {"prompt_tokens": 3, "completion_tokens": body["max_tokens"], "total_tokens": 13}
        answer = {"id": "1", "object": "text_completion", "created": 0, "model": "served"}
        handler._send({**answer, "choices": [choice], "usage": usage, **self.more})


@pytest.fixture
def serve():
    """Starts servers, and stops them at the end."""
    pytest.importorskip("openai")
    started = []

    def start(**settings):
        started.append(Server(**settings))
        return started[-1]

    yield start
    for server in started:
        server.stop()


def engine(server, **more):
    return {"url": server.url, "model": "served", "max_retries": 0, **more}


def study(baseline, *runs, repeats=1, **more):
    return {
        "target": "builtin:target",
        "prompts": PROMPTS,
        "sampling": {"temperature": 0},
        "generation": {"max_new_tokens": TOKENS},
        "repeats": repeats,
        "baseline": {"engine": engine(baseline)},
        "runs": list(runs),
        **more,
    }


def run_of(server, name="served", **more):
    return {"name": name, "engine": engine(server, **more)}


def compared(serve, server, **more):
    """Returns the row of a run on a server, beside a baseline on a server that tells nothing."""
    found = compare(study(serve(), run_of(server), **more), progress=False)
    assert not found.errors
    return found.rows[1]


@pytest.mark.parametrize(
    ("level", "counted", "drafted", "accepted", "passes"),
    [
        ("summary", None, 28, 15, 9),
        ("none", "none", 28, 15, 9),
        ("detailed", "detailed", 12, 8, 16),
        ("detailed", None, 12, 8, 14),  # a draft that was cut off hides two steps that had none
    ],
)
def test_figures_of_vllm(level, counted, drafted, accepted, passes, serve):
    def counters(server):
        done = any(one["max_tokens"] == TOKENS for one in server.asked)
        return "\n".join(RECORDED["counters"][counted]) if done and counted else ""

    server = serve(owner="vllm", answers=RECORDED[level], counters=counters)
    plain = serve(owner="vllm", answers=RECORDED["plain"])
    found = compare(study(plain, run_of(server), prompts=list(RECORDED["plain"])), progress=False)
    assert not found.errors
    assert not found.failures
    row = found.rows[1]
    assert (row.tokens, row.drafted, row.accepted) == (20, drafted, accepted)
    assert row.block_efficiency == 20 / passes
    assert row.alpha == (15 / 19 if drafted == 28 else 8 / 9)
    assert row.device.startswith("vllm at 127.0.0.1:")
    assert row.drafter.startswith("served by")
    assert row.tokens_per_second > 0
    assert row.speedup is not None


@pytest.mark.parametrize(
    ("level", "prompt", "accepted", "steps"),
    [
        ("summary", "class A:", (0, 0, 1, 2, 4), 6),
        ("detailed", "import os\nimport re\n", (0, 4, 4), 4),
        ("detailed", "class A:", (), 10),
    ],
    ids=["summary", "detailed", "no step had a draft"],
)
def test_steps_of_vllm(level, prompt, accepted, steps):
    found = read_answer(RECORDED[level][prompt], 1.5)
    assert found.request.per_step_accepted == accepted
    assert (found.request.steps, found.request.rejected) == (steps, sum(kept < 4 for kept in accepted))
    assert (len(found.token_ids), found.seconds) == (10, 1.5)


def test_figures_of_sglang(serve):
    meta = {
        "spec_verify_ct": 4,
        "spec_accept_token_num": 6,
        "spec_draft_token_num": 12,
        "spec_accept_histogram": [1, 1, 1, 1],
        "spec_accept_rate": 0.5,
        "spec_accept_length": 2.5,
    }
    server = serve(owner="sglang", choice={"meta_info": meta})
    counts = compared(serve, server)
    assert (counts.block_efficiency, counts.drafted, counts.accepted) == (2.0, 48, 24)
    assert counts.alpha == 6 / 9
    assert all(one["return_meta_info"] for one in server.asked)


def test_figures_of_llama_cpp_are_sums(serve):
    """Those of an answer of `llama-server` 0.5.0-dev (0c1e570)."""
    timings = {"prompt_n": 3, "predicted_n": 16, "predicted_ms": 60.503, "draft_n": 18, "draft_n_accepted": 10}
    choice = {"text": "import sys", "index": 0, "logprobs": None, "finish_reason": "length"}
    usage = {"prompt_tokens": 3, "completion_tokens": 16}
    answer = {"choices": [choice], "object": "text_completion", "usage": usage, "timings": timings}
    row = compared(serve, serve(owner="llamacpp", answers=dict.fromkeys(PROMPTS, answer)))
    assert (row.tokens, row.block_efficiency, row.alpha) == (64, 16 / 6, None)
    assert any("40 of 72 draft tokens" in note for note in row.notes)


@pytest.mark.parametrize(("others", "passes"), [(0, 7), (1, 5)])
def test_counters_before_and_after(others, passes, serve):
    """Passes are counted with those of others, and so not known where there are others."""

    def counters(server):
        done = 100 + sum(one["max_tokens"] == TOKENS for one in server.asked)
        lines = [("spec_decode_num_drafts_total", 4), ("spec_decode_num_draft_tokens_total", 12)]
        lines += [("spec_decode_num_accepted_tokens_total", 6), ("inter_token_latency_seconds_count", 6)]
        lines += [("time_to_first_token_seconds_count", 1 + others)]
        at = ((f'{{engine="0",position="{n}"}}', value) for n, value in enumerate((3, 2, 1)))
        lines += [(f"spec_decode_num_accepted_tokens_per_pos_total{where}", value) for where, value in at]
        return "# HELP vllm:x x\n" + "".join(f"vllm:{name} {value * done}.0\n" for name, value in lines)

    row = compared(serve, serve(owner="vllm", counters=counters))
    assert (row.drafted, row.accepted, row.block_efficiency) == (48, 24, 10 / passes)
    assert row.alpha_by_position == (3 / 4, 2 / 3, 1 / 2)
    assert any("the server has counted" in note for note in row.notes)


def test_a_server_that_tells_nothing(serve):
    row = compared(serve, serve())
    assert (row.tokens, row.block_efficiency, row.alpha) == (40, None, None)
    assert row.device.startswith("server at ")
    assert row.tokens_per_second > 0


OPENAI = {"presence_penalty": 0.5, "frequency_penalty": -0.5, "logit_bias": {5: 1.0}}


def test_settings_reach_the_server(serve):
    server = serve(owner="llamacpp")
    more = {
        "sampling": {"temperature": 0.5, "top_p": 0.9, "top_k": 7, "repetition_penalty": 1.1, **OPENAI},
        "generation": {"max_new_tokens": TOKENS, "ignore_eos": True, "seed": 3},
        "prompts": {"texts": PROMPTS, "chat": True, "system": "Be brief."},
    }
    found = compare(study(server, run_of(server, extra_body={"own": 1}), **more), progress=False)
    assert not found.errors
    last = server.asked[-1]
    assert last["messages"][0] == {"role": "system", "content": "Be brief."}
    assert {key: last.get(key) for key in ("temperature", "top_p", "top_k", "repeat_penalty", "own")} == {
        **{"temperature": 0.5, "top_p": 0.9, "top_k": 7, "repeat_penalty": 1.1},
        **{"own": 1},
    }
    assert last["ignore_eos"] is True
    assert {key: last[key] for key in OPENAI} == {**OPENAI, "logit_bias": {"5": 1.0}}
    assert len({one["seed"] for one in server.asked}) == len(PROMPTS)


def test_a_conversation_follows_the_answers_of_the_server(serve, tmp_path):
    server = serve()
    talks = [[{"role": "user", "content": f"{word} {turn}"} for turn in range(3)] for word in ("one", "two")]
    rows = "".join(json.dumps({"messages": talk}) + "\n" for talk in talks)
    file = tmp_path / "talks.jsonl"
    file.write_text(rows)
    more = {"prompts": {"file": str(file)}, "batch_size": 2}
    found = compare(study(serve(), run_of(server, concurrency=2), **more), progress=False)
    assert not found.errors
    assert found.rows[1].quality["exact"] == 1.0
    longest = max((one["messages"] for one in server.asked if one["messages"][0]["content"] == "two 0"), key=len)
    assert [one["content"] for one in longest] == [
        *("two 0", "two 0 and so on", "two 1", "two 1 and so on", "two 2"),
    ]


def test_a_conversation_that_outgrows_the_context_of_a_server_ends(serve, tmp_path):
    baseline, server = serve(), serve(owner="vllm", more=VLLM)
    baseline.longest = server.longest = 3
    talks = [
        [{"role": "user", "content": f"{word} {turn}"} for turn in range(n)] for word, n in (("a", 4), ("b", 2))
    ]
    file = tmp_path / "talks.jsonl"
    file.write_text("".join(json.dumps({"messages": talk}) + "\n" for talk in talks))
    more = {"prompts": {"file": str(file)}}
    found = compare(study(baseline, run_of(server), **more), tmp_path / "out", progress=False)
    assert not found.failures
    assert (found.rows[1].tokens, found.rows[1].block_efficiency) == (4 * TOKENS, 10 / 6)
    assert any("2 turns were not decoded" in note for note in found.rows[1].notes)
    written = [json.loads(line) for line in (tmp_path / "out" / "outputs.jsonl").read_text().splitlines()]
    reasons = ["length", "length", "context", "context", "length", "length"]
    assert [one["finish_reason"] for one in written] == reasons * 2
    server.longest = 0
    found = compare(study(serve(), run_of(server), **more), progress=False)
    assert "it answered 400: " in found.errors[0]


def test_vllm_has_bad_words_and_a_least_length(serve):
    server = serve(owner="vllm")
    more = {"sampling": {"temperature": 0, "bad_words": ["no"]}, "generation": {"max_new_tokens": TOKENS}}
    more["generation"]["min_new_tokens"] = TOKENS - 1
    assert not compare(study(server, run_of(server), **more), progress=False).errors
    assert {(one["min_tokens"], *one["bad_words"]) for one in server.asked} == {(TOKENS - 1, "no")}
    assert all(one["max_tokens"] >= TOKENS - 1 for one in server.asked)


def test_a_server_is_sent_nothing_that_it_does_not_know(serve):
    server = serve()
    found = compare(
        study(serve(), run_of(server), generation={"max_new_tokens": TOKENS, "ignore_eos": False}), progress=False
    )
    assert set(server.asked[-1]) == {"model", "prompt", "max_tokens", "seed", "temperature"}
    more = {"generation": {"max_new_tokens": TOKENS, "ignore_eos": True}}
    with pytest.raises(SpecdecError, match="OpenAI's API have no 'ignore_eos'"):
        compare(study(server, run_of(server), **more), progress=False)
    assert not found.errors


def test_greedy_texts_are_compared(serve):
    baseline, same, other = serve(), serve(), serve()
    other.text = "{prompt} or not"
    found = compare(study(baseline, run_of(same, "same"), run_of(other, "other")), progress=False)
    assert [row.quality["exact"] for row in found.rows] == [1.0, 1.0, 0.0]
    (line,) = (one for one in found.failures if one.startswith("other"))
    assert "100%" in line
    assert found.exit_code == 1


def test_groups_of_a_server(serve, tmp_path):
    rows = [{"prompt": text, "kind": kind} for text, kind in zip(PROMPTS, "aabb", strict=True)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    server = serve(owner="vllm", more=VLLM)
    runs = run_of(server, "one"), run_of(server, "two", concurrency=2)
    more = {"prompts": {"file": str(tmp_path / "rows.jsonl"), "group": "kind"}}
    found = compare(study(serve(), runs[0], **more), progress=False)
    first = found.rows[1].groups[0]
    assert (first.tokens, first.figures["block_efficiency"].value) == (20, 10 / 6)
    assert first.figures["tokens_per_second"].value > 0
    found = compare(study(serve(), *runs, **more), progress=False)
    assert "tokens_per_second" not in found.rows[1].groups[0].figures


def test_concurrency_is_a_grid(serve):
    server = serve()
    server.pause.set()
    run = {**run_of(server), "grid": {"engine.concurrency": [1, 4]}}
    found = compare(study(serve(), run), progress=False)
    assert [row.name for row in found.rows[1:]] == ["served-concurrency=1", "served-concurrency=4"]
    assert server.most == 4
    assert [row.config["run"]["engine"]["concurrency"] for row in found.rows[1:]] == [1, 4]


def test_a_server_that_goes_away_loses_no_repeat(serve, tmp_path):
    baseline, server = serve(), serve()
    server.dies_after = 2 * len(PROMPTS) + 2  # in the middle of the third repeat
    settings = study(baseline, run_of(server), repeats=3)
    found = compare(settings, tmp_path, progress=False)
    assert found.rows[1].repeats == 2
    (error,) = found.errors
    assert f"{server.url} (repeat " in error
    assert "2 of 4 prompts were answered. Finished repeats are kept." in error
    before = len(baseline.asked), len(server.asked)
    port = server.port
    server.stop()
    server.start(port)
    again = compare(settings, tmp_path, progress=False)
    assert not again.errors
    assert again.rows[1].repeats == 3
    # The baseline is finished; the run answers one short prompt and its last repeat.
    assert len(baseline.asked) == before[0]
    assert len(server.asked) == before[1] + 1 + len(PROMPTS)


def test_a_server_may_move_but_not_become_another(serve, tmp_path):
    baseline, server = serve(), serve(owner="vllm")
    server.dies_after = 2 * len(PROMPTS)
    compare(study(baseline, run_of(server), repeats=3), tmp_path, progress=False)
    moved, other = serve(owner="vllm"), serve(owner="sglang")
    found = compare(study(serve(), run_of(other), repeats=3), tmp_path, progress=False)
    assert f"{other.url}: this server is sglang, and finished repeats of this run are of vllm" in found.errors[0]
    assert len(other.asked) == 1  # the short prompt
    found = compare(study(serve(), run_of(moved, timeout=9.0), repeats=3), tmp_path, progress=False)
    assert not found.errors
    assert found.rows[1].repeats == 3
    assert len(moved.asked) == 1 + len(PROMPTS)
    with pytest.raises(ConfigError, match=r"another study \(runs\[1\]\.engine\.model"):
        compare(study(serve(), run_of(moved, model="larger"), repeats=3), tmp_path, progress=False)


def test_a_forecast_stands_beside_an_engine(serve, tmp_path):
    server = serve(owner="vllm", more=VLLM)
    drafts = {"drafter": "prompt-copy", "gamma": 3}
    runs = [{**drafts, "name": "here"}, {**run_of(server), **drafts}]
    runs += [{**run_of(server, "longer"), **drafts, "gamma": 4}, run_of(server, "unknown")]
    settings = study(serve(), *runs)
    del settings["baseline"]
    settings["generation"]["ignore_eos"] = True
    found = compare(settings, progress=False)
    here, served, longer, unknown = found.rows[1:]
    assert (served.forecast.block_efficiency, served.forecast.source) == (here.block_efficiency, "here")
    assert here.forecast is longer.forecast is unknown.forecast is None
    assert "expected" in str(found)

    record_study(load_study(settings), tmp_path / "record", Quiet(), RecordOptions())
    expected = replay(tmp_path / "record", settings, output=tmp_path / "forecast", progress=False)
    found = compare(settings, tmp_path / "out", forecast=tmp_path / "forecast", progress=False)
    for row, replayed in zip(found.rows[2:4], expected.rows[2:4], strict=True):
        assert row.forecast.block_efficiency == replayed.block_efficiency
        assert (row.forecast.low, row.forecast.source) == (replayed.replayed.low, str(tmp_path / "forecast"))
    assert found.rows[4].forecast is None
    table = list(csv.DictReader((tmp_path / "out" / "summary.csv").read_text().splitlines()))
    assert float(table[2]["forecast_block_efficiency"]) == found.rows[2].forecast.block_efficiency
    with pytest.raises(ConfigError, match="nowhere"):
        compare(settings, forecast=tmp_path / "nowhere", progress=False)


def test_a_server_that_is_not_there_is_named(serve, tmp_path):
    baseline, server = serve(), serve()
    server.stop()
    found = compare(study(baseline, run_of(server)), tmp_path, progress=False)
    assert f"{server.url} (asking for its models): it cannot be reached" in found.errors[0]
    server.start(server.port)
    baseline.stop()
    with pytest.raises(SpecdecError, match=r"asking for its models.*it cannot be reached"):
        compare(study(baseline, run_of(server)), progress=False)
    baseline.start(baseline.port)


def test_a_busy_server_is_asked_again(serve):
    server = serve()
    server.busy = 1
    found = compare(study(serve(), run_of(server, max_retries=1)), progress=False)
    assert not found.errors
    server.busy = 1
    found = compare(study(serve(), run_of(server)), progress=False)
    assert "it answered 503: " in found.errors[0]


def test_an_answer_that_takes_too_long(serve):
    server = serve()
    server.pause.set()
    found = compare(study(serve(), run_of(server, timeout=0.1)), progress=False)
    assert "no answer within 0.1 s; raise `timeout`" in found.errors[0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"runs": [{"engine": {"url": "http://h/v1"}}]}, "missing key 'model'"),
        (
            {"runs": [{"engine": {"url": "http://h", "model": "m"}, "lenience": 0.5}]},
            "lenience: a server is not told",
        ),
        ({"generation": {"beams": 2}}, "a server is sent no beams"),
    ],
)
def test_settings_that_a_server_does_not_take(change, message):
    run = {"engine": {"url": "http://h/v1", "model": "m"}}
    settings = {"target": "builtin:target", "prompts": ["a"], "sampling": {"temperature": 0}, "runs": [run]}
    with pytest.raises(ConfigError, match=message):
        load_study({**settings, **change})
