"""The page on serving: `transformers serve` answers as OpenAI's server does, and decodes with the drafter."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from specdec_core.models import model_folder
from specdec_core.study import compare
from tests.commands import run_command

for package in ("accelerate", "fastapi", "openai", "uvicorn"):
    pytest.importorskip(package, reason=f"{package} of transformers[serving] is not installed")

ROOT = Path(__file__).parents[2]
PROMPT = "def main():\n"
CHAIN = """
name: chain
drafters:
  - {name: prompt-copy, min_match: 6}
  - {name: transformer, model: 'builtin:drafter'}
"""
GAMMA = "{name: confidence, max_gamma: 6, threshold: 0.3}"


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A folder that `transformers serve` serves with a drafter."""
    folder = tmp_path_factory.mktemp("server") / "model"
    words = ["export", str(folder), "--to", "transformers", "--model", "builtin:target", "--drafter", CHAIN]
    done = run_command(*words, "--gamma", GAMMA)
    assert done.exit_code == 0, done.output
    shutil.copy(ROOT / "examples/prompts/dialogue.jinja", folder / "chat_template.jinja")
    return folder


@pytest.fixture(scope="module")
def server(exported):
    import openai

    with socket.create_server(("localhost", 0)) as free:
        port = free.getsockname()[1]
    log, cache = exported.parent / "log.txt", exported.parent / "cache"
    command = [
        sys.executable,
        "-m",
        "transformers.cli.transformers",
        "serve",
        str(exported),
        "--trust-remote-code",
    ]
    settings = {"HF_HOME": str(cache), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    (cache / "hub").mkdir(parents=True)  # it lists the models there
    with log.open("w") as output:
        process = subprocess.Popen(
            [*command, "--device", "cpu", "--dtype", "float32", "--port", str(port)],
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **settings},
        )
    try:
        _wait(f"http://localhost:{port}/health", process, log)
        with openai.OpenAI(base_url=f"http://localhost:{port}/v1", api_key="none", max_retries=0) as client:
            yield SimpleNamespace(client=client, name=str(exported), log=log)
    finally:
        process.terminate()
        process.wait(timeout=30)


def _wait(address: str, process: subprocess.Popen, log: Path) -> None:
    for _ in range(600):
        assert process.poll() is None, log.read_text()
        try:
            with urllib.request.urlopen(address) as answer:
                assert json.load(answer) == {"status": "ok"}
                return
        except OSError:
            time.sleep(0.2)
    raise AssertionError(log.read_text())


@pytest.fixture(scope="module")
def plain():
    """Returns what the model says without a drafter."""
    model = AutoModelForCausalLM.from_pretrained(model_folder("builtin:target"), dtype="float32")
    tokenizer = AutoTokenizer.from_pretrained(model_folder("builtin:target"))

    def generate(prompt: str, count: int, stop: str | None = None) -> str:
        ids = tokenizer(prompt, return_tensors="pt")
        output = model.generate(**ids, max_new_tokens=count, stop_strings=stop, tokenizer=tokenizer)
        return tokenizer.decode(output[0, ids["input_ids"].shape[1] :], skip_special_tokens=True)

    return generate


def test_a_completion_is_the_models_in_fewer_passes(server, plain):
    answer = server.client.completions.create(model=server.name, prompt=PROMPT, max_tokens=40, temperature=0)
    assert answer.choices[0].text == plain(PROMPT, 40)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 40
    figures = re.findall(r"INFO: +40 tokens in (\d+) target forward passes .*rate", server.log.read_text())
    assert figures
    assert int(figures[-1]) < 30


def test_the_client_of_the_page_prints_the_text(server, plain, capsys):
    text = (ROOT / "docs/examples/serving_client.py").read_text()
    text = text.replace("http://127.0.0.1:8000/v1", str(server.client.base_url)).replace("served", server.name)
    exec(compile(text, "serving_client.py", "exec"), {})
    assert capsys.readouterr().out == plain("import os\n", 32)


def test_a_study_compares_with_a_server(exported, server):
    served = {"url": str(server.client.base_url), "model": str(exported)}
    study = {
        "target": "builtin:target",
        "prompts": {"builtin": "heldout", "limit": 2},
        "sampling": {"temperature": 0},
        "generation": {"max_new_tokens": 24},
        "repeats": 1,
        "runs": [{"name": "served", "engine": served}],
    }
    found = compare(study, progress=False)
    assert not found.failures
    assert [row.quality["exact"] for row in found.rows] == [1.0, 1.0]
