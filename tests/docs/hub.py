"""Small models in the place of those of the hub that pages name: what the pages show runs without a download."""

import re
import shutil
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from specdec_core.models import load_model, model_folder
from tests.catalogue import write_random_eagle3
from tests.docs.pages import ROOT
from tests.drafters.assistants import target_of
from tests.drafters.assistants import write as write_assistant
from tests.drafters.own_mtp import write as write_target
from tests.tiny import tiny_model

NAMES = re.compile(r"\b(?:google|meta-llama|owner|Qwen|RedHatAI)/[\w.-]*\w")
"""Models of the hub, as pages name them."""
_RANDOM = {
    "meta-llama/Llama-3.1-8B-Instruct": ("llama", 0.0),
    "meta-llama/Llama-3.2-1B-Instruct": ("llama", 0.15),
    "Qwen/Qwen3-8B": ("qwen3", 0.0),
    "Qwen/Qwen3-0.6B": ("qwen3", 0.15),
}
"""Family of the random models, and how much noise their weights have: with some, a model drafts well enough that
the target accepts some of its tokens and rejects others."""
_BUILT_IN = {"google/flan-t5-xl": "builtin:t5-target", "google/flan-t5-small": "builtin:t5-drafter"}
_HEADS = {"RedHatAI/Qwen3-8B-speculator.eagle3": "Qwen/Qwen3-8B"}
"""The target of each EAGLE-3 head."""
_WITH_MTP = {"Qwen/Qwen3.5-4B": "qwen3_5"}
"""The family of each random model with an MTP layer. Three tokens are likely, so that some drafts are accepted."""


class SmallHub:
    """A folder with a small model for each name that was asked for.

    Models with random weights are of the named family, and have the tokenizer of the built-in target and a chat
    template. Other names are the built-in target.

    Args:
        folder: Where the models are written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def replace(self, text: str) -> str:
        """Return a text in which names of the hub are folders."""
        return NAMES.sub(lambda found: str(self.path(found[0])), text)

    def path(self, name: str) -> Path:
        """Return the folder of a model; write it if need be."""
        folder = self.folder / name.replace("/", "--")
        if not folder.exists():
            self._write(name, folder)
        return folder

    def _write(self, name: str, folder: Path) -> None:
        built_in = model_folder(_BUILT_IN.get(name, "builtin:target"))
        if name in _HEADS:
            write_random_eagle3(folder, load_model(str(self.path(_HEADS[name]))))
            return
        whole = built_in.with_name(built_in.name.replace("t5-drafter", "t5-target"))  # which alone has a tokenizer
        tokenizer: Any = AutoTokenizer.from_pretrained(whole)
        folder.mkdir()
        tokenizer.save_pretrained(folder)
        if name in _WITH_MTP:
            likely = torch.zeros(len(tokenizer), 32)
            likely[100:103] = torch.randn(3, 32, generator=torch.Generator().manual_seed(0))
            write_target(folder, _WITH_MTP[name], len(tokenizer), **{"lm_head.weight": likely})
        elif name.startswith("google/gemma-4"):
            if name.endswith("assistant"):
                write_assistant(folder, vocab=len(tokenizer))
            else:
                target_of(vocab=len(tokenizer)).model.save_pretrained(folder)
        elif name in _RANDOM:
            family, noise = _RANDOM[name]
            ids = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": None, "bos_token_id": None}
            model = tiny_model(family, len(tokenizer), **ids)
            generator = torch.Generator().manual_seed(0)
            with torch.no_grad():
                for weight in model.parameters():
                    weight += noise * weight.std() * torch.randn(weight.shape, generator=generator)
            model.save_pretrained(folder)
        else:
            shutil.copytree(built_in, folder, dirs_exist_ok=True)
        shutil.copy(ROOT / "examples" / "prompts" / "dialogue.jinja", folder / "chat_template.jinja")
