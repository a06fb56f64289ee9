"""The cost-aware controller: what it promises, in simulated seconds, and what it does on the way."""

from collections import Counter
from dataclasses import replace
from functools import cache
from itertools import cycle, product

import pytest
from pydantic import ValidationError

from specdec_core.interface import BatchInfo, Outcome, StepReport
from specdec_core.interface.controllers import FixedGamma, FixedGammaConfig
from specdec_plugins.gamma.cost_aware import CostAwareGamma, CostAwareGammaConfig
from tests.plugins.cost_aware_simulation import Drafter, Machine, Simulation, by_position, changing, constant

FIXED = (0, 1, 2, 3, 4, 6, 8)
PLAIN = 0.045
JUMPS = (0.045, 0.05, 0.056, 0.08, 0.086, 0.092, 0.098, 0.1, 0.105)
HUMPS = (0.045, 0.062, 0.078, 0.066, 0.06, 0.06, 0.064, 0.064, 0.07)
DRAFTERS = {
    **{f"alpha {alpha}": Drafter(constant(alpha)) for alpha in (0.05, 0.3, 0.6, 0.8, 0.95)},
    "worse behind": Drafter(by_position(0.8, 0.6, 0.4, 0.2, 0.1)),
    "better behind": Drafter(by_position(0.4, 0.7, 0.9, 0.95)),
    "copies": Drafter(constant(0.9), bursts=(0.02, 12)),
    "copies, rarely": Drafter(constant(0.9), bursts=(0.003, 20)),
    "good, then bad": Drafter(changing(0.85, 0.05, at=1000)),
    "bad, then good": Drafter(changing(0.05, 0.85, at=1000)),
}
MACHINES = {
    "flat": Machine((PLAIN,)),
    "jumps": Machine(JUMPS),
    "humps": Machine(HUMPS),
    "dear drafter": Machine((PLAIN,), c=0.3 * PLAIN, catch_up=0.01 * PLAIN),
    "jumps, dear drafter": Machine(JUMPS, c=0.3 * PLAIN, catch_up=0.01 * PLAIN),
}
STATES = {
    "quiet": {},
    "noisy": {"noise": 0.2, "outliers": 0.03},
    "drifting": {"noise": 0.05, "outliers": 0.01, "drift": 0.2},
}


def controller(**settings) -> CostAwareGamma:
    return CostAwareGamma(CostAwareGammaConfig(**settings))


@cache
def lengths(drafter: str, gamma: int, tokens: int, batches: int) -> tuple[int, dict[int, int]]:
    """Tokens of a fixed gamma, and its steps by length of draft: the same on every machine."""
    steps: Counter[int] = Counter()
    done = 0
    for seed in range(3):
        text = DRAFTERS[drafter].text(100 * seed)
        for _ in range(batches):
            left = tokens
            while left:
                drafted, accepted = text.draft(min(gamma, left - 1))
                steps[drafted] += 1
                left -= accepted + 1
            done += tokens
    return done, dict(steps)


def fixed(drafter: str, machine: Machine, gamma: int, tokens: int, batches: int) -> float:
    """Tokens a second of a fixed gamma, the reading of the prompt by the drafter included."""
    done, steps = lengths(drafter, gamma, tokens, batches)
    reading = 3 * batches * 100 * machine.catch_up if gamma else 0.0
    return done / (sum(count * machine.mean(k) for k, count in steps.items()) + reading)


def shares(drafter: str, machine: str, state: str, tokens: int, batches: int, seeds: int) -> tuple[float, float]:
    """Tokens a second of the controller over those of the best fixed gamma, and over those of plain decoding."""
    noisy = replace(MACHINES[machine], **STATES[state])
    rates = [
        Simulation(DRAFTERS[drafter], noisy, seed=seed).run(controller(), tokens, batches) for seed in range(seeds)
    ]
    rate = sum(rates) / seeds
    others = {gamma: fixed(drafter, noisy, gamma, tokens, batches) for gamma in FIXED}
    return rate / max(others.values()), rate / others[0]


