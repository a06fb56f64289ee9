"""Import of texts that another program generated into a record; the target is not loaded."""

from collections.abc import Sequence
from pathlib import Path

from specdec_core.interface.errors import ConfigError, reading
from specdec_core.interface.files import open_text
from specdec_core.interface.settings import GenerationSettings, SamplingSettings, TargetConfig
from specdec_core.interface.validated import validated
from specdec_core.models import load_outline
from specdec_core.offline.record.format import HEADER, PartHeader, Record, RecordedPrompts, RecordHeader, TextLine
from specdec_core.offline.record.recorded_target import fingerprint_tokenizer, save_tokenizer
from specdec_core.offline.record.store import RecordWriter
from specdec_core.offline.record.tasks import fingerprint_ids
from specdec_core.study.run.folder import exclusive_lock
from specdec_core.study.run.provenance import library_versions


def import_texts(
    source: Path,
    output: Path,
    target: TargetConfig,
    sampling: SamplingSettings,
    generation: GenerationSettings,
    *,
    folder: Path = Path(),
    fresh: bool = False,
) -> Record:
    """Write a record of texts that were generated elsewhere.

    Args:
        source: JSON lines, each a `TextLine`. Lines with the same prompt are its samples.
        output: Folder of the record.
        target: The model that generated the texts. Its config and tokenizer are read, its weights are not.
        sampling: The settings that it sampled with.
        generation: The length limit, stop strings, and whether texts go on after an end of sequence.
        folder: Base for a relative path of the target.
        fresh: Discard the record that is in the folder.

    Raises:
        ConfigError: A line cannot be used, or the folder holds a record.
        ModelError: The config or the tokenizer of the target cannot be read.
    """
    if (output / HEADER).exists() and not fresh:
        raise ConfigError(f"output {output} holds a record; --fresh replaces it, or choose another --output.")
    outline = load_outline(target.model, folder=folder, revision=target.revision, subfolder=target.subfolder)
    with reading(source, ConfigError, "JSON lines"), open_text(source) as file:
        lines = list(file)
    ends = () if generation.ignore_eos else outline.eos_ids
    found: dict[tuple[int, ...], list[TextLine]] = {}
    for count, data in enumerate(lines, start=1):
        if not data.strip():
            continue
        line = validated(TextLine, data, f"{source}: line {count}")
        if problem := _problem(line, outline.vocab_size, ends, sampling, generation):
            raise ConfigError(f"{source}: line {count}: {problem}")
        reason = "eos" if line.tokens[-1] in ends else line.finish_reason or "length"
        found.setdefault(line.prompt, []).append(line.model_copy(update={"finish_reason": reason}))
    if not found:
        raise ConfigError(f"{source} has no texts; expected a JSON object in each line.")
    if len({len(line.group) for same in found.values() for line in same}) > 1:
        raise ConfigError(f"{source}: all lines must have as many values in `group`.")
    texts = [
        line.model_copy(update={"number": number, "sample": sample, "id": line.id or str(number + 1), "turn": 1})
        for number, same in enumerate(found.values())
        for sample, line in enumerate(same)
    ]
    prompts = RecordedPrompts(count=len(found), tokens_sha256=fingerprint_ids(list(found)))
    header = RecordHeader(
        target=target,
        fingerprint=None,
        tokenizer=None if outline.tokenizer is None else fingerprint_tokenizer(outline.tokenizer),
        vocab_size=outline.vocab_size,
        eos_ids=outline.eos_ids,
        start_id=outline.start_id,
        max_length=outline.max_positions,
        versions=library_versions(),
        source=str(source),
        parts=(PartHeader(sampling=sampling, generation=generation, prompts=prompts, texts=len(texts)),),
    )
    with exclusive_lock(output, "recording"):
        writer = RecordWriter(output, header, fresh=fresh)
        save_tokenizer(output, target.model, outline.tokenizer)
        with writer.task(0, keep=0) as task:
            task.append(texts)
        return writer.record()


def _problem(
    line: TextLine,
    vocab_size: int,
    ends: Sequence[int],
    sampling: SamplingSettings,
    generation: GenerationSettings,
) -> str | None:
    """Return why the target cannot have generated the text of a line with these settings; None if it can."""
    if not (line.prompt and line.tokens):
        return "`prompt` and `tokens` must hold token ids."
    if max(*line.prompt, *line.tokens) >= vocab_size:
        return f"token ids of this target are below {vocab_size}."
    if len(line.tokens) > generation.max_new_tokens:
        return f"the text has {len(line.tokens)} tokens, and the length limit is {generation.max_new_tokens}."
    if set(line.tokens[:-1]) & set(ends):
        return "the text goes on after an end of sequence; was it generated with ignore_eos?"
    if line.logprobs is None and not sampling.greedy:
        return "the text was sampled, and has no `logprobs`."
    return None
