"""What a measurement may be asked for. Importing this imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    from specdec_core.border import PluginConfig
    from specdec_core.settings import SamplingSettings


class MeasureSettings(BaseModel):
    """How much is measured, and how."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)

    tokens: Annotated[int, Field(ge=1)] = 10_000
    """Tokens that the target generates for each drafter and temperature; section 4.2 has 10,000."""
    temperature: Annotated[tuple[Annotated[float, Field(ge=0)], ...], Field(min_length=1)] = (0.0, 1.0)
    """Temperatures of target and drafter; 0 is argmax."""
    lenience: Annotated[tuple[Annotated[float, Field(gt=0, le=1)], ...], Field(min_length=1)] = (1.0,)
    """Values of l (appendix A.5)."""
    gamma: Annotated[int, Field(ge=1, le=1000)] = 8
    """The longest draft."""
    batch_size: Annotated[int, Field(ge=1)] = 1
    """Prompts decoded together when steps are timed."""
    rows: Annotated[int, Field(ge=1)] = 8
    """Prompts decoded together when acceptance is measured, which does not depend on it; larger is faster."""
    timings: Annotated[int, Field(ge=1)] = 20
    """How often each length of draft is timed."""
    max_new_tokens: Annotated[int, Field(ge=1)] = 128
    """The longest text; at temperature 0, where a prompt has but one, longer ones make up for few prompts."""
    ignore_eos: bool = False
    """Generate on behind an end of sequence."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Seed of the texts."""


@dataclass(frozen=True)
class Subject:
    """A drafter that is to be measured.

    Attributes:
        name: What a table calls it; unique in a measurement.
        drafter: Its settings, name included.
        draft_sampling: Its own sampling settings; None for those of the target.
    """

    name: str
    drafter: PluginConfig
    draft_sampling: SamplingSettings | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """Its settings as plain data."""
        return self.drafter.model_dump(mode="json")
