"""Files that settings name are identified by their contents."""

import pytest

from specdec_core._version import code_digest, installed_version
from specdec_core.registry.registry import default_registry
from specdec_core.study import load_study
from specdec_core.study.run import provenance
from specdec_core.study.run.provenance import fingerprint_files
from tests.pairwise import some

NESTED = {"drafter": {"name": "chain", "drafters": ["prompt-copy", "random"]}, "gamma": "cost-aware"}


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "small"
    (folder / "inside").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights")
    (tmp_path / "ids.arpa").write_text("table")
    return folder


def named(folder, *drafters):
    return fingerprint_files({"runs": [{"name": "small", "drafter": drafter} for drafter in drafters]}, folder)


def test_files_and_model_folders_are_known_by_their_contents(model):
    drafters = {"name": "ids.arpa", "model": "small"}, {"arpa": "ids.arpa", "text": "builtin:stdlib", "order": 2}
    before = named(model.parent, *drafters)
    assert list(before) == ["small", "ids.arpa", "builtin:stdlib"]
    assert "specdec-core" in before["builtin:stdlib"]
    assert named(model.parent, *drafters) == before
    for other in ("inside/log", "README.md", "measured.json", "repeats.jsonl"):
        (model / other).write_text("more")
    assert named(model.parent, *drafters) == before
    (model / "model.safetensors").write_bytes(b"weighty")
    after = named(model.parent, *drafters)
    assert after["small"] != before["small"]
    assert after["ids.arpa"] == before["ids.arpa"]
    (model / "model.safetensors").rename(model / "other.safetensors")
    assert named(model.parent, *drafters)["small"] != after["small"]


def test_a_model_in_a_subfolder_and_an_adapter_are_known_by_their_contents(model):
    (model.parent / "lora").mkdir()
    for changed in (model / "inside" / "model.safetensors", model.parent / "lora" / "adapter_model.safetensors"):
        changed.write_bytes(b"four")
        before = named(model.parent, {"model": "small", "subfolder": "inside", "adapter": "lora"})
        changed.write_bytes(b"five")
        after = named(model.parent, {"model": "small", "subfolder": "inside", "adapter": "lora"})
        assert {name for name in after if after[name] != before[name]} == {
            str(changed.parent.relative_to(model.parent))
        }


def test_heads_may_be_named_by_their_folder(model):
    (model.parent / "heads").mkdir()
    (model.parent / "heads" / "heads.safetensors").write_bytes(b"four")
    before = named(model.parent, {"model": "heads"})
    (model.parent / "heads" / "heads.safetensors").write_bytes(b"five")
    assert before["heads"] != named(model.parent, {"model": "heads"})["heads"]


def test_absolute_paths_and_equal_contents(model):
    (model.parent / "copy.arpa").write_text("table")
    copied = named(model.parent, {"arpa": str(model.parent / "copy.arpa")}, {"arpa": "copy.arpa"})
    assert len(copied) == 2
    assert len(set(copied.values())) == 1


@pytest.mark.parametrize(
    "text", ["", "inside", "owner/name", "a\0b", "x" * 5000, "~nobody-of-this-name/model", "small/inside"]
)
def test_what_is_no_file_is_left_out(model, text):
    (model.parent / "inside").mkdir()
    assert named(model.parent, {"model": text}) == {}


@pytest.mark.parametrize("offset", some([79, 0, 40], 1))
@pytest.mark.parametrize("whole", [2**20, 2**30], ids=["in pieces", "whole"])
def test_large_files(tmp_path, monkeypatch, offset, whole):
    monkeypatch.setattr(provenance, "_READ_WHOLE", whole)
    path = tmp_path / "large.bin"
    with path.open("wb") as file:
        file.truncate(80 * 2**20)
    before = named(tmp_path, {"model": "large.bin"})
    with path.open("r+b") as file:
        file.seek(offset * 2**20)
        file.write(b"1" * 2**20)
    assert named(tmp_path, {"model": "large.bin"}) != before


def test_the_code_of_a_run_is_that_of_all_plugins_that_it_uses(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("one/__init__.py", "one/inner.py", "two.py", "one/data.txt", "one/__pycache__/x.pyc"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    before = code_digest(["one.inner", "two"])
    for name, counts in (("one/data.txt", False), ("one/__pycache__/x.pyc", False), ("one/inner.py", True)):
        (tmp_path / name).write_text("# edited")
        assert (code_digest(["one.inner", "two"]) != before) == counts, name
    (run,) = load_study({"target": "builtin:target", "prompts": ["a"], "runs": [NESTED]}).runs[1:]
    own = provenance.plugin_code(run, default_registry())["specdec-core"]
    modules = {"specdec_drafters", "specdec_plugins"}
    assert own == f"{installed_version()} {code_digest(modules)}", "of two entry points, and a nested drafter"
