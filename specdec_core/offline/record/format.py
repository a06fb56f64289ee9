"""A record: texts of a target with the probability of each token, and facts of the target for drafters.

Given its text, what a drafter would have done follows from these probabilities; see `specdec_core.offline.replay`.
Importing this imports no torch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from specdec_core.costs import Machine, StepCosts
from specdec_core.costs.step_costs import Seconds, Spread
from specdec_core.interface.errors import ConfigError, differences
from specdec_core.interface.settings import GenerationSettings, SamplingSettings, TargetConfig
from specdec_core.models.load.resolve import model_folder

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

HEADER = "record.json"
"""Name of the file with the header of a record."""
FinishReason: TypeAlias = Literal["eos", "stop", "length", "context"]
"""Why a text ended: at an end of sequence, a stop string, the length limit, or the end of the target's context."""
_TokenId = Annotated[int, Field(ge=0)]


@dataclass(frozen=True, eq=False)
class RecordedText:
    """One text that the target generated for a prompt.

    Attributes:
        prompt: Token ids of the prompt; for encoder-decoder targets those of the source.
        number: Number of the prompt in its part, from 0.
        sample: Number of the text of this prompt, from 0; greedy parts have one each.
        tokens: `[L]` int64, the generated tokens, an end of sequence included.
        probabilities: `[L]` float32, p of each token after the sampling settings (section 2.2 of arXiv
            2211.17192); 1 where decoding is greedy.
        finish_reason: Why it ended: `eos`, `stop`, `length` or `context`.
        hidden: `[L, D]` float, the target's hidden state that each token was predicted from; None if the record
            holds none.
        top_tokens: `[L, k]` int64, the k most probable tokens at each position; None if the record holds none.
        top_probabilities: `[L, k]` float32, their p.
    """

    prompt: tuple[int, ...]
    number: int
    sample: int
    tokens: NDArray[np.int64]
    probabilities: NDArray[np.float32]
    finish_reason: FinishReason
    hidden: NDArray[np.floating[Any]] | None = None
    top_tokens: NDArray[np.int64] | None = None
    top_probabilities: NDArray[np.float32] | None = None


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class RecordedPrompts(_Part):
    """Where the prompts of a part come from."""

    settings: dict[str, Any] | None = None
    """Settings of the prompts, as a study states them; None for imported texts."""
    count: Annotated[int, Field(ge=0)]
    """Number of prompts."""
    sha256: str | None = None
    """Digest of the prompts as the study holds them; None for imported texts."""
    tokens_sha256: str | None = None
    """Digest of their token ids."""
    texts_sha256: str | None = None
    """Digest of imported texts."""


class PromptColumns(_Part):
    """What a line of `prompts.jsonl` says of a prompt, beside its tokens."""

    id: str
    """Its name, such as the question id of a benchmark."""
    source: str | None = None
    """Where it comes from."""
    group: tuple[str, ...] = ()
    """Its values of the columns that group the prompts, such as the category."""
    turn: Annotated[int, Field(ge=1)] = 1
    """Number of the turn in its conversation."""


class PartHeader(_Part):
    """Settings of the texts of one task."""

    task: str | None = None
    """Name of the task; None for the only one of a study without `tasks`."""
    sampling: SamplingSettings
    """The target's sampling settings."""
    generation: GenerationSettings
    """Length limits and the seed."""
    prompts: RecordedPrompts
    """Where the prompts come from: settings, and digests."""
    texts: Annotated[int, Field(ge=0)]
    """Number of texts when the part is whole: prompts times samples."""


class VerifyTimes(_Part):
    """T(k) of the machine that recorded: median seconds of a step by the length k = 0, 1, ... of its draft."""

    device: str
    """Hardware of the target."""
    batch_size: Annotated[int, Field(ge=1)] = 1
    """Sequences decoded together."""
    verify: Annotated[tuple[Annotated[Seconds, Field(gt=0)], ...], Field(min_length=1)]
    """The target's forward pass over k + 1 positions."""
    verify_spread: tuple[Spread, ...] = ()
    """How well each is known: half the 95% interval of the median over the median."""
    overhead: Seconds
    """A step outside of both models."""

    @property
    def machine(self) -> Machine:
        """The machine that recorded, for expectations."""
        target = StepCosts(verify=self.verify, overhead=self.overhead, verify_spread=self.verify_spread)
        return Machine("recorded", self.device, target, batch_size=self.batch_size)


