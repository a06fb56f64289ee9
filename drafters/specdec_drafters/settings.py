"""Settings of the drafters and their trainers. Importing this imports no torch."""

import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from specdec_core.interface import (
    DrafterConfig,
    ModelError,
    ModelSettings,
    Nested,
    NestedDrafter,
    NestedGamma,
    PluginConfig,
    TrainerConfig,
)
from specdec_core.interface.files import input_path
from specdec_core.registry import is_shipped, nested_settings, shipped_file

BUILTIN_STDLIB = "builtin:stdlib"
BUILTIN_TEXTS = (BUILTIN_STDLIB,)
"""Built-in texts: the Python standard library."""


def _check_text(name: str) -> str:
    if name.startswith("builtin:") and name not in BUILTIN_TEXTS:
        raise ValueError(f"unknown built-in text {name!r}. Available: {', '.join(BUILTIN_TEXTS)}.")
    return name


TextSource = Annotated[str, Field(min_length=1), AfterValidator(_check_text)]
"""A UTF-8 text: a file, or one of `BUILTIN_TEXTS`."""


class RandomConfig(DrafterConfig):
    """Every token with the same probability: the floor for all other drafters."""

    token_ids_only: ClassVar[bool] = True


class PromptCopyConfig(DrafterConfig):
    """Copies the continuation of an earlier match of the last tokens (prompt lookup).

    How much of the end of a sequence must match, and which match to copy from.
    """

    token_ids_only: ClassVar[bool] = True

    min_match: Annotated[int, Field(ge=1)] = 1
    """The shortest match; shorter ones draft nothing. Raise it in a chain, where another drafter fills in."""
    max_match: Annotated[int, Field(ge=1)] = 16
    """The most tokens compared; matches of at least this length count as equally long."""
    max_spec_factor: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 3.0
    """The most tokens copied per token that matches, so that a long copy needs a long match."""
    prefer: Literal["recent", "frequent"] = "recent"
    """Which of equally long matches to copy: the latest one, or at each token the most frequent continuation."""

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.min_match > self.max_match:
            raise ValueError(f"min_match ({self.min_match}) must not exceed max_match ({self.max_match})")
        return self


class MatchingConfig(DrafterConfig):
    """How much of the end of a sequence must match, and how much of what followed is drafted."""

    max_match: Annotated[int, Field(ge=1)] = 16
    """The most tokens compared; matches of at least this length count as equally long."""
    max_spec_factor: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    """The most tokens drafted per token that matches; of a tree, in each path."""
    min_token_prob: Annotated[float, Field(ge=0, le=1)] = 0.1
    """A draft ends where its tokens followed less than this share of the matches."""


class SuffixConfig(MatchingConfig):
    """Continues the longest match in the request and in earlier ones (suffix decoding).

    What to match, what to draft, and how many earlier requests to keep.
    """

    token_ids_only: ClassVar[bool] = True

    max_cached_requests: Annotated[int, Field(ge=0)] = 1000
    """The most earlier requests kept, with their prompts; the oldest are dropped. With 0, only the request itself
    is searched."""


class DatastoreConfig(MatchingConfig):
    """Continues the longest match in a corpus (retrieval, as REST).

    The corpus, either `text` or `ids`; what to match in it, and what to draft.
    """

    token_ids_only: ClassVar[bool] = True

    text: TextSource | None = None
    """A UTF-8 text, or `builtin:stdlib`, the Python standard library."""
    ids: Path | None = None
    """A file of the target's token ids, one text per line."""
    max_bytes: Annotated[int, Field(ge=1)] | None = None
    """The most bytes of `text` to read; by default all, or 4 MB of `builtin:stdlib`."""

    @model_validator(mode="after")
    def _check_corpus(self) -> Self:
        source = _only_source(self, text="a text to search", ids="a file of token ids")
        if source == "ids" and self.max_bytes is not None:
            raise ValueError("'max_bytes' applies to 'text', not to 'ids'")
        return self


