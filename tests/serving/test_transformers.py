"""The files of `specdec export --to transformers` decode behind `model.generate`."""

import json
import logging
from pathlib import Path
from queue import Queue

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from specdec_core.interface import ConfigError
from specdec_core.models import model_folder
from specdec_core.serving.transformers import ServedGenerate
from tests.commands import run_command
from tests.tiny import tiny_model

PROMPT = "def main():\n"
MODEL = "{name: transformer, model: 'builtin:drafter'}"


def export(folder: Path, *words: str) -> str:
    done = run_command("export", str(folder), "--to", "transformers", *words)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A model loaded from an exported folder, as `transformers serve` does it."""
    folder = tmp_path_factory.mktemp("served")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(folder / "modules"))
        export(folder / "model", "--model", "builtin:target", "--drafter", MODEL, "--gamma", "3")
        return AutoModelForCausalLM.from_pretrained(folder / "model", trust_remote_code=True, dtype="float32")


@pytest.fixture(scope="module")
def plain():
    return AutoModelForCausalLM.from_pretrained(model_folder("builtin:target"), dtype="float32")


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(model_folder("builtin:target"))


class Streamer:
    def __init__(self) -> None:
        self.queue: Queue[torch.Tensor | None] = Queue()

    def put(self, value: torch.Tensor) -> None:
        self.queue.put(value)

    def end(self) -> None:
        self.queue.put(None)


def test_a_folder_generates_what_its_model_does_in_fewer_passes(served, plain, tokenizer, caplog):
    ids = tokenizer(PROMPT, return_tensors="pt")
    with caplog.at_level(logging.INFO, "uvicorn.error"):
        output = served.generate(**ids, generation_config=GenerationConfig(max_new_tokens=40), tokenizer=tokenizer)
    assert output.tolist() == plain.generate(**ids, max_new_tokens=40).tolist()
    (line,) = [record.message for record in caplog.records]
    assert line.startswith("40 tokens in ")
    assert int(line.split()[3]) < 30
    figures = json.loads(line[line.index("{") :])["speculative_decoding"]
    assert sum(figures["per_step_accepted"]) == figures["num_accepted_draft_tokens"] > 0
    assert len(figures["per_step_drafted"]) == sum(figures["acceptance_histogram"]) == figures["num_spec_steps"]


def test_streams_and_stops_as_the_server_asks(served, plain, tokenizer):
    ids = tokenizer(PROMPT, return_tensors="pt")
    whole = plain.generate(**ids, max_new_tokens=40)
    stop = {"stop_strings": [tokenizer.decode(whole[0, 14:16])], "max_new_tokens": 40}
    expected = plain.generate(**ids, **stop, tokenizer=tokenizer)
    assert expected.shape[1] < whole.shape[1]
    config, streamer = GenerationConfig(**stop), Streamer()
    output = served.generate(**ids, generation_config=config, tokenizer=tokenizer, streamer=streamer)
    assert output.tolist() == expected.tolist()
    assert config.stop_strings == stop["stop_strings"]  # what the caller has stays
    assert config.return_dict_in_generate is not True
    first, *rest = iter(streamer.queue.get, None)
    assert first.tolist() == ids["input_ids"].tolist()
    assert torch.cat(rest).tolist() == output[0, first.shape[1] :].tolist()


def test_a_tokenizer_that_comes_with_a_later_call_is_used(plain, tokenizer):
    generate = ServedGenerate("prompt-copy", gamma=2)
    ids = tokenizer(PROMPT, return_tensors="pt")
    whole = generate(plain, **ids, max_new_tokens=40)
    stop = {"stop_strings": [tokenizer.decode(whole[0, 14:16])], "max_new_tokens": 40}
    stopped = generate(plain, **ids, generation_config=GenerationConfig(**stop), tokenizer=tokenizer)
    assert stopped.tolist() == plain.generate(**ids, **stop, tokenizer=tokenizer).tolist()


def test_figures_are_in_a_dictionary_that_is_asked_for(served, tokenizer):
    ids = tokenizer(PROMPT, return_tensors="pt")
    output = served.generate(**ids, max_new_tokens=8, return_dict_in_generate=True)
    assert output.metrics.tokens == 8
    assert output.metrics.accepted > 0
    torch.manual_seed(0)  # a text that does not end by itself
    sampled = served.generate(**ids, max_new_tokens=8, do_sample=True)
    assert sampled.shape == (1, ids["input_ids"].shape[1] + 8)


def test_a_text_ends_where_the_model_does(caplog):
    model = tiny_model("llama", max_position_embeddings=64)
    generate, ids = ServedGenerate("prompt-copy", gamma=4), torch.ones(1, 56, dtype=torch.long)
    config = GenerationConfig(max_new_tokens=1024)
    with caplog.at_level(logging.INFO, "uvicorn.error"):
        output = generate(model, input_ids=ids, generation_config=config)
    assert output.shape == (1, 64)
    assert config.max_new_tokens == 8  # the server compares it with the tokens that came back
    assert "max_new_tokens is 8, not 1024: the model takes 64 tokens in all" in caplog.text
    with pytest.raises(ConfigError, match="64 in all"):
        generate(model, input_ids=ids, max_new_tokens=1024)


def test_paths_start_where_the_export_ran(tmp_path, plain, tokenizer):
    (tmp_path / "counted.py").write_text(PROMPT * 3)
    settings = {"name": "ngram", "text": "counted.py", "order": 3}
    generate = ServedGenerate(settings, gamma=4, folder=str(tmp_path))
    ids = tokenizer(PROMPT, return_tensors="pt")
    output = generate(plain, **ids, max_new_tokens=12, tokenizer=tokenizer)
    assert output.tolist() == plain.generate(**ids, max_new_tokens=12).tolist()


def test_a_folder_keeps_what_is_the_users(tmp_path):
    folder = tmp_path / "served"
    words = ("export", str(folder), "--to", "transformers", "--drafter", "prompt-copy")
    missing = run_command(*words)
    assert missing.exit_code == 2
    assert "--model names the one to serve" in missing.output
    export(folder, "--drafter", "prompt-copy", "--model", "builtin:t5-target")
    (folder / "chat_template.jinja").write_text("mine")
    other = run_command(*words, "--model", "builtin:target")
    assert other.exit_code == 2
    assert "links to another model" in other.output
    export(folder, "--drafter", "prompt-copy", "--model", "builtin:target", "--overwrite")
    assert (folder / "config.json").resolve() == model_folder("builtin:target") / "config.json"
    assert (folder / "chat_template.jinja").read_text() == "mine"
    export(folder, "--drafter", "prompt-copy", "--gamma", "{name: confidence, max_gamma: 6}", "--overwrite")
    assert "'max_gamma': 6" in (folder / "custom_generate/generate.py").read_text()
    (folder / "config.json").unlink()
    (folder / "config.json").write_text("{}")
    kept = run_command(*words, "--model", "builtin:target", "--overwrite")
    assert kept.exit_code == 2
    assert (folder / "config.json").read_text() == "{}"
    assert (folder / "model.safetensors").exists()


def test_a_model_of_the_hub_is_downloaded(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda name, revision: model_folder("builtin:target"))
    export(tmp_path / "served", "--drafter", "prompt-copy", "--model", "owner/name")
    assert (tmp_path / "served" / "model.safetensors").is_file()

    def fail(name: str, revision: str | None) -> None:
        raise OSError("offline")

    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    words = ["export", str(tmp_path / "other"), "--to", "transformers", "--drafter", "prompt-copy"]
    done = run_command(*words, "--model", "owner/name")
    assert done.exit_code == 2
    assert "owner/name: no such folder, and downloading it from the hub failed: offline" in done.output
    assert not (tmp_path / "other").exists()
