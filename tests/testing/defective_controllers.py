"""Controllers with one planted defect each, and the check that must catch it."""

import random

import torch

from tests.testing.healthy import Confident, Following, Lenient, LosslessConfig, SizeConfig

GAMMAS: list[tuple[type, str]] = []
LENIENCES: list[tuple[type, str]] = []
"""Each defect with the check that must catch it."""


def caught_by(check):
    def planted(defect):
        (GAMMAS if issubclass(defect, Following) else LENIENCES).append((defect, check))
        return defect

    return planted


@caught_by("long_runs")
class GrowsWithoutEnd(Following):
    """Asks for two more after every draft accepted whole, beyond its own `max_gamma`."""

    def observe(self, session, report):
        rows = zip(session.gammas, report.outcome.drafted, report.outcome.accepted, strict=True)
        session.gammas = [gamma + 2 if accepted == drafted > 0 else 1 for gamma, drafted, accepted in rows]


@caught_by("finished_rows")
class ForgetsFinishedRows(Following):
    """Answers for the rows that go on, and not for all rows of the batch."""

    def observe(self, session, report):
        super().observe(session, report)
        session.gammas = [
            gamma for gamma, end in zip(session.gammas, report.outcome.finished, strict=True) if not end
        ]


@caught_by("long_runs")
class OneRow(Following):
    """Answers for one row, whatever the batch."""

    def plan(self, session):
        return session.gammas[:1]


@caught_by("long_runs")
class HalfTokens(Following):
    """Asks for a running average of tokens, and does not round it."""

    def observe(self, session, report):
        rows = zip(session.gammas, report.outcome.accepted, strict=True)
        session.gammas = [0.5 * gamma + 0.5 * accepted for gamma, accepted in rows]


@caught_by("rows_independent")
class OneGammaForAllRows(Following):
    """All rows follow the slowest one."""

    def plan(self, session):
        return [min(session.gammas)] * len(session.gammas)


@caught_by("batches_independent")
class CarriesGammaOn(Following):
    """Every batch goes on where another ended, as with the `heuristic` schedule of transformers."""

    steps = 0

    def plan(self, session):
        self.steps += 1
        return [self.steps % (self.max_gamma + 1)] * session.batch.batch_size


@caught_by("any_batch_size")
class RemembersTheFirstBatch(Following):
    """Answers for as many rows as its first batch had."""

    rows = None

    def plan(self, session):
        self.rows = self.rows or session.batch.batch_size
        return [1] * self.rows


@caught_by("global_state_unchanged")
class ReplacesItsSettings(Following):
    """Replaces its own config when it learns, as `num_assistant_tokens` of transformers does."""

    def open(self, batch):
        self.config = SizeConfig(max_gamma=max(self.config.max_gamma - 1, 1))
        return super().open(batch)


@caught_by("long_runs")
class ForgetsQuietRows(Confident):
    """Answers only for the rows that have just drafted a token."""

    def keep_drafting(self, confidence):
        return [value >= 0.3 for value in confidence if value == value]


@caught_by("long_runs")
class WritesIntoConfidence(Confident):
    """Replaces NaN in the list that it was given."""

    def keep_drafting(self, confidence):
        confidence[:] = [value if value == value else 0.0 for value in confidence]
        return super().keep_drafting(confidence)


@caught_by("deterministic")
class DrawsGlobally(Following):
    """Explores with Python's global random numbers, which have no seed."""

    def plan(self, session):
        return [random.randint(0, self.max_gamma) for _ in range(session.batch.batch_size)]


@caught_by("empty_drafts")
class DividesByDrafted(Following):
    """Takes the share of the draft that was accepted, also where nothing was drafted."""

    def observe(self, session, report):
        rows = zip(report.outcome.accepted, report.outcome.drafted, strict=True)
        session.gammas = [1 + round(accepted / drafted) for accepted, drafted in rows]


@caught_by("finished_rows")
class ExpectsABonus(Following):
    """Fails where a row has ended, to which nothing is committed any more."""

    def observe(self, session, report):
        super().observe(session, report)
        session.memory = [new[-1] for new in report.outcome.committed]


