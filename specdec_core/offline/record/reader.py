"""A reader of records: the header at once, its texts as they are iterated. Importing this imports no torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from specdec_core.interface.errors import ConfigError, reading
from specdec_core.interface.files import input_path
from specdec_core.offline.record.file_errors import damaged, validated
from specdec_core.offline.record.format import (
    HEADER,
    PartHeader,
    PromptColumns,
    Record,
    RecordedText,
    RecordHeader,
)
from specdec_core.offline.record.shards import ShardInfo, read_info, read_shard, shard_name
from specdec_core.registry import shipped_file

TOKENIZER = "tokenizer"
"""Name of the folder with the target's tokenizer."""
FEATURES = "features.safetensors"
"""Name of the file with the target's embeddings."""
PROMPTS = "prompts.jsonl"
"""Name of the file with the columns of a part's prompts, which imports without groups and old records lack."""
"""The most bytes of a header."""


def part_folder(record: Path, number: int) -> Path:
    """Return the folder of a part's shards."""
    return record / f"part-{number}"


@dataclass(frozen=True)
class StoredPart:
    """The texts of one task, in shards on the disk; see `RecordPart`.

    Attributes:
        folder: Its folder.
        header: Settings of the texts.
        record: Header of the record.
        shards: What the metadata of its shards says.
    """

    folder: Path
    header: PartHeader
    record: RecordHeader
    shards: tuple[ShardInfo, ...]

    @property
    def tokens(self) -> int:
        """Number of tokens of all texts."""
        return sum(shard.tokens for shard in self.shards)

    @property
    def outgrown(self) -> int:
        """Number of turns that were not decoded, as their conversations had outgrown the context."""
        return sum(shard.outgrown for shard in self.shards)

    @cached_property
    def columns(self) -> tuple[PromptColumns, ...]:
        """What is known of each prompt."""
        path = self.folder / PROMPTS
        if not path.exists():
            return ()
        with reading(path, ConfigError, "the prompts of a record"), path.open(encoding="utf-8-sig") as lines:
            found = tuple(
                validated(PromptColumns, line, path, f"line {n}") for n, line in enumerate(lines, start=1)
            )
        if len(found) != (count := self.header.prompts.count):
            raise damaged(path, f"it has {len(found)} lines, and the part has {count} prompts")
        if len({len(one.group) for one in found}) > 1:
            raise damaged(path, "not all prompts have as many values in `group`")
        return found

    def __len__(self) -> int:
        return sum(shard.texts for shard in self.shards)

    def __iter__(self) -> Iterator[RecordedText]:
        last: RecordedText | None = None
        for shard in self.shards:
            for text in read_shard(shard, self.record, self.header):
                if last is not None and not _follows(text, last):
                    raise damaged(shard.path, "its texts do not follow those of the shard before it")
                yield (last := text)


def read_record(path: Path | str) -> Record:
    """Read a record; its texts are read when its parts are iterated.

    Args:
        path: Its folder, or one that ships, such as `builtin:code`.

    Raises:
        ModelError: No installed collection has this record.
        ConfigError: It is not a record, or damaged, or of another version of the format. Iterating a part raises
            it too, where a shard turns out to be damaged.
    """
    shipped = shipped_file(path, "record", HEADER)
    folder = input_path(path) if shipped is None else shipped.parent
    if not folder.is_dir():
        raise ConfigError(
            f"{path}: no such folder; `specdec record --output {path}` writes a record, and "
            "builtin:code is one that ships."
        )
    header = read_header(folder)
    parts = tuple(
        StoredPart(own := part_folder(folder, number), part, header, _shards(own, header, part))
        for number, part in enumerate(header.parts)
    )
    return Record(folder, header, parts)


def read_header(folder: Path) -> RecordHeader:
    """Read the header of a record.

    Raises:
        ConfigError: There is none, or it is damaged, or of another version.
    """
    path = folder / HEADER
    with reading(path, ConfigError, "the header of a record"), path.open("rb") as file:
        return validated(RecordHeader, file.read(), path)


def shards_of(folder: Path) -> Sequence[Path]:
    """Return the shards in the folder of a part, in order."""
    return sorted(folder.glob("shard-*.safetensors"))


def _follows(text: RecordedText, last: RecordedText) -> bool:
    """Whether a text may stand after another one."""
    if text.number == last.number:
        return text.sample > last.sample and text.prompt == last.prompt
    return text.number > last.number


def _shards(folder: Path, header: RecordHeader, part: PartHeader) -> tuple[ShardInfo, ...]:
    """Return the shards of a part, which must follow each other without a gap."""
    found: list[ShardInfo] = []
    texts = 0
    for number, path in enumerate(shards_of(folder)):
        if path.name != shard_name(number):
            raise damaged(folder / shard_name(number), "it is missing, and a later one is there")
        info = read_info(path, header, part)
        if info.first != texts:
            raise damaged(path, f"its first text has number {info.first}, and {texts} texts are before it")
        texts += info.texts + info.outgrown
        found.append(info)
    if texts > part.texts:
        raise damaged(folder, f"it has {texts} texts, and its header says {part.texts}")
    return tuple(found)