def _only_source(config: PluginConfig, **meanings: str) -> str:
    """Return which of some settings is given, of which there must be one."""
    given = [name for name in meanings if getattr(config, name) is not None]
    if len(given) != 1:
        *first, last = (f"{name!r} ({meaning})" for name, meaning in meanings.items())
        raise ValueError(f"give one of {', '.join(first)} and {last}; got {' and '.join(given) or 'none'}")
    return given[0]


MAX_ORDER = 10
"""The highest order of an ARPA file, as for KenLM."""


_APPLIES = {
    "order": ("arpa", "text"),
    "max_bytes": ("text",),
    "words": ("kenlm",),
    "load_method": ("kenlm",),
}


class NgramConfig(DrafterConfig):
    """An n-gram model over tokens, from an ARPA file, counted from a text, or in KenLM.

    The source of the n-grams: one of `arpa`, `text` and `kenlm`.
    """

    token_ids_only: ClassVar[bool] = True

    arpa: Path | None = None
    """An ARPA file over decimal token ids, or a built-in one, such as `builtin:translation-bigram`."""
    text: TextSource | None = None
    """A UTF-8 text to count, or `builtin:stdlib`, the Python standard library."""
    kenlm: Path | None = None
    """A model for the `kenlm` package."""
    words: Literal["ids", "tokens", "text"] = "ids"
    """Words of the `kenlm` model: decimal token `ids`, `tokens` of the target's tokenizer, or their `text` without
    blanks around it."""
    load_method: Literal["lazy", "populate_or_lazy", "populate_or_read", "read"] = "lazy"
    """How KenLM reads a binary: `lazy` maps it into memory, `populate_or_lazy` also reads it at once, `read`
    copies it."""
    order: Annotated[int, Field(ge=1)] | None = None
    """The longest n-grams; by default all in `arpa`, 2 for `text`."""
    max_bytes: Annotated[int, Field(ge=1)] | None = None
    """The most bytes to count; by default all, or 4 MB of `builtin:stdlib`."""
    candidates: Annotated[int, Field(ge=1)] = 512
    """The most tokens that q is spread over."""

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        source = _only_source(self, arpa="an ARPA file", text="a text to count", kenlm="a model for KenLM")
        for name, sources in _APPLIES.items():
            if source not in sources and getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"{name!r} applies to {' and '.join(map(repr, sources))}, not to {source!r}")
        if self.kenlm is not None and find_spec("kenlm") is None:
            raise ValueError(missing_kenlm())
        if self.arpa is not None and is_shipped(self.arpa):
            try:
                find_arpa(self.arpa, Path())
            except ModelError as error:
                raise ValueError(str(error)) from error
        return self


def missing_kenlm() -> str:
    """Return what to do where the `kenlm` package is not installed."""
    if sys.version_info >= (3, 13):
        install = "its release 0.3.0 does not compile on Python 3.13; use Python 3.11 or 3.12, and there "
    else:
        install = ""
    return (
        "'kenlm' needs the package kenlm, which is not installed: "
        f"{install}pip install 'specdec-core[kenlm]', which compiles it and needs a C++ compiler and CMake. "
        "Without it, give the ARPA file that the model was made from, as 'arpa'"
    )


def find_arpa(arpa: Path, folder: Path) -> Path:
    """Return the file that an `arpa` setting refers to.

    Args:
        arpa: An ARPA file, or one that ships, such as `builtin:translation-bigram`.
        folder: Base for relative paths.

    Raises:
        ModelError: No installed collection has this n-gram model.
        ConfigError: No file can have this name.
    """
    shipped = shipped_file(arpa, "n-gram model", "*.arpa", folder)
    return input_path(arpa, folder) if shipped is None else shipped


