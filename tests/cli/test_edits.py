"""What is stored of a drafter that its author edits: new, compare, edit, stop, resume, fail, export."""

import importlib
import sys

import pytest

from specdec_core.registry.registry import default_registry
from specdec_core.study import compare
from tests.commands import run_command
from tests.serving.vllm_runner import Runner, vllm_config
from tests.study.toy_study import Recorder

STUDY = """\
target: {folder}
prompts: [a b a b a b, d e]
generation: {{max_new_tokens: 8, ignore_eos: true}}
sampling: {{temperature: 0}}
repeats: 2
runs:
  - {{drafter: echo, gamma: 2}}
  - {{drafter: last-word, gamma: 2}}
"""


def test_the_first_days_of_a_drafter(toys, model_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "study.yaml").write_text(STUDY.format(folder=model_folder))
    assert run_command("new", "last-word").exit_code == 0
    source = (tmp_path / "specdec-last-word" / "specdec_last_word.py").read_text()
    toys.install("specdec-last-word", "specdec_last_word", source)

    def timed(stop_after=None):
        compare("study.yaml", "out", progress=(recorder := Recorder(stop_after)))
        return sorted(recorder.timed)

    def edited(*change):
        toys.module("specdec_last_word", source.replace(*change))
        default_registry.cache_clear()

    own = [("last-word-2", 1), ("last-word-2", 2)]
    others = [(name, number) for name in ("baseline", "echo-2") for number in (1, 2)]
    assert timed() == others + own
    assert timed() == []
    setting = "    min_count: Annotated[int, Field(ge=1)] = 2"
    edited(setting, f"    most: int = 5\n{setting}")
    with (
        pytest.warns(RuntimeWarning, match=r"run again: 'last-word-2', as .*specdec-last-word"),
        pytest.raises(KeyboardInterrupt, match="5 of 6 repeats are stored"),
    ):
        timed(stop_after=1)
    toys.install("specdec-other", "other", "from specdec_core import hookimpl")  # no run uses it
    with pytest.warns(RuntimeWarning, match="run again: 'last-word-2'"):
        rest = timed()
    assert len(rest) == 1
    assert set(rest) < set(own)
    assert timed() == []

    edited("return chain[1:]", "raise OSError('no answer')")
    for why in ("code", "a plugin failed"):
        with pytest.warns(RuntimeWarning, match=f"run again: 'last-word-2', as .*{why}"):
            assert timed() == own
    edited("", "")

    (tmp_path / "exported").mkdir()
    monkeypatch.syspath_prepend(tmp_path / "exported")
    done = run_command("export", "exported", "--to", "vllm", "--drafter", "last-word")
    assert done.exit_code == 0, done.output
    sys.modules.pop("specdec_last_word")  # as where vLLM starts with the folder on its path
    default_registry.cache_clear()
    importlib.invalidate_caches()
    runner = Runner(importlib.import_module("exported_last_word").Proposer(vllm_config(50, gamma=2)), gamma=2)
    runner.add("a", [1, 2, 1, 2, 1], [2, 1])
    runner.step(["a"])
    assert runner.asked[0].draft == (1, 2)
