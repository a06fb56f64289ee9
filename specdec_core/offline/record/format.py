"""A record: texts of a target with the probability of each token, and facts of the target for drafters.

Given its text, what a drafter would have done follows from these probabilities; see `specdec_core.offline.replay`.
Importing this imports no torch.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator
from safetensors import safe_open

from specdec_core.costs.step_costs import FilePart, Machine, Seconds, Spread, StepCosts
from specdec_core.interface.errors import ConfigError, differences
from specdec_core.interface.settings import GenerationSettings, SamplingSettings, TargetConfig
from specdec_core.models.load.resolve import model_folder
from specdec_core.study.config.prompt_file import PromptText

HEADER = "record.json"
"""Name of the file with the header of a record."""
FinishReason: TypeAlias = Literal["eos", "stop", "length", "context"]
"""Why a text ended: at an end of sequence, a stop string, the length limit, or the end of the target's context."""
TokenId = Annotated[int, Field(ge=0)]


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
        metadata: That of the prompt.
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
    metadata: Mapping[str, Any] = field(default_factory=dict)
    hidden: NDArray[np.floating[Any]] | None = None
    top_tokens: NDArray[np.int64] | None = None
    top_probabilities: NDArray[np.float32] | None = None


def unreplayable(generation: GenerationSettings) -> list[str]:
    """Return the settings that no replay knows: a record holds texts, and p without a constraint."""
    fields, names = GenerationSettings.model_fields, ("constraint", "beams", "min_new_tokens")
    return [name for name in names if getattr(generation, name) != fields[name].default]


class RecordedPrompts(FilePart):
    """Where the prompts of a part come from."""

    settings: dict[str, Any] | None = None
    """Settings of the prompts, as a study states them; None for imported texts."""
    count: Annotated[int, Field(ge=0)]
    """Number of prompts."""
    sha256: str | None = None
    """Digest of the prompts as the study holds them; None for imported texts."""
    tokens_sha256: str | None = None
    """Digest of their token ids."""


class TextLine(FilePart):
    """A line of `task-N.jsonl`: a text with its prompt. A log to import has the same lines.

    A line without tokens is a turn that was not decoded, as its conversation had outgrown the context.
    """

    number: Annotated[int, Field(ge=0)] = 0
    """Number of the prompt in its task, from 0; an import counts the prompts."""
    sample: Annotated[int, Field(ge=0)] = 0
    """Number of the text of this prompt, from 0; an import counts the texts."""
    id: str = ""
    """Name of the prompt, such as a question id; by default its number, from 1."""
    source: str | None = None
    """Where the prompt comes from."""
    group: tuple[str, ...] = ()
    """The prompt's values of the columns that group prompts."""
    metadata: dict[str, str | int | float | None] = Field(default_factory=dict)
    """What drafters are told of the prompt, such as its user."""
    turn: Annotated[int, Field(ge=1)] = 1
    """Number of the turn in its conversation."""
    prompt: tuple[TokenId, ...] = ()
    """Token ids of the prompt; for encoder-decoder targets those of the source."""
    tokens: tuple[TokenId, ...] = ()
    """Token ids of the text, an end of sequence included."""
    logprobs: tuple[Annotated[float, Field(ge=-100, le=1e-4)], ...] | None = None
    """Natural logarithm of p of each token, in the distribution that it was drawn from; none if greedy."""
    finish_reason: FinishReason | None = None
    """Why the text ended; an import needs it for `stop` and `context` only."""

    @model_validator(mode="after")
    def _check_counts(self) -> Self:
        if self.logprobs is not None and len(self.logprobs) != len(self.tokens):
            raise ValueError(f"there are {len(self.tokens)} tokens and {len(self.logprobs)} log-probabilities")
        return self

    @classmethod
    def of(
        cls, prompt: PromptText, number: int, sample: int, text: RecordedText | None, sampling: SamplingSettings
    ) -> "TextLine":
        """Return the line that stores a text; None is a turn that was not decoded."""
        about = {name: getattr(prompt, name) for name in ("id", "source", "group", "metadata", "turn")}
        line = cls.model_validate({"number": number, "sample": sample, **about})
        if text is None:
            return line
        # With nine decimals, exp gives the same float32.
        logprobs = None if sampling.greedy else np.log(text.probabilities.astype(np.float64)).round(9).tolist()
        own = {"prompt": text.prompt, "tokens": text.tokens.tolist(), "finish_reason": text.finish_reason}
        return cls.model_validate({**line.model_dump(), **own, "logprobs": logprobs})

    def prompt_text(self) -> PromptText:
        """Return its prompt."""
        about = {name: getattr(self, name) for name in ("source", "group", "metadata", "turn")}
        return PromptText(self.id, None, tokens=self.prompt, **about)

    def text(self) -> RecordedText:
        """Return its text, without arrays."""
        logprobs = np.zeros(len(self.tokens)) if self.logprobs is None else np.minimum(self.logprobs, 0)
        return RecordedText(
            prompt=self.prompt,
            number=self.number,
            sample=self.sample,
            tokens=np.array(self.tokens, np.int64),
            probabilities=np.exp(logprobs).astype(np.float32),
            finish_reason=self.finish_reason or "length",
            metadata=self.metadata,
        )


