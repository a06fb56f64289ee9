"""Settings of a target and of a generation, as a study states them. Importing this imports no torch."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeAlias, TypedDict

from pydantic import BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from specdec_core.interface.constraint import Constraint
from specdec_core.interface.validated import Validated

_TokenId: TypeAlias = Annotated[int, Field(ge=0)]


class SamplingSettings(Validated):
    """How logits become the distribution that is sampled (standardized sampling, section 2.2).

    Names and meaning are those of transformers, vLLM and OpenAI's API. First come `logit_bias`, the penalties and
    `bad_words`, as in vLLM, then the others in the order of the fields, as in `generate` of transformers. Nothing
    is applied unasked.
    """

    model_config = ConfigDict(allow_inf_nan=False)

    temperature: Annotated[float, Field(ge=0)] = 1.0
    """0 is argmax; 1 leaves the model's distribution as it is."""
    top_k: Annotated[int, Field(ge=1)] | None = None
    """Keep the k most probable tokens."""
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    """Keep the smallest set of tokens whose probabilities sum to at least this (nucleus sampling)."""
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    """Keep tokens at least this fraction as probable as the most probable one."""
    repetition_penalty: Annotated[float, Field(gt=0)] = 1.0
    """Divide the scores of tokens in the prefix; 1 is off."""
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    """Subtract this from the scores of tokens in the new text; 0 is off."""
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    """The same for each time that a token is in the new text; 0 is off."""
    logit_bias: dict[_TokenId, Annotated[float, Field(ge=-100, le=100)]] | None = None
    """Add to the scores of some token ids: `{50256: -100}`."""
    bad_words: tuple[
        Annotated[str, Field(min_length=1)] | Annotated[tuple[_TokenId, ...], Field(min_length=1)], ...
    ] = ()
    """Words that are never completed: texts, or lists of token ids."""

    @property
    def greedy(self) -> bool:
        """Whether the most probable token is taken always."""
        return self.temperature == 0


class SamplingOptions(TypedDict, total=False):
    """The fields of `SamplingSettings` as keyword arguments."""

    temperature: float
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float] | None
    bad_words: Sequence[str | Sequence[int]]


BEAM_SETTINGS = ("length_penalty", "early_stopping", "num_return_sequences")
"""Fields of `GenerationSettings` that have a meaning with beams only."""


