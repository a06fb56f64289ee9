"""`specdec export` writes what other servers load."""

import importlib
import sys

import pytest

from tests.commands import run_command
from tests.drafters.speculator_heads import DATA
from tests.serving.vllm_runner import Runner, vllm_config


def run(*words):
    return run_command("export", *words)


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "exported").mkdir()
    monkeypatch.syspath_prepend(tmp_path / "exported")
    for module in ("exported_chain", "exported_copies"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    return tmp_path


def test_vllm_loads_the_module_that_it_is_told(here):
    (here / "tables.arpa").write_text(
        "\\data\\\nngram 1=3\nngram 2=2\n\n\\1-grams:\n-1\t5\t-0.3\n-1\t6\t-0.3\n-0.5\t7\n\n"
        "\\2-grams:\n-0.1\t5 6\n-0.1\t6 5\n\n\\end\\\n"
    )
    chain = "{name: chain, drafters: [{name: prompt-lookup, min_match: 3}, {name: ngram, arpa: tables.arpa}]}"
    done = run("exported", "--to", "vllm", "--drafter", chain, "--gamma", "3")
    assert done.exit_code == 0, done.output
    assert "PYTHONPATH=exported vllm serve MODEL" in done.output
    assert (
        '"method": "custom_class", "model": "exported_chain.Proposer", "num_speculative_tokens": 3' in done.output
    )
    # As vllm/v1/spec_decode/custom_class_proposer.py does.
    proposer = importlib.import_module("exported_chain").Proposer(vllm_config(50, gamma=3))
    assert callable(proposer.propose)
    runner = Runner(proposer, gamma=3)
    runner.add("copies", [1, 2, 3, 4, 1, 2], [3, 4, 1])
    runner.add("looks up", [9], [5, 6, 5, 6])
    runner.step(["copies", "looks up"])
    assert [one.draft for one in runner.asked] == [(4, 1, 2), (6, 5, 6)]


def test_nothing_is_replaced_unasked(here):
    words = ("exported", "--to", "vllm", "--drafter", "prompt-copy")
    assert run(*words).exit_code == 0
    assert run(*words).exit_code == 0  # it is the same
    (here / "exported/exported_prompt_copy.py").write_text("edited")
    again = run(*words)
    assert again.exit_code == 2
    assert "pass --overwrite to replace it" in again.output
    assert (here / "exported/exported_prompt_copy.py").read_text() == "edited"
    assert run(*words, "--overwrite").exit_code == 0
    assert "VllmProposer" in (here / "exported/exported_prompt_copy.py").read_text()


DECLARES = """
    from specdec_core import PluginSpec, hookimpl
    from toy_plugin import EchoConfig

    class CopiesConfig(EchoConfig):
        token_ids_only = True

    @hookimpl
    def specdec_drafters():
        return [PluginSpec("drafter", "copies", "toy_parts:Echo", CopiesConfig)]
"""


def test_a_plugin_that_declares_it_is_exported(here, toys):
    toys.install("specdec-copies", "copies_plugin", DECLARES)
    assert run("exported", "--to", "vllm", "--drafter", "{name: copies, token: 3}").exit_code == 0
    importlib.invalidate_caches()
    runner = Runner(importlib.import_module("exported_copies").Proposer(vllm_config(50, gamma=2)), gamma=2)
    runner.add("a", [1], [3, 3])
    runner.step(["a"])
    assert runner.asked[0].draft == (3, 3)
    refused = run("exported", "--to", "vllm", "--drafter", "echo")
    assert refused.exit_code == 2
    assert "does not declare token_ids_only = True in its settings" in refused.output
    assert "Drafters that need no more: copies." in refused.output


def test_a_folder_that_hides_an_installed_module_is_refused(here, toys):
    toys.install("specdec-copies", "copies_plugin", DECLARES)
    (here / "exported" / "toy_parts.py").write_text("")
    refused = run("exported", "--to", "vllm", "--drafter", "copies")
    assert refused.exit_code == 2
    assert "'toy_parts'" in refused.output


TRANSFORMER = "{name: transformer, model: 'builtin:drafter'}"


@pytest.mark.parametrize(
    ("drafter", "gamma", "says"),
    [
        ("{name: prompt-copy, min: 1}", "4", "unknown key 'min'"),
        ("{name: heads, model: x}", "4", "works on the target's hidden states"),
        ("quantized", "4", "chain, datastore, ngram, prompt-copy, random, suffix"),
        ("{name: transformer, model: 'builtin:t5-drafter'}", "4", "has an encoder"),
        ("{name: parallel, model: 'builtin:drafter'}", "4", "names no mask token"),
        (TRANSFORMER, "confidence", "--to transformers"),
        (f"{{name: chain, drafters: [prompt-copy, {TRANSFORMER}]}}", "4", "(drafters[1])"),
        (f"{{name: mtp, model: '{DATA}/mtp/qwen3'}}", "1", "in the format of speculators"),
    ],
)
def test_what_cannot_be_exported_says_why(here, drafter, gamma, says):
    done = run("exported", "--to", "vllm", "--drafter", drafter, "--gamma", gamma)
    assert done.exit_code == 2
    assert says in done.output
    assert not list((here / "exported").iterdir())
