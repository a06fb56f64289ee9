"""Every drafter that ships, built for a target small enough to enumerate, and gamma controllers with settings."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from specdec_core import default_registry
from specdec_core.interface import Drafter
from specdec_core.models import LoadedModel
from specdec_drafters.common.speculators import write_checkpoint
from specdec_drafters.dflash import DFlashHead, DFlashSpeculatorConfig
from specdec_drafters.eagle3.checkpoint import config_of
from specdec_drafters.eagle3.model import Eagle3Head, Eagle3SpeculatorConfig
from specdec_drafters.early_exit.drafter import ExitCard, write_exit
from specdec_drafters.heads.drafter import Heads, HeadsCard, HeadsShape, write_heads
from specdec_drafters.mtp import MtpHead
from tests.spelled import OTHER_VOCAB, other_tokenizer, target_tokenizer
from tests.tiny import tiny_model
from tests.toys import Gamma

ARPA = r"""\data\
ngram 1=9
ngram 2=8
ngram 3=3

\1-grams:
-99 <s> -0.1
-1.2 </s>
-1.5 <unk>
-0.9 0 -0.2
-1.1 1 -0.1
-0.6 2 -0.4
-0.5 3 -0.3
-1.0 4
-0.8 5 -0.2

\2-grams:
-0.3 2 3 -0.2
-0.5 3 5 -0.3
-0.6 3 2
-0.4 5 2 -0.1
-0.9 5 4
-0.7 0 3
-0.2 1 0
-0.8 2 2

\3-grams:
-0.4 2 3 5
-0.3 3 5 2
-0.9 5 2 2

