"""What works with each family of models: the table of docs/models.md, on tiny models.

python -m tests.models.family_table                   print the results of all families
python -m tests.models.family_table qwen3_5 jamba     of some
python -m tests.models.family_table --write           write docs/data/hybrids.json
"""

import json
import sys
import tempfile
import warnings
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import transformers

from specdec_core import Decoder, generate_with
from specdec_core.interface import SpecdecError
from specdec_core.models import wrap_model
from specdec_core.models.prefix_cache import PrefixCache
from tests import lossless
from tests.models.hybrids import (
    ATTENTION,
    FAMILIES,
    LENGTH,
    PROMPTS,
    REFUSED,
    VOCAB,
    generated,
    hybrid,
    scripted,
    texts,
)
from tests.tiny import tiny_model
from tests.toys import TableDrafter

DATA = Path(__file__).parents[2] / "docs/data/hybrids.json"
NAMES = {
    "qwen3_5": "Qwen3.5, 3.6, 3.8",
    "qwen3_next": "Qwen3-Next",
    "qwen4_exp": "Qwen4 Exp",
    "kimi_linear": "Kimi Linear",
    "glm5_next": "GLM 5.3 Flash",
    "nemotron_h": "Nemotron-H",
    "granitemoehybrid": "Granite 4 H",
    "falcon_h1": "Falcon-H1",
    "lfm2": "LFM2",
    "lfm3": "LFM3",
    "kimi_k25": "Kimi K2.5",
    "step3p7": "Step 3.7",
    "muse_spark": "Muse Spark",
    "mimo_v2_flash": "MiMo V2 Flash",
    "gemma4_text": "Gemma 4",
    "gpt_oss": "gpt-oss",
    "llama": "Llama",
    "llama4": "Llama 4",
    "deepseek_v3": "DeepSeek V3",
    "deepseek_v32": "DeepSeek V3.2",
    "deepseek_v4": "DeepSeek V4",
    "minimax": "MiniMax",
    "minimax_m2": "MiniMax M2",
    "minimax_m3": "MiniMax M3",
    "lfm2_vl": "LFM2-VL",
    "lfm3_vl": "LFM3-VL",
    "jamba": "Jamba",
    "bamba": "Bamba",
    "zamba2": "Zamba2",
    "olmo_hybrid": "OLMo hybrid",
}
"""Names of models of some families, which come first in the table."""
ORDER = (*NAMES, *(name for name in (FAMILIES | ATTENTION | REFUSED) if name not in NAMES))


class Case:
    """A model of a family, and its greedy texts."""

    def __init__(self, family: str) -> None:
        self.family = family
        self.model = hybrid(family)

    @cached_property
    def loaded(self) -> Any:
        """The model, as it is decoded."""
        return wrap_model(self.model)

    @cached_property
    def drafter(self) -> Any:
        """A drafter that is wrong at some positions."""
        return scripted(self.model)

    def expected(self, prompts: Any) -> list[list[int]]:
        """Return the texts of `generate`."""
        return [generated(self.model, prompt) for prompt in prompts]


def target(case: Case) -> None:
    """Compare a greedy text."""
    found, metrics = texts(case.loaded, case.drafter, 4, PROMPTS[:1])
    assert found == case.expected(PROMPTS[:1])
    assert metrics.target_calls < LENGTH


def draft_model(case: Case) -> None:
    """Let it draft for another family."""
    other = tiny_model("llama", VOCAB)
    with tempfile.TemporaryDirectory() as folder:
        case.model.save_pretrained(folder)
        found, metrics = texts(wrap_model(other), {"name": "transformer", "model": folder}, 3, PROMPTS[:1])
    assert found == [generated(other, PROMPTS[0])]
    assert metrics.drafted > LENGTH


def batch(case: Case) -> None:
    """Compare the greedy texts of rows of different lengths."""
    assert texts(case.loaded, case.drafter, 4)[0] == case.expected(PROMPTS)