class GenerationSettings(Validated):
    """How long to decode and from which seed."""

    model_config = ConfigDict(allow_inf_nan=False)

    max_new_tokens: Annotated[int, Field(ge=1)] = 128
    """The most tokens appended to a prompt."""
    min_new_tokens: Annotated[int, Field(ge=0)] = 0
    """No end of sequence before this many new tokens; a stop string still ends a text."""
    stop: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Strings that end a sequence; the token that completes one is the last one kept."""
    ignore_eos: bool = False
    """Decode up to `max_new_tokens`, so that every run does the same work."""
    seed: Annotated[int, Field(ge=0, lt=2**64)] = 0
    """Seed of the texts."""
    beams: Annotated[int, Field(ge=1)] = 1
    """Width of beam search, `num_beams` of transformers; 1 is none. More need temperature 0."""
    length_penalty: float = 1.0
    """With beams: hypotheses are ranked by log probability over length to the power of this."""
    early_stopping: bool | Literal["never"] = False
    """With beams: end with w finished hypotheses (true), where a better one is unlikely (false), or impossible
    (`never`)."""
    num_return_sequences: Annotated[int, Field(ge=1)] = 1
    """With beams: hypotheses returned for a prompt, the best first."""
    constraint: Constraint | None = None
    """A JSON schema, regular expression or grammar for the new text. In a study it stands beside `generation`."""

    def shortened(self, most: int) -> Self:
        """Return the same settings for texts that end after so many new tokens."""
        most = min(most, self.max_new_tokens)
        least = min(most, self.min_new_tokens)
        return self.model_copy(update={"max_new_tokens": most, "min_new_tokens": least})

    @field_validator("constraint")
    @classmethod
    def _check_constraint(cls, value: Constraint | None, info: ValidationInfo) -> Constraint | None:
        if value is not None and info.data.get("ignore_eos"):
            raise ValueError("given with 'ignore_eos', but a constraint says where a text ends; remove one")
        if value is not None and info.data.get("beams", 1) > 1:
            raise ValueError("given with 'beams', but beam search takes no constraint; remove one")
        if value is not None and info.data.get("min_new_tokens"):
            raise ValueError("given with 'min_new_tokens', but a constraint says where a text ends; remove one")
        return value


class GenerationOptions(TypedDict, total=False):
    """The fields of `GenerationSettings` as keyword arguments."""

    max_new_tokens: int
    min_new_tokens: int
    stop: str | Sequence[str]
    ignore_eos: bool
    seed: int
    beams: int
    length_penalty: float
    early_stopping: bool | Literal["never"]
    num_return_sequences: int
    constraint: Constraint | Mapping[str, Any] | None


AttentionName: TypeAlias = Literal["eager", "sdpa", "flash_attention_2", "flash_attention_3"]
"""Attention implementations of transformers that a model may be loaded with."""

_NO_ATTENTION = {
    "flex_attention": "it compiles a kernel for each new number of tokens, and every step has another; use sdpa",
    "paged": "it needs the cache of continuous batching, which cannot be rolled back; use sdpa",
    "/": "it is code from the hub, and a config runs no code; use sdpa, or flash_attention_2 with the package "
    "flash-attn",
}
"""Attention implementations of transformers that are not supported, with the reason."""


def check_attention(value: Any) -> Any:
    """Return the name of an attention implementation.

    Raises:
        ValueError: It exists in transformers but cannot work here; the message has the reason.
    """
    for part, reason in _NO_ATTENTION.items():
        if isinstance(value, str) and part in value:
            raise ValueError(f"{value!r} is not supported: {reason}")
    return value


class ModelSettings(Validated):
    """Which model, and how it is loaded: passed through to `load_model`.

    A drafter whose settings derive from these drafts with that model, which must then have an encoder where the
    target has one, and only there; that is checked when a study is read.
    """

    model: Annotated[str, Field(min_length=1)]
    """A folder, a hub name, or a built-in one: `builtin:target`, `builtin:drafter`."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """`auto` is float32 on a CPU, else the dtype of the files."""
    device: str = "auto"
    """`cpu`, `cuda:1` and so on; `auto` is a GPU if there is one, and for a drafter the target's device."""
    device_map: str | dict[str, Any] | None = None
    """Spread the weights over devices: `auto`, `balanced`, `sequential`, or a mapping of modules."""
    max_memory: dict[str, int | str] | None = None
    """Memory of each device under `device_map: auto`, e.g. `{"0": 20GiB, cpu: 60GiB}`."""
    offload_folder: Path | None = None
    """Folder for weights that `device_map` leaves on disk."""
    revision: str | None = None
    """Branch, tag or commit of a hub model."""
    subfolder: str | None = None
    """Folder of the model within `model`."""
    attn_implementation: Annotated[AttentionName, BeforeValidator(check_attention)] | None = None
    """By default the model's own choice."""
    quantization_config: dict[str, Any] | None = None
    """Quantize while loading: `{load_in_4bit: true}`, or `quant_method` with its settings."""
    adapter: Annotated[str, Field(min_length=1)] | None = None
    """A PEFT adapter (LoRA): a folder or a hub name."""
    packed: bool | Literal["auto", "int8"] = "auto"
    """Pack the weights on a CPU: verifying is faster, for twice the memory. `auto` does, unless the model is tiny
    or memory is short. `int8` also rounds them to 8 bits."""
    compile: bool | Literal["auto"] = "auto"
    """Compile short forward passes: by TorchInductor on a CPU, as CUDA graphs on a GPU. `auto` does not."""

    @model_validator(mode="before")
    @classmethod
    def _no_code(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and "trust_remote_code" in data:
            raise ValueError(
                "'trust_remote_code' is not supported: a config runs no code. Remove it; in Python, "
                "load_model(..., trust_remote_code=True) runs the model's code"
            )
        return data

    @model_validator(mode="after")
    def _check_devices(self) -> Self:
        if self.device_map is not None and self.device != "auto":
            raise ValueError("'device' and 'device_map' are both given; use one of them")
        for name in ("max_memory", "offload_folder"):
            if getattr(self, name) is not None and self.device_map is None:
                raise ValueError(f"{name!r} requires 'device_map', e.g. device_map: auto")
        if self.packed in (True, "int8") and self.quantization_config is not None:
            raise ValueError("quantized weights cannot be packed; remove 'packed' or 'quantization_config'")
        if self.compile is True and self.device_map is not None:
            raise ValueError(
                "a model that is spread over devices cannot be compiled; remove 'compile' or 'device_map'"
            )
        return self


class ModelOptions(TypedDict, total=False):
    """The fields of `ModelSettings` and `TargetConfig` as keyword arguments, without `model`."""

    dtype: str
    device: str
    device_map: str | dict[str, Any] | None
    max_memory: dict[str, int | str] | None
    offload_folder: str | Path | None
    revision: str | None
    subfolder: str | None
    attn_implementation: str | None
    quantization_config: dict[str, Any] | None
    adapter: str | Path | None
    packed: bool | Literal["auto", "int8"]
    compile: bool | Literal["auto"]
    inflate: Mapping[str, int | None] | None
    exact_shapes: bool | int


class InflateConfig(Validated):
    """Add layers that change the target's cost but not its outputs, to study the c of larger models."""

    layers: Annotated[int, Field(ge=1)]
    """Number of layers to add."""
    width: Annotated[int, Field(ge=1)] | None = None
    """Feed-forward size of the added layers; by default the model's."""
    encoder_width: Annotated[int, Field(ge=1)] | None = None
    """The same for an encoder; by default `width`."""


class TargetConfig(ModelSettings):
    """The model whose distribution is preserved, and how it is loaded."""

    inflate: InflateConfig | None = None
    """Make the model slower without changing its distribution."""
    exact_shapes: bool | Annotated[int, Field(ge=2)] = False
    """Run every forward pass of a step over the same number of columns, so that greedy texts in bfloat16 or int8
    do not depend on the drafter. The number is one more than the longest draft, rounded up to a multiple of 16;
    `true` is 16."""

    def names(self) -> frozenset[str]:
        """Return the model and the adapter: folders, or names on the hub."""
        return frozenset(name for name in (self.model, self.adapter) if name is not None)

    @model_validator(mode="after")
    def _check_shapes(self) -> Self:
        if self.exact_shapes and self.compile is True:
            raise ValueError("'exact_shapes' and 'compile' are both given; use one of them")
        return self