class TransformerConfig(DrafterConfig, ModelSettings):
    """A smaller Hugging Face model with the target's vocabulary.

    The draft model and how to load it; its vocabulary must be the target's.
    """

    vllm_method: ClassVar[str | None] = "draft_model"

    def export_vllm(self, folder: Path) -> dict[str, Any]:
        """Copy the model's files, and load them."""
        from specdec_drafters.common.draft_model_loading import copy_model

        copy_model(self, folder, "transformer")
        return {}


class EarlyExitConfig(DrafterConfig):
    """The target's first layers with its own head, optionally trained (self-speculation).

    After which of the target's layers to exit, and with which trained exit.
    """

    needs_model: ClassVar[bool] = True

    layers: Annotated[int, Field(ge=1)] | None = None
    """Number of the target's layers that draft, from the first; by default those of the trained exit, or as
    many as Theorem 3.8 finds best."""
    model: Annotated[str, Field(min_length=1)] | None = None
    """A trained exit for this target: a file, a folder with `early-exit.safetensors`, or `builtin:early-exit`. By
    default the target's own norm and head."""


class QuantizedConfig(DrafterConfig):
    """A copy of the target with weights of 8 or 4 bits (self-speculation).

    How the target's weights are quantized for drafting.
    """

    needs_model: ClassVar[bool] = True

    bits: Literal[8, 4] = 8
    """Bits of a weight. The output embedding has 8 in either case."""


class HeadsConfig(DrafterConfig):
    """Trained heads on the target's last hidden state draft several tokens at once.

    The heads to draft with.
    """

    needs_hidden_states: ClassVar[bool] = True

    model: Annotated[str, Field(min_length=1)]
    """Heads for this target: a file, a folder with `heads.safetensors`, or `builtin:heads`."""
    count: Annotated[int, Field(ge=1)] | None = None
    """Number of heads to use, from the first; by default all in the file."""


class ParallelConfig(DrafterConfig, ModelSettings):
    """A small model that reads mask tokens behind the text, and drafts all tokens in one forward pass.

    The draft model and how to load it: PARD's format, a model of the target's vocabulary whose `config.json` names
    its mask token as `pard_token` or `ptd_token_id`.
    """

    count: Annotated[int, Field(ge=1)] | None = None
    """The most tokens of a draft; by default `pard_depth` in the model's config, if it is there."""

    vllm_method: ClassVar[str | None] = "draft_model"

    def export_vllm(self, folder: Path) -> dict[str, Any]:
        """Copy the model's files, and put its mask token into the vocabulary if it is behind it."""
        from specdec_drafters.common.draft_model_loading import copy_model
        from specdec_drafters.parallel import move_mask_token

        depth = move_mask_token(copy_model(self, folder, "parallel"), folder)
        return {"parallel_drafting": True, "num_speculative_tokens": self.count or depth}


class Eagle3Config(DrafterConfig):
    """An EAGLE-3 head from a speculators checkpoint, on the hidden states of the target's layers.

    The head to draft with.
    """

    needs_hidden_states: ClassVar[bool] = True

    model: Annotated[str, Field(min_length=1)]
    """An EAGLE-3 head for this target: a folder, a hub name, or `builtin:eagle3`."""

    vllm_method: ClassVar[str | None] = "eagle3"

    def export_vllm(self, folder: Path) -> dict[str, Any]:
        """Write the head, with the keys of config.json that vLLM reads."""
        from specdec_drafters.eagle3.checkpoint import export_eagle3

        return export_eagle3(self.model, folder)


class DFlashConfig(DrafterConfig):
    """A DFlash head from a speculators checkpoint drafts a block in one forward pass.

    The head to draft with.
    """

    needs_hidden_states: ClassVar[bool] = True

    model: Annotated[str, Field(min_length=1)]
    """A DFlash head for this target, in the format of speculators: a folder or a hub name."""

    vllm_method: ClassVar[str | None] = "dflash"

    def export_vllm(self, folder: Path) -> dict[str, Any]:
        """Write the head, with the keys of config.json that vLLM reads."""
        from specdec_drafters.dflash import export_dflash

        return export_dflash(self.model, folder)


