"""Listing, validating, help and everything that only reads settings or results import no torch."""

import subprocess
import sys

MODULES = [
    "specdec_core",
    "specdec_core.interface.files",
    "specdec_core.registry",
    "specdec_core.models.load.model_requirements",
    "specdec_drafters.plugin",
    "specdec_plugins.plugin",
    "specdec_models.plugin",
    "specdec_core.cli.main",
    "specdec_core.study",
    "specdec_core.costs",
    "specdec_core.theory",
    "specdec_core.offline.record.store",
]
"""They may import numpy, but no library for models, figures, scores or tests."""

CODE = """
import importlib, sys
from importlib.metadata import EntryPoint
from specdec_core.registry import registry
from specdec_core.registry.registry import default_registry

# Found without being installed, so that the test holds in a bare checkout.
names = ("specdec_drafters", "specdec_plugins", "specdec_models")
ours = [EntryPoint(name, f"{{name}}.plugin", "specdec") for name in names]
registry.entry_points = lambda group: ours
from tests.commands import run_command

def check(what, *libraries):
    found = sorted(set(libraries) & set(sys.modules))
    assert not found, f"{{what}} imports {{', '.join(found)}}"

trainers = default_registry().names("trainer")
commands = {{
    0: ["--help", "plugins --json", "schema", "validate {study}", "compare --help", "generate --help",
        "measure --help", "tune --help", "export --help", "record --help", "theory --help",
        "theory speed --alpha 0.5 --c 0.1",
        "train --help", "new last-word --output {new}",
        *(f"train {{name}} --help" for name in trainers)],
    2: ["measure --gamma 0", "record", "record --rows 0", "validate {missing}", "compare {missing}", "generate",
        "export {missing} --to vllm --drafter heads",
        "train ngram --output x --order 0"],
}}
for code, lines in commands.items():
    for line in lines:
        result = run_command(*line.split())
        assert result.exit_code == code, (line, result.output)
        check(f"specdec {{line}}", "torch", "transformers", "numpy")
for name in {modules}:
    importlib.import_module(name)
    check(name, "torch", "transformers", "matplotlib", "sacrebleu", "rouge_score", "scipy", "pytest")
texts = list(sys.modules["specdec_core.offline.record.store"].read_record("builtin:code").parts[0])
check(f"reading {{len(texts)}} recorded texts", "torch", "transformers")
"""


def test_what_runs_no_model_imports_no_torch(tmp_path):
    study = tmp_path / "study.yaml"
    text = "target: builtin:target\nprompts: [a]\nconstraint: {regex: a+}\nruns: [{drafter: random, gamma: 2}]\n"
    study.write_text(text)
    code = CODE.format(study=study, missing=tmp_path / "missing.yaml", new=tmp_path / "new", modules=MODULES)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