def cases(drafters):
    """Every pair of a machine and a state, each drafter with three; every fourth drafter has a quick case."""
    conditions = list(product(MACHINES, STATES))
    count = max(len(conditions), 3 * len(drafters))
    chosen = [
        row for row, _ in zip(zip(cycle(drafters), cycle(conditions), strict=False), range(count), strict=False)
    ]
    chosen = [(drafter, *condition) for drafter, condition in chosen]
    first = {drafter: chosen.index(next(one for one in chosen if one[0] == drafter)) for drafter in drafters}
    quick = [*first.values()][::4]
    return [
        pytest.param(*one, marks=() if number in quick else pytest.mark.slow) for number, one in enumerate(chosen)
    ]


@pytest.mark.parametrize(("drafter", "machine", "state"), cases(DRAFTERS))
def test_the_promise(drafter, machine, state):
    """4,000 tokens, which are 500 to 4,000 steps."""
    best, plain = shares(drafter, machine, state, tokens=4000, batches=1, seeds=4 if state == "noisy" else 2)
    assert best >= 0.95
    assert plain >= 0.97


@pytest.mark.parametrize(
    ("drafter", "machine", "state"), cases(["alpha 0.05", "alpha 0.6", "alpha 0.95", "copies, rarely"])
)
def test_what_learning_costs_in_512_tokens(drafter, machine, state):
    """Eight prompts, one after another."""
    best, plain = shares(drafter, machine, state, tokens=64, batches=8, seeds=6)
    assert best >= 0.88
    assert plain >= 0.96


def asked_by(simulation: Simulation, made: CostAwareGamma, tokens: int) -> list[int]:
    return [report.asked[0] for report in simulation.steps(made, tokens)]