class MtpConfig(DrafterConfig):
    """An MTP layer, of the target's own checkpoint or of speculators, on the target's last hidden states.

    The MTP layer to draft with.
    """

    needs_hidden_states: ClassVar[bool] = True

    model: Annotated[str, Field(min_length=1)]
    """`target`: the layer in the target's checkpoint. Else a folder or a hub name, of another checkpoint of that
    model, or of a layer in the format of speculators."""

    vllm_method: ClassVar[str | None] = "mtp"

    def export_vllm(self, folder: Path) -> dict[str, Any]:  # noqa: ARG002
        """Write nothing: vLLM reads the layer from the target's checkpoint, or from another of that model."""
        from specdec_drafters.mtp import vllm_keys

        return vllm_keys(self.model)


class AssistantConfig(DrafterConfig):
    """A small model that attends to the target's keys and values, as those that Gemma 4 ships with.

    The assistant to draft with.
    """

    targets: ClassVar[Literal["any", "decoder-only", "encoder-decoder"]] = "decoder-only"
    needs_hidden_states: ClassVar[bool] = True
    needs_model: ClassVar[bool] = True

    model: Annotated[str, Field(min_length=1)]
    """The assistant of this target: a folder or a hub name."""

    vllm_method: ClassVar[str | None] = "mtp"

    def export_vllm(self, folder: Path) -> dict[str, Any]:  # noqa: ARG002
        """Write nothing: vLLM reads the assistant's own folder, or takes it from the hub.

        The one token is the default of vLLM, and what its documentation has for Gemma 4.
        """
        return {"model": self.model, "num_speculative_tokens": 1}


class ChainConfig(DrafterConfig):
    """Falls back to the next drafter when one has no draft.

    The drafters of a chain, and when to fall back to the next one.
    """

    token_ids_only: ClassVar[bool] = True

    drafters: Annotated[tuple[NestedDrafter, ...], Field(min_length=1)]
    """At least one drafter, in the order they are asked: names, or mappings with `name` and settings."""
    min_draft_tokens: Annotated[int, Field(ge=1)] = 1
    """A shorter draft is replaced by the next drafter's, unless it was sampled."""


class HierarchicalConfig(DrafterConfig, ModelSettings):
    """A draft model that is itself accelerated by another drafter, to any depth.

    The model that drafts for the target, how to load it, and the drafter for that model.
    """

    model: Annotated[str, Field(min_length=1)] | None = None  # type: ignore[assignment]  # `middle` has one, too
    """The middle model: a folder, a hub name, or a built-in one."""
    middle: NestedDrafter | None = None
    """Instead of `model`, a drafter whose model is the middle model, such as `early-exit` or `quantized`."""

    drafter: Annotated[Any, Nested("drafter", same_target=False)]
    """The drafter for the middle model."""
    gamma: NestedGamma
    """Draft tokens per forward pass of the middle model: a number, or a controller."""

    @model_validator(mode="after")
    def _check_middle(self) -> Self:
        if (self.model is None) == (self.middle is None):
            raise ValueError("give the middle model: either 'model', or 'middle', a drafter that has one")
        loading = sorted(self.model_fields_set & ModelSettings.model_fields.keys())
        if self.middle is not None and loading:
            raise ValueError(f"'middle' brings its model along; remove {' and '.join(map(repr, loading))}")
        return self

    @model_validator(mode="after")
    def _check_levels(self) -> Self:
        if self.model is not None and _normalized(self.model) in map(_normalized, _models_in(self)):
            raise ValueError(
                f"{self.model!r} appears again below itself; each level drafts for the one above it and must be "
                "cheaper: name a smaller model there"
            )
        return self