class PartHeader(FilePart):
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


class VerifyTimes(FilePart):
    """T(k) of the machine that recorded: median seconds of a step by the length k = 0, 1, ... of its draft."""

    device: str
    """Hardware of the target."""
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
        return Machine("recorded", self.device, target)


class RecordHeader(FilePart):
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
    eos_ids: tuple[TokenId, ...]
    """Ids that end a sequence."""
    start_id: TokenId | None = None
    """First token of the decoder of an encoder-decoder target; None for the others."""
    max_length: Annotated[int, Field(ge=1)] | None = None
    """The most tokens of a sequence that the target takes; None for no limit."""
    most_uncached: Annotated[int, Field(ge=1)] | None = None
    """With recurrent layers, the most tokens that are read again with a draft; None for other targets."""
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

    @property
    def arrays(self) -> dict[str, int]:
        """The arrays in `task-N.safetensors`, and the size of the second axis of each."""
        hidden = {} if self.hidden_size is None else {"hidden": self.hidden_size}
        return hidden | dict.fromkeys(("top_tokens", "top_probabilities") if self.top_k else (), self.top_k)


@dataclass(frozen=True, eq=False)
class RecordPart:
    """The texts of one task. Iterating it yields them with their arrays, which are read one text at a time.

    Attributes:
        header: Settings of the texts.
        texts: The texts by prompt and sample, without the arrays that are in `arrays`.
        prompts: Each prompt by its number, as its first line has it; turns that were not decoded have no tokens.
        outgrown: Number of turns that were not decoded, as their conversations had outgrown the context.
        arrays: The file with hidden states and most probable tokens; None if there is none.
    """

    header: PartHeader
    texts: tuple[RecordedText, ...]
    prompts: tuple[PromptText, ...] = ()
    outgrown: int = 0
    arrays: Path | None = None

    @property
    def finished(self) -> bool:
        """Whether the task was recorded to its end."""
        return len(self.texts) + self.outgrown == self.header.texts

    def __len__(self) -> int:
        return len(self.texts)

    def __iter__(self) -> Iterator[RecordedText]:
        if self.arrays is None:
            yield from self.texts
            return
        with safe_open(self.arrays, framework="np") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118  (no mapping)
            start = 0
            for text in self.texts:
                end = start + len(text.tokens)
                yield replace(text, **{name: one[start:end] for name, one in slices.items()})
                start = end

    def conversation_of(self, number: int) -> int:
        """Return the number of the first turn of a prompt's conversation.

        Turns of a conversation resemble each other, as texts of a prompt do.
        """
        turn = self.prompts[number].turn if self.prompts else 1
        return number - turn + 1


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

    def naming(self, target: TargetConfig) -> Self:
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
