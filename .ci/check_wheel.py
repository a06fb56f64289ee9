"""Check the packages and files of a wheel: python .ci/check_wheel.py WHEEL."""

import sys
import zipfile

NAMES = {"specdec_core", "specdec_drafters", "specdec_models", "specdec_plugins"}
NEEDED = {
    *(f"{name}/py.typed" for name in NAMES),
    *(f"specdec_models/{role}/model.safetensors" for role in ("target", "drafter")),
    *(f"specdec_models/{role}/tokenizer.json" for role in ("target", "drafter")),
    "specdec_models/heldout.jsonl",
    "specdec_models/t5-ngram/translation-bigram.arpa",
}

files = set(zipfile.ZipFile(sys.argv[1]).namelist())
tops = {file.partition("/")[0] for file in files}
infos = {top for top in tops if top.endswith(".dist-info")}
assert tops - infos == NAMES, f"the wheel installs {sorted(tops - infos)}; it should install {sorted(NAMES)}"
assert len(infos) == 1, f"the wheel has {sorted(infos)}"
assert files >= NEEDED, f"the wheel lacks {sorted(NEEDED - files)}"
assert any(file.endswith("/licenses/LICENSE") for file in files), "the wheel lacks LICENSE"
print(f"{len(files)} files under {', '.join(sorted(NAMES))}")  # noqa: T201