def _normalized(model: str) -> str:
    """Return the name of a model in one spelling: the same for equivalent spellings of a path."""
    return os.path.normpath(os.path.expanduser(model))  # noqa: PTH111  (leaves the home of an unknown user as it is)


def _models_in(config: PluginConfig) -> Iterator[str]:
    """Yield the models named by nested plugins, at any depth."""
    for nested in nested_settings(config):
        model = getattr(nested.config, "model", None)
        if isinstance(model, str):
            yield model
        yield from _models_in(nested.config)


class TranslatedConfig(DrafterConfig):
    """A drafter whose tokenizer is not the target's.

    A drafter with its own tokenizer, and how its drafts become tokens of the target.
    """

    needs_tokenizer: ClassVar[bool] = True

    drafter: Annotated[Any, Nested("drafter", same_tokens=False)]
    """The drafter to wrap."""
    method: Literal["tli", "slem"] = "tli"
    """`tli`, token-level intersection, or `slem`, string-level exact match."""
    tokenizer: Annotated[str, Field(min_length=1)] | None = None
    """Model with the drafter's tokenizer; by default the drafter's own."""


DEFAULT_MINUTES = 10.0
"""Default length of a training run."""

LossName = Literal["ce", "kl", "tv", "kl-then-tv"]
"""Name of a training loss."""

Retention = Annotated[float, Field(gt=0, le=1)]
"""The share of the positions of one depth that is trained at the next one."""


class DataConfig(TrainerConfig):
    """What a drafter is trained on: text, token ids, or tokens that the target generates."""

    text: TextSource | None = None
    """A UTF-8 text to train on, or `builtin:stdlib`, the Python standard library."""
    max_bytes: Annotated[int, Field(ge=1)] | None = None
    """The most bytes of `text` to read; by default all, or 4 MB of `builtin:stdlib`."""
    ids: Path | None = None
    """A file of the target's token ids, one sequence per line; it needs no tokenizer."""
    samples: Annotated[int, Field(ge=1)] | None = None
    """Number of tokens to sample from the target."""
    sources: Path | None = None
    """For a target with an encoder: a JSONL file of `{"source": ..., "target": ...}`, the target optional."""
    seed: Annotated[int, Field(ge=0)] = 0
    """The random seed."""
    device: str = "auto"
    """`cpu`, `cuda`, `cuda:1` ...; `auto` is a GPU if there is one."""


class TrainingConfig(DataConfig):
    """Length and pace of a training run."""

    resume: bool = False
    """Continue from the last checkpoint of the same training run."""
    held_out: Annotated[int, Field(ge=1)] = 4096
    """Further tokens to sample from the target, for evaluation."""
    length: Annotated[int, Field(ge=2)] = 512
    """Tokens per training sequence: a window of text, or a sample from the target with its prompt. A model may
    fail in longer texts."""
    batch_tokens: Annotated[int, Field(ge=1)] = 2048
    """Tokens per step."""
    steps: Annotated[int, Field(ge=1)] | None = None
    """Number of training steps."""
    minutes: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Minutes to train, instead of `steps`; 10 by default."""
    learning_rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """The peak learning rate; by default one that suits the model."""
    loss: LossName = "kl-then-tv"
    """`ce`, cross-entropy on the text; `kl`, KL(p || q); `tv`, total variation, 1 - alpha; `kl-then-tv`, from KL
    to total variation."""
    temperature: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    """The temperature at which you will decode."""
    evaluate_every: Annotated[int, Field(ge=1)] = 50
    """Steps between two evaluations."""
    checkpoint_minutes: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 3.0
    """Minutes between two checkpoints."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Data type of matrix products; `auto` is bfloat16 if the hardware supports it."""

    @model_validator(mode="after")
    def _check_budget(self) -> Self:
        if self.steps is not None and self.minutes is not None:
            raise ValueError(f"give 'steps' or 'minutes', not both; got {self.steps} and {self.minutes:g}")
        return self

    @model_validator(mode="after")
    def _check_data(self) -> Self:
        read = [name for name in ("text", "ids", "sources") if getattr(self, name) is not None]
        if not read and self.samples is None:
            raise ValueError(
                "give training data: 'samples' (tokens to sample from the target), 'text' (a file, or "
                "builtin:stdlib), 'ids' (a file of token ids), or, for a target with an encoder, 'sources' (a "
                "JSONL file)"
            )
        if len(read) > 1:
            why = ": 'sources' is for targets with an encoder" if "sources" in read else ""
            raise ValueError(f"give {' or '.join(map(repr, read))}, not both{why}")
        if self.text is None and self.max_bytes is not None:
            raise ValueError("'max_bytes' limits 'text'; give 'text' too, or remove it")
        return self

    @property
    def seconds(self) -> float | None:
        """Length of the run in seconds, or None if it is given in steps."""
        return None if self.steps is not None else 60.0 * (self.minutes or DEFAULT_MINUTES)


