"""Particles that scatter in a slab: a Monte Carlo simulation whose random step is costly.

    python examples/execution/scattering.py

At each collision, `angles` integrates the differential cross section of a screened Coulomb potential finely, which
gives the distribution of the scattering angle, and `fly` follows the particle through a rough medium to its next
collision. With a coarse integral as the approximation, both run side by side in two processes. The distribution of
the particles is that of the slow simulation, not that of the coarse integral.
"""

import math
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from random import Random
from time import monotonic

from specdec_core.execution import expected_speedup, speculate

BINS = 12
FINE, COARSE = 40_000, 1
"""Points of the integral in each bin of the angle."""
STEP = 2e-6
"""Length of the steps along the way to the next collision."""


def angles(energy: float, points: int = FINE) -> dict[int, float]:
    """Return the probability of each bin of the scattering angle."""
    screening = 0.3 / energy
    width = math.pi / BINS
    weights = []
    for one in range(BINS):
        angles = (width * (one + (n + 0.5) / points) for n in range(points))
        weights.append(sum(math.sin(t) / (math.sin(t / 2) ** 2 + screening) ** 2 for t in angles) / points)
    total = math.fsum(weights)
    return {one: weight / total for one, weight in enumerate(weights)}


def fly(angle: int) -> float:
    """Return how far a particle gets that leaves at an angle, through a medium of varying density."""
    direction = math.cos(math.pi * (angle + 0.5) / BINS)
    depth = absorbed = 0.0
    while absorbed < 1:
        depth += direction * STEP
        absorbed += (1 + 0.5 * math.sin(40 * depth)) * STEP
    return depth


def energies(particles: int) -> Iterator[float]:
    """Yield the energy of each particle when it collides."""
    yield from (1 + n % 5 for n in range(particles))


def main(particles: int = 25) -> None:
    """Simulate some collisions, one after another and side by side."""
    random = Random(0)
    begun = monotonic()
    for energy in energies(particles):
        weights = angles(energy)
        fly(random.choices(list(weights), list(weights.values()))[0])
    waiting = monotonic() - begun
    with ProcessPoolExecutor(2) as executor:
        executor.submit(fly, 0).result()  # starts the processes
        begun = monotonic()
        steps = [
            speculate(angles, fly, energy, guess=partial(angles, points=COARSE), executor=executor, random=random)
            for energy in energies(particles)
        ]
        seconds = monotonic() - begun
    print(steps[-1])
    took = {name: _mean(steps, name) for name in ("f", "g(guess)", "guess")}
    kept = sum(step.accepted for step in steps)
    expected = expected_speedup(kept / particles, took["f"], took["g(guess)"], took["guess"])
    print(f"{kept} of {particles} guesses kept")
    print(f"{waiting / seconds:.2f} times as fast as one after another, {expected:.2f} expected")


def _mean(steps: list, name: str) -> float:
    times = [span.end - span.begin for step in steps for span in step.spans if span.name == name and span.end]
    return sum(times) / max(len(times), 1)


if __name__ == "__main__":
    main()
