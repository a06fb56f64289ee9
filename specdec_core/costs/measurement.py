"""The file that `specdec measure` writes: the acceptance of drafters and the times of their steps."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from specdec_core.costs.forecast import requested_seconds
from specdec_core.costs.step_costs import FilePart, Machine, StepCosts, settings_key
from specdec_core.interface.errors import ConfigError, reading, unknown_name
from specdec_core.interface.files import write_text_file
from specdec_core.interface.validated import validated

Rate = Annotated[float, Field(ge=0, le=1)]
"""A share, from 0 to 1."""


class Acceptance(FilePart):
    """How often a drafter's tokens are accepted at one temperature."""

    temperature: Annotated[float, Field(ge=0)]
    """0 is greedy."""
    tokens: Annotated[int, Field(ge=1)]
    """Tokens of the target at which the drafter was asked for a draft."""
    alpha: Rate
    """E(sum_x min(p, q)) at the first position of a draft (Corollary 3.6); 0 if nothing was drafted."""
    low: Rate
    """Lower end of its 95% confidence interval over prompts."""
    high: Rate
    """Upper end of its 95% confidence interval over prompts."""
    by_position: tuple[Rate, ...]
    """Probability that the token at each position of a draft is accepted if those before it were, up to the last
    position at which a token was ever proposed."""
    proposed: tuple[Rate, ...]
    """Probability that a token is proposed at each position up to gamma if those before it were accepted; below 1
    for drafters that may propose fewer tokens than requested."""
    drafted: tuple[Rate, ...]
    """Share of drafts that reach each position up to gamma, accepted or not; the cost of drafting and verifying
    depends on it."""

    def rates(self, gamma: int) -> tuple[float, ...]:
        """Return the probability that each position up to gamma adds a token if those before it did.

        This is the acceptance rate times the probability that a token is proposed: section 3 knows no empty
        drafts, and a token that is not proposed counts as rejected.
        """
        rates = tuple(rate * there for rate, there in zip(self.by_position, self.proposed, strict=False))[:gamma]
        return rates + (0.0,) * (gamma - len(rates))

    def mean_seconds(self, step: tuple[float, ...]) -> tuple[float, ...]:
        """Return the mean seconds of a step in which 0, 1, ... gamma tokens are requested.

        Args:
            step: Seconds of a step whose draft has 0, 1, ... gamma tokens.
        """
        return requested_seconds(step, self.drafted[: len(step) - 1])


class DrafterMeasurement(FilePart):
    """The measurement of one drafter."""

    name: str
    """Name in tables."""
    settings: dict[str, Any]
    """Its settings, including its name."""
    draft_sampling: dict[str, Any] | None = None
    """Its own sampling settings; None if it uses those of the target."""
    acceptance: tuple[Acceptance, ...]
    """One for each temperature."""
    seconds: StepCosts
    """Times of its steps on this machine, by the length k = 0, 1, ... gamma of their draft."""


class Measurement(FilePart):
    """The result of `specdec measure`."""

    specdec_measurement: Literal[1] = 1
    """Version of the file format."""
    target: str
    """Name of the target."""
    device: str
    """Hardware of the target."""
    sampling: dict[str, Any]
    """Sampling settings, except the temperature."""
    versions: dict[str, str]
    """Versions of specdec and libraries."""
    drafters: Annotated[tuple[DrafterMeasurement, ...], Field(min_length=1)]
    """The drafters. T(k) and the overhead are those of the target, the same in all."""

    def choose(self, file: Path, drafter: str | None, temperature: float) -> tuple[DrafterMeasurement, Acceptance]:
        """Return a drafter, and its acceptance at a temperature.

        Args:
            file: The file, for messages.
            drafter: Name of the drafter; None if there is only one.
            temperature: 0 is greedy.

        Raises:
            ConfigError: If this was not measured; the message lists what was.
        """
        names = [one.name for one in self.drafters]
        if drafter is None and len(names) > 1:
            raise ConfigError(
                f"{file}: {len(names)} drafters were measured; set `drafter` to one of {', '.join(names)}."
            )
        if drafter is not None and drafter not in names:
            raise ConfigError(f"{file}: {unknown_name('drafter', drafter, names)}")
        found = self.drafters[0 if drafter is None else names.index(drafter)]
        for one in found.acceptance:
            if one.temperature == temperature:
                return found, one
        measured = ", ".join(f"{one.temperature:g}" for one in found.acceptance)
        raise ConfigError(
            f"{file}: {found.name} was not measured at temperature {temperature:g}; available: {measured}."
        )

    def machine(self, name: str) -> Machine:
        """Return the machine that this was measured on, for replays.

        Args:
            name: Its name in tables.
        """
        drafters = {settings_key(one.settings, one.draft_sampling): one.seconds for one in self.drafters}
        target = self.drafters[0].seconds.with_drafter(())
        return Machine(name, self.device, target, drafters)


def read_measurement(path: Path) -> Measurement:
    """Read a file that `specdec measure --output` wrote.

    Raises:
        ConfigError: If the file cannot be read, or is not a measurement.
    """
    with reading(path, ConfigError, "a measurement"):
        data = path.read_bytes()
    return validated(Measurement, data, f"{path}, which should be of `specdec measure --output`")


def write_measurement(path: Path, measurement: Measurement) -> None:
    """Write a measurement atomically."""
    write_text_file(path, measurement.model_dump_json(indent=2) + "\n")
