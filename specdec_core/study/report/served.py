"""What to expect of the metrics of vLLM, from the steps that a study counted by its rules."""

from collections.abc import Sequence
from dataclasses import dataclass

from specdec_core.study.report.formats import number
from specdec_core.study.report.layout import Column, ReportTable, Row
from specdec_core.study.report.summary import RunSummary


@dataclass(frozen=True)
class ServedCounts:
    """The counters of vLLM that start with `vllm:spec_decode_num_`; expected values in a replay.

    Attributes:
        drafts: `drafts`: steps with a draft.
        draft_tokens: `draft_tokens`.
        accepted_per_pos: `accepted_tokens_per_pos`: accepted draft tokens at each position.
    """

    drafts: float
    draft_tokens: float
    accepted_per_pos: tuple[float, ...]

    @property
    def acceptance_length(self) -> float:
        """Tokens of a step with a draft, the recovered or bonus token included."""
        return 1 + sum(self.accepted_per_pos) / self.drafts

    @property
    def rates(self) -> tuple[float, ...]:
        """Share of the drafts whose token at each position is accepted, as vLLM logs it."""
        return tuple(accepted / self.drafts for accepted in self.accepted_per_pos)


def served_counts(run: RunSummary) -> ServedCounts | None:
    """Return the counters to expect of a run, for its prompts; None where it drafted nothing."""
    if run.config.get("deploy") is None:
        return None
    figures = run.speculative_decoding
    if figures is None:  # a replay, whose counts are sums over its texts
        pairs = zip(run.alpha_by_position, run.verified_by_position, strict=True)
        accepted = [alpha * verified for alpha, verified in pairs]
        drafts, drafted = next(iter(run.verified_by_position), 0), run.drafted
    else:
        steps = figures["acceptance_histogram"]
        accepted = [sum(steps[position:]) for position in range(1, len(steps))]
        drafts, drafted = figures["num_spec_steps"], figures["num_draft_tokens"]
    return ServedCounts(drafts, drafted, tuple(accepted)) if drafts else None


def served_table(runs: Sequence[RunSummary]) -> ReportTable | None:
    """Return what each run is expected to do in vLLM; None for a study that is not for it."""
    found = [(run, counts) for run in runs if (counts := served_counts(run)) is not None]
    rows = [
        Row(
            (
                run.name,
                number(counts.drafts, 0),
                number(counts.draft_tokens, 0),
                number(sum(counts.accepted_per_pos), 0),
                number(counts.acceptance_length, 2),
                " ".join(number(rate, 2) for rate in counts.rates),
            )
        )
        for run, counts in found
    ]
    columns = (
        Column("run", numeric=False),
        *(Column(name, spare=2) for name in ("drafts", "draft tokens", "accepted tokens")),
        Column("mean acceptance\nlength", note="Of steps with a draft alone, as vLLM has it."),
        Column("per-position\nacceptance rate", numeric=False),
    )
    return ReportTable(columns, tuple(rows), title="Expected in vLLM") if rows else None
