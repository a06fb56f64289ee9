"""Studies against `vllm serve`, started as `specdec export` says, and the answers that the default tests read."""

import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from specdec_core.models import load_model, model_folder
from specdec_core.study import compare
from specdec_core.study.config.prompts import read_prompts
from specdec_core.study.config.schema import PromptsConfig
from tests.serving.vllm_engine import TOKENS, expected, export

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

RECORDED = Path(__file__).parent / "vllm_answers.json"
COPIES = {"name": "prompt-copy", "min_match": 2}
DRAFTERS = {"copies": COPIES, "model": {"name": "transformer", "model": "builtin:drafter"}}
ASKED = ("class A:", "import os\nimport re\n")
PROMPTS = {"builtin": "heldout", "limit": 8}
SERVERS = {
    "plain": (None, None),
    "none": ("model", "none"),
    "summary": ("model", "summary"),
    "detailed": ("copies", "detailed"),
}
"""What each server is started with: the drafter, and what it tells of the drafts of a request."""


def start(config, level, folder):
    """Start a server on a free port; return its process and its address."""
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    words = [Path(sys.executable).with_name("vllm"), "serve", model_folder("builtin:target"), "--port", str(port)]
    words += ["--served-model-name", "served", "--dtype", "float32", "--max-model-len", "512", "--enforce-eager"]
    words += ["--block-size", "32", "--no-enable-prefix-caching"]
    if config is not None:
        words += ["--speculative-config", json.dumps(config), "--per-request-spec-decode-metrics", level]
    environment = {name: value for name, value in os.environ.items() if name != "VLLM_ENABLE_V1_MULTIPROCESSING"}
    process = subprocess.Popen(words, env={**environment, "PYTHONPATH": str(folder)})
    return process, f"http://127.0.0.1:{port}"


def wait(process, url):
    while process.poll() is None:
        try:
            return urllib.request.urlopen(f"{url}/health", timeout=9).close()
        except OSError:
            time.sleep(0.5)
    raise AssertionError(f"vllm serve ended with {process.returncode}")


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported")
    configs = {name: export(folder / name, drafter) for name, drafter in DRAFTERS.items()}
    with ExitStack() as stack:
        started = {}
        for name, (drafter, level) in SERVERS.items():
            started[name] = start(configs.get(drafter), level, folder / "copies")
            stack.callback(started[name][0].wait)
            stack.callback(started[name][0].terminate)
        for process, url in started.values():
            wait(process, url)
        yield {name: url for name, (_, url) in started.items()}


def asked(url, prompt):
    """Return an answer as JSON, without what differs from one start of the server to the next."""
    body = {"model": "served", "prompt": prompt, "max_tokens": 10, "temperature": 0, "return_token_ids": True}
    header = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(), header)
    with urllib.request.urlopen(request, timeout=99) as answer:
        read = json.loads(answer.read())
    return {key: value for key, value in read.items() if key not in ("id", "created", "system_fingerprint")}


def counters(url):
    """Return the lines of `/metrics` about drafts, and about the latencies that have an entry for each pass."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=9) as answer:
        lines = answer.read().decode().splitlines()
    return [line for line in lines if re.match(r"vllm:(spec_decode_\w+_total|(time_to|inter)_\w+_count)", line)]


def test_the_recorded_answers_are_those_of_vllm(servers, tmp_path):
    answers = {name: {prompt: asked(url, prompt) for prompt in ASKED} for name, url in servers.items()}
    answers["counters"] = {name: counters(servers[name]) for name in ("none", "detailed")}
    made = tmp_path / RECORDED.name
    made.write_text(
        "{\n" + ",\n".join(f'"{key}": {json.dumps(value)}' for key, value in answers.items()) + "\n}\n"
    )
    assert answers == json.loads(RECORDED.read_text()), f"{RECORDED} is not {made}"


def test_a_study_has_the_figures_of_our_own_loop(servers):
    runs = [{"name": name, "engine": {"url": f"{url}/v1", "model": "served"}} for name, url in servers.items()]
    settings = {
        "target": "builtin:target",
        "prompts": PROMPTS,
        "sampling": {"temperature": 0},
        "generation": {"max_new_tokens": TOKENS, "ignore_eos": True},
        "repeats": 2,
        "baseline": {"engine": runs[0]["engine"]},
        "runs": runs[1:],
    }
    found = compare(settings, progress=False)
    assert not found.errors
    assert not found.failures
    target = load_model("builtin:target", device="cpu")
    prompts = [target.tokenizer(one.text).input_ids for one in read_prompts(PromptsConfig(**PROMPTS), Path())]
    for row in found.rows[1:]:
        texts = expected(target, DRAFTERS[SERVERS[row.name][0]], prompts)
        steps = [step for text in texts for step in text.drafts]
        passes = sum(text.passes for text in texts)
        assert row.quality["exact"] == 1.0
        assert (row.drafted, row.accepted) == tuple(2 * sum(column) for column in zip(*steps, strict=True))
        assert row.block_efficiency == pytest.approx(len(prompts) * TOKENS / passes)