class NgramTrainerConfig(DataConfig):
    """Estimate an n-gram model from one of `text`, `ids` and `samples`, and write it as an ARPA file.

    For example, from the Python standard library:

    ```
    specdec train ngram --text builtin:stdlib --order 3 --output stdlib.3.arpa
    ```
    """

    order: Annotated[int, Field(ge=1, le=MAX_ORDER)] = 3
    """The longest n-grams."""
    split: Literal["document", "line"] = "document"
    """The sentences of `text`; no n-gram crosses the end of one."""

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        samples = "tokens to sample from the target"
        source = _only_source(self, text="a text to count", ids="a file of token ids", samples=samples)
        if self.sources is not None and self.samples is None:
            raise ValueError(f"'sources' applies to 'samples', not to {source!r}")
        if self.text is None:
            for name, is_set in (("max_bytes", self.max_bytes is not None), ("split", self.split != "document")):
                if is_set:
                    raise ValueError(f"{name!r} applies to 'text', not to {source!r}")
        return self


class TransformerTrainerConfig(TrainingConfig):
    """Train a small model to imitate the target: an existing one, or a new one of the given size.

    For example, a new one, on a text and on the target's continuations of its pieces:

    ```
    specdec train transformer --output my-drafter --text builtin:stdlib --samples 100000 --minutes 10
    ```

    After Ctrl-C, the same command with --resume continues.
    """

    model: Annotated[str, Field(min_length=1)] | None = None
    """The model to start from: a folder, a hub name, or `builtin:drafter`; by default a new one."""
    layers: Annotated[int, Field(ge=1)] | None = None
    """Layers of a new model (in its encoder and in its decoder); 2 by default."""
    width: Annotated[int, Field(ge=2)] | None = None
    """Hidden size of a new model; 128 by default."""
    heads: Annotated[int, Field(ge=1)] | None = None
    """Attention heads of a new model; by default one per 64 of its width."""
    saved_as: Literal["float32", "bfloat16", "float16"] = "float32"
    """Data type of the saved weights."""

    @model_validator(mode="after")
    def _check_start(self) -> Self:
        sizes = {"layers": self.layers, "width": self.width, "heads": self.heads}
        given = [name for name, value in sizes.items() if value is not None]
        if self.model is not None and given:
            raise ValueError(
                f"'model' starts from an existing model, whose size is fixed: remove 'model' or "
                f"{' and '.join(map(repr, given))}"
            )
        width, heads = self.sizes[1:]
        if width % heads or (width // heads) % 2:
            raise ValueError(
                f"a width of {width} cannot be divided among {heads} heads of even size; give a width that is a "
                f"multiple of {2 * heads}, or another number of 'heads'"
            )
        return self

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Layers, width and heads of a new model."""
        width = self.width or 128
        return self.layers or 2, width, self.heads or max(1, width // 64)


class EarlyExitTrainerConfig(TrainingConfig):
    """Choose after how many layers the target should exit, and train that exit. The target is frozen.

    For the built-in target:

    ```
    specdec train early-exit --text builtin:stdlib --samples 50000 --minutes 6 --output early-exit.safetensors
    ```
    """

    layers: Annotated[int, Field(ge=1)] | None = None
    """Number of layers before the exit. By default all of the first half are tried, and the exit with the highest
    expected speed-up is kept."""


class HeadsTrainerConfig(TrainingConfig):
    """Train heads that draft several tokens at once from the target's hidden state. The target is frozen.

    For the built-in target, this takes about twenty minutes:

    ```
    specdec train heads --text builtin:stdlib --samples 100000 --minutes 15 --output heads.safetensors
    ```
    """

    heads: Annotated[int, Field(ge=1)] = 4
    """Number of heads, the longest draft."""
    width: Annotated[int, Field(ge=1)] | None = None
    """Width of each head's feed-forward layer; by default the target's hidden size."""
    reads_token: bool = True
    """Feed the heads the last token, too; without it, they are those of Stern et al. 2018, for greedy decoding."""


class ParallelTrainerConfig(TransformerTrainerConfig):
    """Train a small model that drafts several tokens in one forward pass, from mask tokens behind the text.

    It imitates the target, like `specdec train transformer`, at every depth of a draft. For example, from a draft
    model that exists:

    ```
    specdec train parallel --output my-drafter --model builtin:drafter --samples 100000 --minutes 10
    ```

    After Ctrl-C, the same command with --resume continues.
    """

    depth: Annotated[int, Field(ge=2)] = 8
    """Tokens of the longest draft to train for: one more than the mask tokens."""
    retention: Retention = 0.7
    """The share of the positions of one depth that is trained at the next one (COD, in PARD's paper)."""


class Eagle3TrainerConfig(TrainingConfig):
    """Train an EAGLE-3 head for a target, in the format that speculators and vLLM read. The target is frozen.

    For the built-in target, this takes about half an hour:

    ```
    specdec train eagle3 --text builtin:stdlib --samples 100000 --minutes 25 --output eagle3
    ```
    """

    aux_layers: tuple[Annotated[int, Field(ge=0)], ...] | None = None
    """Layers of the target that the head reads, numbered as in `hidden_states`; by default 2, half their number,
    and their number less 3."""
    draft_vocab: Annotated[int, Field(ge=1)] | None = None
    """Number of most frequent tokens that the head can draft; by default at most 32000."""
    unrolled: Annotated[int, Field(ge=1)] = 4
    """Draft tokens to train at each position."""
    decay: Annotated[float, Field(gt=0, le=1)] = 0.8
    """Weight of a draft token's loss over the previous one's; not with `parallel`."""
    parallel: bool = False
    """Train a P-EAGLE head, which drafts all tokens in one forward pass."""
    retention: Retention = 0.7
    """With `parallel`, the share of the positions of one depth that is trained at the next one."""
    loss: Literal["kl", "tv", "kl-then-tv"] = "kl-then-tv"
    """KL(p || q), total variation, or KL first."""
    saved_as: Literal["float32", "bfloat16", "float16"] = "bfloat16"
    """Data type of the saved weights."""
    save_embeddings: bool = True
    """Save the target's input embeddings, too; without them, vLLM takes the target's."""

    @model_validator(mode="after")
    def _check_parallel(self) -> Self:
        given = self.model_fields_set
        if self.parallel and "decay" in given:
            raise ValueError("'decay' weights the tokens of a draft that is unrolled; remove it, or 'parallel'")
        if not self.parallel and "retention" in given:
            raise ValueError("'retention' is for heads that draft in one pass; add 'parallel', or remove it")
        if self.parallel and self.unrolled < 2:
            raise ValueError("'parallel' drafts several tokens in one pass; give 'unrolled' at least 2")
        return self
