"""Settings of a generation, as a study may state them. Importing this imports no torch."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class SamplingSettings(BaseModel):
    """How logits become the distribution that is sampled (standardised sampling, section 2.2).

    Each setting maps to the Hugging Face logits processor of the same name, applied in the order of the fields
    with `repetition_penalty` first, as the library's own `generate` does. Nothing is applied unasked.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)

    temperature: Annotated[float, Field(ge=0)] = 1.0
    """0 is argmax; 1 leaves the model's distribution as it is."""
    top_k: Annotated[int, Field(ge=1)] | None = None
    """Keep the k most probable tokens."""
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    """Keep the smallest set of tokens whose probabilities sum to at least this (nucleus sampling)."""
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    """Keep tokens at least this fraction as probable as the most probable one."""
    repetition_penalty: Annotated[float, Field(gt=0)] = 1.0
    """Divide the scores of tokens that stand in the prefix; 1 is off."""

    @property
    def argmax(self) -> bool:
        """Whether the most probable token is taken always."""
        return self.temperature == 0


class GenerationSettings(BaseModel):
    """How long to decode and from which seed."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)

    max_new_tokens: Annotated[int, Field(ge=1)] = 128
    """The most tokens appended to a prompt."""
    stop: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Strings that end a sequence; the token that completes one is the last one kept."""
    ignore_eos: bool = False
    """Decode to `max_new_tokens` whatever the model says: every run of a comparison does the same work."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Each sequence has a generator of its own, seeded with this and the sequence's number."""


class ModelSettings(BaseModel):
    """Which model, and how it is loaded: passed through to `load_model`.

    A drafter whose settings derive from these drafts with that model, which must then have an encoder where the
    target has one, and only there; that is checked when a study is read.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    model: Annotated[str, Field(min_length=1)]
    """A folder, a hub name, or a built-in one: `builtin:target`, `builtin:drafter`."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Number format of the weights; `auto` is float32 on a CPU, else the format they were saved in."""
    device: str = "auto"
    """`cpu`, `cuda`, `cuda:1` ...; `auto` is a GPU where there is one, and the target's device for a drafter."""
    device_map: str | dict[str, Any] | None = None
    """How to spread the weights over devices, e.g. `auto`; needs accelerate."""
    revision: str | None = None
    """Branch, tag or commit of a hub model."""
    trust_remote_code: bool = False
    """Run code that comes with the model. Only for sources you trust."""
    packed: bool = False
    """On a CPU, pack the weights for its library: a draft is verified in little more than the time of one token,
    for twice the memory."""