def test_it_turns_itself_off_and_on_again():
    rates = {0: 0.9, 1: 0.02, 2: 0.9}
    drafter = Drafter(lambda position, written: rates[min(written // 1500, 2)])
    machine = Machine(JUMPS, c=0.2 * PLAIN)
    written, gammas = [0], []
    for report in Simulation(drafter, machine).steps(controller(), 4500):
        gammas.append(report.asked[0])
        written.append(written[-1] + len(report.outcome.committed[0]))
    by_part = [[gamma for gamma, start in zip(gammas, written, strict=False) if low <= start < low + 500]
               for low in (1000, 2500, 4000)]  # fmt: skip
    on, off, again = (sum(gamma > 0 for gamma in part) / len(part) for part in by_part)
    assert on > 0.95
    assert off < 0.1
    assert again > 0.95


def test_a_drafter_that_was_slow_to_warm_up_gets_another_chance():
    """Its first drafts take ten steps' time each, and its first one after a pause always takes three more."""
    text, asked = Drafter(constant(0.8)).text(0), []
    session = controller().open(BatchInfo(1, 8, (5000,), greedy=False))
    for step in range(1500):
        asked.append(session.plan()[0])
        drafted, accepted = text.draft(asked[-1])
        pause = drafted > 0 and not any(asked[-5:-1])
        slow = 10.0 if drafted and step < 100 else 1.0
        session.observe(report(step, [drafted], [drafted], [accepted], slow + 3.0 * pause))
    assert not any(asked[60:100])
    assert all(asked[1400:])


def test_a_drafter_that_never_helps_is_hardly_asked():
    asked = asked_by(Simulation(DRAFTERS["alpha 0.05"], MACHINES["jumps, dear drafter"]), controller(), 4000)
    assert sum(map(bool, asked[200:])) < 0.06 * len(asked)
    assert sum(map(bool, asked[200:])) > 0  # but asked it is


def test_times_of_long_ago_weigh_almost_nothing_and_not_less():
    made = controller(decay_steps=10, exploration=0)  # a draft is timed in the first steps, and not again
    simulation = Simulation(Drafter(constant(0.0)), MACHINES["dear drafter"], seed=1)
    assert asked_by(simulation, made, 8000)[-1] == 0


def test_a_row_gets_what_the_batch_gets():
    session = controller().open(BatchInfo(3, 8, (64,) * 3, greedy=False))
    for step in range(40):
        gammas = session.plan()
        assert len(gammas) == 3
        assert len(set(gammas)) == 1
        # One row is at its end, one always right, one always wrong.
        drafted = (0, gammas[0], gammas[0])
        new = ((), (1,) * (gammas[0] + 1), (1,))
        session.observe(
            StepReport(step, drafted, Outcome(drafted, (0, gammas[0], 0), new, (True, False, False)), ((),) * 3,
                       0.0, 0.01, 0.01, (0.0,) * 3)
        )  # fmt: skip
    # Of two rows that go on, one in two keeps everything: the row that has ended counts for nothing.
    assert session.plan()[0] == 8


@pytest.mark.parametrize("rows", [4, 8])
def test_a_batch_of_rows(rows):
    """Rows like one another do as well together as one does alone."""
    machine = replace(MACHINES["jumps"], noise=0.05)
    rates = [Simulation(DRAFTERS["alpha 0.8"], machine, rows=rows).run(made, 600) for made in
             (controller(), *(FixedGamma(FixedGammaConfig(gamma=gamma)) for gamma in FIXED))]  # fmt: skip
    assert rates[0] >= 0.95 * max(rates[1:])


def test_what_was_learnt_outlives_a_batch():
    machine = MACHINES["jumps, dear drafter"]
    bad, made = Simulation(DRAFTERS["alpha 0.05"], machine), controller()
    first = asked_by(bad, made, 64)
    for _ in range(5):
        asked_by(bad, made, 64)
    later = asked_by(bad, made, 64)
    assert any(first[:10])
    assert later[0] == 0
    assert sum(later) < sum(first) / 2
    # Seconds are those of a batch size, acceptance is that of the text.
    other = asked_by(Simulation(DRAFTERS["alpha 0.05"], machine, rows=2), made, 64)
    assert sum(map(bool, other)) < sum(map(bool, first))


def test_the_time_of_a_prompt_is_not_that_of_a_step():
    """Batches that end with their first step leave open what plain decoding takes: it is measured next."""
    made = controller()
    for _ in range(50):
        session = made.open(BatchInfo(1, 8, (64,), greedy=False))
        gamma = session.plan()[0]
        assert gamma > 0
        session.observe(report(0, [gamma], [gamma], [gamma], 1.0))
    assert session.plan()[0] == 0


def test_room_that_is_always_short():
    """Within a hierarchy the level above never asks for more than three tokens: gamma is chosen knowing that."""
    made = controller()
    session = made.open(BatchInfo(1, 8, (10_000,), greedy=False))
    drafter, seconds, asked = Drafter(constant(0.4)).text(0), 0.0, []
    plain = 0.0
    for step in range(3000):
        gamma = session.plan()[0]
        asked.append(gamma)
        drafted, accepted = drafter.draft(min(gamma, 3))
        took = JUMPS[drafted]
        seconds, plain = seconds + took, plain + (accepted + 1) * JUMPS[0]
        session.observe(report(step, [min(gamma, 3)], [drafted], [accepted], took))
    # 1.4 tokens in 0.05 s are best; three drafted tokens take 0.08 s and bring 1.62.
    assert Counter(asked[300:]).most_common(1)[0][0] in (1, 2)
    assert plain / seconds > 1.2


def report(step, asked, drafted, accepted, seconds) -> StepReport:
    return StepReport(
        step, tuple(asked),
        Outcome(tuple(drafted), tuple(accepted), tuple((1,) * (n + 1) for n in accepted), (False,) * len(drafted)),
        tuple((1,) * n for n in drafted), 0.0, seconds, seconds, (0.0,) * len(drafted),
    )  # fmt: skip


def test_given_seconds_leave_the_clock_out():
    given = [JUMPS[k] + 0.1 * PLAIN * k for k in range(9)]
    quiet, noisy = MACHINES["jumps"], replace(MACHINES["jumps"], noise=0.4, outliers=0.3)
    choices = [
        asked_by(Simulation(DRAFTERS["alpha 0.8"], machine), controller(seconds=given), 500)
        for machine in (quiet, noisy)
    ]
    assert choices[0] == choices[1]
    # 1.8 tokens in 0.0545 s, 2.44 in 0.065 s, 2.95 in 0.0935 s.
    assert Counter(choices[0][100:]).most_common(1)[0][0] == 2


def test_seconds_that_do_not_fit_say_what_would():
    with pytest.raises(ValidationError, match=r"max_gamma \+ 1 = 9 numbers.*; got 3"):
        CostAwareGammaConfig(seconds=(1, 2, 3))