@caught_by("empty_drafts")
class CountsOnBeingAsked(Following):
    """Fails at a report of a step for which it was not asked, as happens once the drafter has failed."""

    def plan(self, session):
        session.memory = list(session.gammas)
        return session.memory

    def observe(self, session, report):
        assert session.memory is not None, "observe() before plan()"
        session.memory = None


@caught_by("long_runs")
class MovingMaximum(Following):
    """`max_gamma` is what it would ask for now."""

    most = 1

    @property
    def max_gamma(self):
        return self.most

    def observe(self, session, report):
        self.most = max(self.most, min(1 + max(report.outcome.accepted), 4))
        super().observe(session, report)


@caught_by("lossless")
class LearnsByGradient(Following):
    """Fits a model of acceptance by gradient descent: within the step of the core, torch records no gradients."""

    def observe(self, session, report):
        super().observe(session, report)
        weight = torch.zeros(1, requires_grad=True)
        ((torch.sigmoid(weight) - sum(report.outcome.accepted)) ** 2).sum().backward()


@caught_by("greedy_equals_baseline")
class NeedsSampling(Following):
    """Fails for greedy decoding, where there is no confidence."""

    def open(self, batch):
        if batch.greedy:
            raise NotImplementedError("confidence needs a temperature above 0")
        return super().open(batch)


@caught_by("global_state_unchanged")
class ReseedsTorch(Following):
    """Seeds torch's global generator for each batch, to be repeatable."""

    def open(self, batch):
        torch.manual_seed(0)
        return super().open(batch)


@caught_by("sessions_freed")
class KeepsItsBatches(Following):
    """Keeps the session of the last batch."""

    def open(self, batch):
        self.last = super().open(batch)
        return self.last


@caught_by("long_runs")
class FallsToZero(Lenient):
    """l falls with every rejection down to 0, where every draft would be accepted."""

    def learn(self, row, value, report):
        return max(value - 0.25 * (report.verified[row] > report.outcome.accepted[row]), 0.0)


@caught_by("long_runs")
class NotANumber(Lenient):
    """l is the accepted share of the verified tokens, and some steps verify none."""

    def learn(self, row, value, report):
        share = torch.tensor(float(report.outcome.accepted[row])) / report.verified[row]
        return float(share.clamp(0.3, 1.0))


@caught_by("long_runs")
class NoPositions(Lenient):
    """Answers with the rest of a schedule, which is empty at the end."""

    def observe(self, session, report):
        session.memory = (session.memory or 0) + 1

    def lenience(self, session):
        return [[1.0, 0.9, 0.8][session.memory or 0 :]] * session.batch.batch_size


@caught_by("lossless_as_declared")
class LosslessForAWhile(Lenient):
    """Its settings promise that l is 1 whatever happens, and it is not in a long text."""

    def __init__(self):
        super().__init__(LosslessConfig())

    def learn(self, row, value, report):
        return 1.0 if report.step < 100 else 0.4


@caught_by("rows_independent")
class OneStateForAllRows(Lenient):
    """A rejection in one row makes all rows lenient."""

    def lenience(self, session):
        return [min(session.values)] * len(session.values)


@caught_by("rows_independent")
class EndsWithTheFirstRow(Lenient):
    """Learns no more once the first row is full, however much room the others have."""

    def observe(self, session, report):
        if report.step < session.batch.room[0]:
            super().observe(session, report)


@caught_by("empty_drafts")
class FailsAtASkippedStep(Lenient):
    """Expects to be asked before every report, but is not asked in steps without a draft."""

    def lenience(self, session):
        session.memory = session.values
        return session.values

    def observe(self, session, report):
        assert session.memory is not None, "observe() before lenience()"
        session.memory = None


@caught_by("greedy_bound")
class NeedsATemperature(Lenient):
    """Fails for greedy decoding."""

    def open(self, batch):
        if batch.greedy:
            raise NotImplementedError("typical acceptance needs a temperature above 0")
        return super().open(batch)


@caught_by("probability_bound")
class FitsItsThreshold(Lenient):
    """Fits its threshold by gradient descent: within the step of the core, torch records no gradients."""

    def learn(self, row, value, report):
        torch.zeros(1, requires_grad=True).sum().backward()
        return value