\end\
"""

CORPUS = """2 3 5 2 3 0 1 2 3 5
3 5 2 0 3 5 4 2 2 3 3
5 5 2 3 1 3 2 5 0 2
"""

_CATALOGUE: dict[str, tuple[str, dict[str, Any]]] = {
    "random": ("random", {}),
    "unigram": ("ngram", {"order": 1}),
    "bigram": ("ngram", {"order": 2}),
    "trigram": ("ngram", {"order": 3}),
    "kenlm": ("ngram", {"candidates": 5}),
    "copy-recent": ("prompt-copy", {}),
    "copy-frequent": ("prompt-copy", {"prefer": "frequent"}),
    "suffix": ("suffix", {"max_match": 4, "max_spec_factor": 3, "max_cached_requests": 100}),
    "suffix-alone": ("suffix", {"max_cached_requests": 0}),
    "datastore": ("datastore", {"max_spec_factor": 2}),
    "transformer": ("transformer", {}),
    "early-exit": ("early-exit", {"layers": 1}),
    "early-exit-trained": ("early-exit", {}),
    "quantized": ("quantized", {}),
    "quantized-4": ("quantized", {"bits": 4}),
    "parallel": ("parallel", {"count": 3}),
    "heads": ("heads", {}),
    "eagle3": ("eagle3", {}),
    "eagle3-parallel": ("eagle3", {}),
    "dflash": ("dflash", {}),
    "mtp": ("mtp", {}),
    "copy-short": ("prompt-copy", {"max_spec_factor": 1}),
    "chain": ("chain", {"drafters": ("copy-short", "bigram"), "min_draft_tokens": 2}),
    "hierarchy-bigram": ("hierarchical", {"drafter": "bigram", "gamma": Gamma(2)}),
    "hierarchy-chain": ("hierarchical", {"drafter": "chain", "gamma": Gamma(2)}),
    "hierarchy-exit": ("hierarchical", {"middle": "early-exit", "drafter": "bigram", "gamma": Gamma(2)}),
    "hierarchy-quantized": ("hierarchical", {"middle": "quantized", "drafter": "bigram", "gamma": Gamma(2)}),
    "other-transformer": ("transformer", {}),
    "other-bigram": ("ngram", {"order": 2}),
    "translated": ("translated", {"drafter": "other-transformer"}),
    "translated-bigram": ("translated", {"drafter": "other-bigram"}),
    "translated-text": ("translated", {"drafter": "other-transformer", "method": "slem"}),
}
_WITHIN = ("copy-short", "other-transformer", "other-bigram")
DRAFTERS = [who for who in _CATALOGUE if who not in _WITHIN]
REMEMBERING = ("suffix",)
"""Those whose drafts depend on the requests before."""
FORGETFUL = [who for who in DRAFTERS if who not in REMEMBERING]

# Settings with which a controller moves within a few steps.
GAMMAS: dict[str, tuple[str, dict[str, Any]]] = {
    "fixed": ("fixed", {"gamma": 3}),
    "fixed-none": ("fixed", {"gamma": 0}),
    "optimal": ("optimal", {"alpha": 0.6, "c": 0.1}),
    "tree": ("tree", {"widths": (2, 2)}),
    "tree-best-first": ("tree", {"nodes": 5, "depth": 2}),
    "running-average": ("running-average", {"initial_gamma": 1, "max_gamma": 3, "step_size": 20, "decay": 0.5}),
    "running-average-timed": ("running-average", {"initial_gamma": 2, "max_gamma": 3, "step_size": 20, "c": None}),
    "additive": ("additive", {"initial_gamma": 1, "max_gamma": 4}),
    "confidence": ("confidence", {"threshold": 0.4, "max_gamma": 3}),
    "confidence-learnt": ("confidence", {"threshold": 0.4, "max_gamma": 3, "learn": True, "decay": 0.5}),
    "cost-aware": ("cost-aware", {"max_gamma": 3, "decay_steps": 10, "exploration": 0.2}),
    "cost-aware-given": (
        "cost-aware",
        {"max_gamma": 3, "decay_steps": 10, "exploration": 0.2, "seconds": (1, 1.2, 1.3, 1.6)},
    ),
}


def plugin_of(who: str) -> str:
    """Return the plugin name of one of `DRAFTERS`."""
    return _CATALOGUE[who][0]


class Catalogue:
    """Builds each drafter once.

    Args:
        target: The model they draft for.
        folder: An empty folder, for tables and weights.
    """

    def __init__(self, target: LoadedModel, folder: Path) -> None:
        info = target.info()
        # Those with a tokenizer of their own draft for a target as if it had theirs.
        self._infos = {
            "other": replace(info, vocab_size=OTHER_VOCAB, tokenizer=other_tokenizer()),
            "translated": replace(info, tokenizer=target_tokenizer()),
        }
        self._info = info
        self._made: dict[str, Drafter] = {}
        (folder / "ids.arpa").write_text(ARPA)
        (folder / "kenlm.arpa").write_text(re.sub(r"^(-\S+) (.*?)( -\S+)?$", _with_tabs, ARPA, flags=re.MULTILINE))
        (folder / "ids.txt").write_text(CORPUS)
        family = "t5" if target.encoder_decoder else "llama"
        tiny_model(family, target.vocab_size, seed=5, sharpness=0.8).save_pretrained(folder / "small")
        tiny_model(family, OTHER_VOCAB, seed=6, sharpness=0.8).save_pretrained(folder / "other")
        other_tokenizer().save_pretrained(folder / "other")
        masked = tiny_model(family, target.vocab_size + 1, seed=7, sharpness=0.8)
        masked.config.pard_token = target.vocab_size
        masked.save_pretrained(folder / "masked")
        write_random_heads(folder / "heads.safetensors", target)
        write_random_eagle3(folder / "eagle3", target)
        write_random_eagle3(folder / "peagle", target, mask_token_id=target.vocab_size - 1)
        write_random_dflash(folder / "dflash", target)
        write_random_mtp(folder / "mtp", target)
        write_random_exit(folder / "early-exit.safetensors", target)
        model = {"model": str(folder / "small")}
        self._needed = {
            "ngram": {"arpa": folder / "ids.arpa"},
            "kenlm": {"kenlm": folder / "kenlm.arpa"},
            "datastore": {"ids": folder / "ids.txt"},
            "transformer": model,
            "parallel": {"model": str(folder / "masked")},
            "hierarchical": model,
            "heads": {"model": str(folder / "heads.safetensors")},
            "eagle3": {"model": str(folder / "eagle3")},
            "eagle3-parallel": {"model": str(folder / "peagle")},
            "dflash": {"model": str(folder / "dflash")},
            "mtp": {"model": str(folder / "mtp")},
            "early-exit-trained": {"model": str(folder / "early-exit.safetensors")},
            "other-transformer": {"model": str(folder / "other")},
        }

    def make(self, who: str, *, afresh: bool = False) -> Drafter:
        """Return one of `DRAFTERS`; with `afresh`, a new one."""
        if afresh or who not in self._made:
            name, settings = _CATALOGUE[who]
            if who == "kenlm":
                pytest.importorskip("kenlm", exc_type=ImportError)
            if name == "quantized" and self._info.device != "cpu":
                pytest.importorskip("torchao")
            settings = {key: self._written(value) for key, value in settings.items()}
            if "middle" not in settings:
                settings |= self._needed.get(who) or self._needed.get(name, {})
            info = self._infos.get(who.partition("-")[0], self._info)
            registry = default_registry()
            config = registry.spec("drafter", name).config(**settings)
            self._made[who] = registry.create("drafter", name, config, info)
        return self._made[who]

    def _written(self, value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(self._written, value))
        return self.make(value) if isinstance(value, str) and value in _CATALOGUE else value


def _with_tabs(line: re.Match[str]) -> str:
    """Return a line of an ARPA file as KenLM reads it: with tabs around the words."""
    return "\t".join(part.strip() for part in line.groups() if part)


def write_random_heads(path: Path, target: LoadedModel) -> None:
    """Write random heads for a target, whose distributions are far from uniform."""
    features = target.features
    assert features is not None
    shape = HeadsShape(3, features.hidden_size, 8, features.hidden_size)
    heads = Heads(shape)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for weight in heads.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator) * 0.4)
    write_heads(
        path,
        heads,
        HeadsCard(
            **vars(shape), vocab_size=target.vocab_size, target=target.name, fingerprint=features.fingerprint()
        ),
    )


def write_random_exit(path: Path, target: LoadedModel) -> None:
    """Write a random exit after the first layer of a target."""
    features = target.features
    assert features is not None
    size = features.hidden_size
    translator = torch.eye(size) + 0.3 * torch.randn(size, size, generator=torch.Generator().manual_seed(3))
    write_exit(path, translator, ExitCard(layers=1, target=target.name, fingerprint=features.fingerprint()))


def write_random_eagle3(folder: Path, target: LoadedModel, layers: Sequence[int] = (0, 1), **flags: Any) -> None:
    """Write a random EAGLE-3 head for a target, which drafts two thirds of its tokens.

    Args:
        folder: A new folder.
        target: The target.
        layers: The layers that the head reads.
        flags: Fields of the head's shape, with another value than their default; of `layer`, keys with another.
    """
    features = target.features
    assert features is not None
    vocab, size = target.vocab_size, features.hidden_size
    sizes = {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8}
    layer = {"model_type": "llama", "hidden_size": 16, "intermediate_size": 24, "vocab_size": vocab, **sizes}
    layer |= flags.pop("layer", {})
    head = Eagle3Head(
        Eagle3SpeculatorConfig(
            speculators_model_type="eagle3" if flags.get("mask_token_id") is None else "peagle",
            transformer_layer_config=layer,
            draft_vocab_size=max(vocab * 2 // 3, 1),
            target_hidden_size=size,
            eagle_aux_hidden_state_layer_ids=list(layers),
            **flags,
        )
    )
    _randomize_head(head)
    folder.mkdir()
    write_checkpoint(folder, config_of(head, {"name_or_path": None}), head.state_dict())


def dflash_config(head: DFlashHead) -> dict[str, Any]:
    """Return the `config.json` of a head, as the speculators package writes it."""
    method = {
        "proposal_type": "greedy",
        "speculative_tokens": head.shape.drafted,
        "verifier_accept_k": 1,
        "accept_tolerance": 0.0,
    }
    return {
        **head.shape.model_dump(exclude={"specdec"}),
        "architectures": ["DFlashSpeculator"],
        "speculators_version": "0.9.0",
        "speculators_config": {
            "algorithm": "dflash",
            "default_proposal_method": "greedy",
            "proposal_methods": [method],
            "verifier": {"name_or_path": None},
        },
        "tie_word_embeddings": False,
    }


def write_random_dflash(folder: Path, target: LoadedModel, layers: Sequence[int] = (0, 1), **shape: Any) -> None:
    """Write a random DFlash head for a target, which drafts two thirds of its tokens, four at once.

    Args:
        folder: A new folder.
        target: The target.
        layers: The layers that the head reads.
        shape: Fields of the head's shape, with another value than here; of `layer`, keys with another value.
    """
    features = target.features
    assert features is not None
    vocab, size = target.vocab_size, features.hidden_size
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8}
    layer = {"model_type": "qwen3", "hidden_size": size, "intermediate_size": 24, "vocab_size": vocab, **sizes}
    given = {"draft_vocab_size": max(vocab * 2 // 3, 1), "block_size": 5, "mask_token_id": vocab - 1} | shape
    given["transformer_layer_config"] = layer | given.pop("layer", {})
    given["aux_hidden_state_layer_ids"] = list(layers)
    head = DFlashHead(DFlashSpeculatorConfig(speculators_model_type="dflash", **given))
    _randomize_head(head)
    folder.mkdir()
    write_checkpoint(folder, dflash_config(head), head.state_dict())


def _randomize_head(head: Eagle3Head | DFlashHead) -> None:
    """Give a head random weights and a random draft vocabulary."""
    generator = torch.Generator().manual_seed(6)
    _randomize(head.named_parameters(), generator)
    ids = torch.randperm(len(head.t2d), generator=generator)[: len(head.d2t)].sort().values
    head.t2d.zero_()[ids] = True
    head.d2t.copy_(ids - torch.arange(len(ids)))


def write_random_mtp(folder: Path, target: LoadedModel) -> None:
    """Write a random MTP layer for a target to a new folder."""
    features = target.features
    assert features is not None
    layer = {
        "model_type": "qwen3",
        "vocab_size": target.vocab_size,
        "hidden_size": features.hidden_size,
        "intermediate_size": 24,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "max_position_embeddings": 256,
    }
    head = MtpHead(layer | {"num_hidden_layers": 1})
    weights = {name: weight for name, weight in head.named_parameters() if not weight.is_meta}
    _randomize(weights.items(), torch.Generator().manual_seed(7))
    config = {
        "speculators_model_type": "mtp",
        "transformer_layer_config": layer | {"num_hidden_layers": features.num_layers},
    }
    folder.mkdir()
    write_checkpoint(folder, config, weights)


def _randomize(weights: Iterable[tuple[str, Tensor]], generator: torch.Generator) -> None:
    """Draw weights with which distributions are far from uniform."""
    with torch.no_grad():
        for name, weight in weights:
            drawn = torch.randn(weight.shape, generator=generator)
            weight.copy_(1 + 0.3 * drawn if "norm" in name else 0.5 * drawn)