def sampling(case: Case) -> None:
    """Test the sampled distribution against the enumerated one, and each decision against exact distributions."""
    model = hybrid(case.family, lossless.VOCAB, sharpness=2.0)
    loaded = wrap_model(model)
    settings = lossless.SETTINGS["temperature-0.7"]
    drafter = TableDrafter(lossless.VOCAB)
    decoder = Decoder(loaded, drafter, gamma=2, sampling=settings, strict=True)
    exact = lossless.ExactDecisions(loaded, settings, drafter.table)
    decoder.generate([list(lossless.PROMPT), [4]], max_new_tokens=30, ignore_eos=True, observers=[exact])
    assert exact.drafted > 30
    assert exact.error < 1e-5
    expected = lossless.enumerate_continuations(loaded, settings)
    assert lossless.doubled_p_value(decoder, expected, 1600) > 1e-4


def chat(case: Case) -> None:
    """Continue a text with the cache of the answer before."""
    cache, decoder = PrefixCache(), Decoder(case.loaded, "prompt-copy", gamma=3, temperature=0, strict=True)
    prompt = PROMPTS[0]
    for more in ([], [4, 6]):
        prompt = [*prompt, *more]
        answer = list(decoder.generate(prompt, max_new_tokens=10, ignore_eos=True, cache=cache).tokens)
        assert answer == generated(case.model, prompt, count=10)
        prompt = [*prompt, *answer]
    assert cache.reused[0] > len(PROMPTS[0])


def beams(case: Case) -> None:
    """Compare the text of two beams, with that of ours without drafts where transformers has none."""
    ids, ours = torch.tensor(PROMPTS[:1]), {"max_new_tokens": 10, "ignore_eos": True, "beams": 2}
    settings = {"num_beams": 2, "do_sample": False, "eos_token_id": None, "max_new_tokens": 10}
    decoder = Decoder(case.loaded, case.drafter, gamma=3, temperature=0, strict=True)
    found = list(decoder.generate(PROMPTS[0], **ours).tokens)
    try:
        plain = case.model.generate(ids, attention_mask=torch.ones_like(ids), **settings)[
            0, ids.shape[1] :
        ].tolist()
    except ValueError:
        plain = list(Decoder(case.loaded, temperature=0).generate(PROMPTS[0], **ours).tokens)
    assert found == plain


def behind_generate(case: Case) -> None:
    """Compare the rows of a batch with plain `generate` of each alone: those of RWKV depend on each other."""
    rows = [PROMPTS[0], PROMPTS[0][::-1]]
    ids = torch.tensor(rows)
    settings = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 12, "do_sample": False}
    drafted = generate_with(drafter="prompt-copy", gamma=3, strict=True)
    found = case.model.generate(ids, custom_generate=drafted, eos_token_id=None, **settings)[:, ids.shape[1] :]
    assert found.tolist() == [generated(case.model, row, count=12) for row in rows]


CELLS: dict[str, Callable[[Case], None]] = {
    "target": target,
    "draft model": draft_model,
    "batch": batch,
    "sampling": sampling,
    "chat": chat,
    "beams": beams,
    "generate_with": behind_generate,
}


def outcome(case: Case, cell: str) -> str:
    """Return `works`, or `refused`, `differs` or `failed` with the reason."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            CELLS[cell](case)
    except SpecdecError as error:
        return f"refused: {error}"
    except AssertionError as error:
        return f"differs: {error}"
    except Exception as error:  # of transformers, or ours
        return f"failed: {type(error).__name__}: {error}"
    return "works"


def main(families: list[str], write: bool) -> None:
    """Run; see the top of the file."""
    transformers.logging.set_verbosity_error()
    rows = {row["family"]: row for row in json.loads(DATA.read_text(encoding="utf-8"))["rows"]} if families else {}
    for family in families or ORDER:
        case = Case(family)
        results = {cell: outcome(case, cell) for cell in CELLS}
        rows[family] = {"family": family, "models": NAMES.get(family, ""), **results}
        print(rows[family], flush=True)  # noqa: T201
    if write:
        found = {"transformers": transformers.__version__, "rows": [rows[family] for family in ORDER]}
        DATA.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main([name for name in sys.argv[1:] if name != "--write"], "--write" in sys.argv)