class RecordHeader(_Part):
    """The content of `record.json`."""

    specdec_record: Literal[1] = 1
    """Version of the file format."""
    target: TargetConfig
    """Settings of the target, its name as `model` among them."""
    fingerprint: str | None
    """Digest of the target's weights; None if they could not be read, or the texts were imported."""
    tokenizer: str | None
    """Digest of the target's tokenizer; None without one."""
    vocab_size: Annotated[int, Field(ge=1)]
    """V, the number of logits."""
    eos_ids: tuple[_TokenId, ...]
    """Ids that end a sequence."""
    start_id: _TokenId | None = None
    """First token of the decoder of an encoder-decoder target; None for the others."""
    max_length: Annotated[int, Field(ge=1)] | None = None
    """The most tokens of a sequence that the target takes; None for no limit."""
    hidden_size: Annotated[int, Field(ge=1)] | None = None
    """D, if hidden states are stored."""
    top_k: Annotated[int, Field(ge=0)] = 0
    """Number of most probable tokens stored at each position."""
    times: VerifyTimes | None = None
    """T(k) of the machine that recorded."""
    versions: dict[str, str] = Field(default_factory=dict)
    """Versions of specdec and libraries."""
    source: str | None = None
    """The file that an imported record was read from; None for a recorded one."""
    parts: tuple[PartHeader, ...]
    """One for each task."""

    @field_validator("start_id")
    @classmethod
    def _check_start(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value is not None and value >= info.data.get("vocab_size", value + 1):
            raise ValueError(f"{value} is not a token id below the vocab_size")
        return value

    @property
    def encoder_decoder(self) -> bool:
        """Whether the target reads a source with an encoder."""
        return self.start_id is not None


class RecordPart(Protocol):
    """The texts of one task, read as they are iterated."""

    @property
    def header(self) -> PartHeader:
        """Its settings."""

    @property
    def columns(self) -> Sequence[PromptColumns]:
        """What is known of each prompt; empty if the record does not say it."""

    @property
    def outgrown(self) -> int:
        """Number of turns that were not decoded, as their conversations had outgrown the context."""

    def __len__(self) -> int:
        """Return the number of texts that are there."""

    def __iter__(self) -> Iterator[RecordedText]:
        """Yield the texts, by prompt and sample."""


def conversation_of(part: RecordPart) -> Callable[[int], int]:
    """Return a function from the number of a prompt to that of the first turn of its conversation.

    Turns of a conversation resemble each other, as texts of a prompt do.
    """
    starts: list[int] = []
    for number, one in enumerate(part.columns):
        starts.append(number if one.turn == 1 or not starts else starts[-1])
    return starts.__getitem__ if starts else int


def finished(part: RecordPart) -> bool:
    """Return whether a part was recorded to its end."""
    return len(part) + part.outgrown == part.header.texts


@dataclass(frozen=True)
class SomeTexts:
    """Some of the texts of a part; see `RecordPart`.

    Attributes:
        part: The part.
        chosen: Numbers of the texts, in ascending order.
    """

    part: RecordPart
    chosen: tuple[int, ...]

    @property
    def header(self) -> PartHeader:
        """Settings of the part."""
        return self.part.header

    @property
    def columns(self) -> Sequence[PromptColumns]:
        """What is known of each prompt of the part."""
        return self.part.columns

    @property
    def outgrown(self) -> int:
        """Number of turns of the part that were not decoded."""
        return self.part.outgrown

    def __len__(self) -> int:
        return len(self.chosen)

    def __iter__(self) -> Iterator[RecordedText]:
        wanted = set(self.chosen)
        last = self.chosen[-1] + 1 if self.chosen else 0
        return (text for number, text in enumerate(islice(self.part, last)) if number in wanted)


@dataclass(frozen=True)
class Record:
    """A record on disk.

    Attributes:
        path: Its folder.
        header: The content of `record.json`.
        parts: The texts of each task, in the order of the header.
        named: Models that the user names. The target is loaded from the hub only if it is among them.
    """

    path: Path
    header: RecordHeader
    parts: tuple[RecordPart, ...]
    named: frozenset[str] = frozenset()

    def naming(self, target: TargetConfig) -> Record:
        """Return this record with its target named by the user, which may then be loaded from the hub.

        Args:
            target: The target; settings that are not given are those of the record.

        Raises:
            ConfigError: The record has another target.
        """
        given = target.model_dump(mode="json", exclude_unset=True)
        there = self.header.target.model_dump(mode="json", include=set(given))
        if changes := differences(there, given):
            raise ConfigError(f"--target: {self.path} is a record of another target ({'; '.join(changes)}).")
        return replace(self, named=self.named | target.names())

    def check_named(self, folder: Path = Path(), otherwise: str = "") -> None:
        """Check that the user names a target of the hub, and not only the record.

        Args:
            folder: Base for a relative path of the target.
            otherwise: What else to do, for the message.

        Raises:
            ConfigError: It is on the hub, and not among `named`.
            ModelError: It is a folder, and there is none.
        """
        target = self.header.target
        for name in sorted(target.names() - self.named):
            if model_folder(name, folder) is None:
                whole = json.dumps({"model": target.model, "adapter": target.adapter})
                option = target.model if target.adapter is None else f"'{whole}'"
                raise ConfigError(
                    f"{self.path} names the target {name}, which is a hub name and no folder here. Only models "
                    f"that you name are loaded from the hub: pass --target {option}, or a study with this "
                    f"target{otherwise}."
                )
