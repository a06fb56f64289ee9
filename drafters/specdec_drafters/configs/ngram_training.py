"""What may be said about estimating n-grams. Importing this imports no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from specdec_core.border import TrainerConfig
from specdec_drafters.configs.basic import BUILTIN_TEXTS


class NgramTrainerConfig(TrainerConfig):
    """Estimate n-grams from exactly one of `text`, `ids` and `samples`, and write them as an ARPA file.

    For example, from the library of the running Python:

    ```
    specdec train ngram --text builtin:stdlib --order 3 --output stdlib.3.arpa
    ```
    """

    text: Annotated[str, Field(min_length=1)] | None = None
    """A UTF-8 text to count with the target's tokenizer, or `builtin:stdlib`, the library of this Python."""
    ids: Path | None = None
    """A file of the target's token ids, one sentence a line, as `lmplz` takes it."""
    samples: Annotated[int, Field(ge=1)] | None = None
    """How many tokens the target writes itself, at temperature 1, to be counted."""
    sources: Path | None = None
    """For `samples` of a target with an encoder: a JSONL file with a `source` a line, answered in turn."""
    order: Annotated[int, Field(ge=1)] = 3
    """The longest n-grams: 1 is a unigram, 2 a bigram."""
    split: Literal["document", "line"] = "document"
    """What of `text` counts as a sentence, over whose ends no n-gram reaches."""
    max_bytes: Annotated[int, Field(ge=1)] | None = None
    """The most bytes of `text` counted; by default a whole file, or 4 MB of `builtin:stdlib`."""
    seed: Annotated[int, Field(ge=0)] = 0
    """The seed of what the target writes for `samples`."""
    device: str = "auto"
    """Where the target writes: `cpu`, `cuda`, `cuda:1` ...; `auto` is a GPU where there is one."""

    @model_validator(mode="after")
    def _check_source(self) -> NgramTrainerConfig:
        sources = {"text": self.text, "ids": self.ids, "samples": self.samples}
        given = [name for name, value in sources.items() if value is not None]
        if len(given) != 1:
            raise ValueError(
                "give one of 'text' (a text to count), 'ids' (a file of token ids) and 'samples' (how many tokens "
                f"the target writes); {' and '.join(given) or 'none'} was given"
            )
        if self.sources is not None and self.samples is None:
            raise ValueError(f"'sources' are answered for 'samples'; they have no meaning for {given[0]!r}")
        if self.text is None:
            for name, is_set in (("max_bytes", self.max_bytes is not None), ("split", self.split != "document")):
                if is_set:
                    raise ValueError(f"{name!r} is about a text; it has no meaning for {given[0]!r}")
        elif self.text.startswith("builtin:") and self.text not in BUILTIN_TEXTS:
            raise ValueError(f"unknown built-in text {self.text!r}. Available: {', '.join(BUILTIN_TEXTS)}.")
        return self
