"""Speculative execution (section 6 of arXiv 2211.17192): an agent calls a tool while its policy is still thinking.

    python examples/speculative_execution.py

The policy f takes half a second to return the probabilities of its tools, and calling a tool takes as long. A
small policy guesses at once, and the tool of its guess is called while f runs. The acceptance rule keeps or
replaces the guess, so that the tool has exactly the distribution that f returned. A rejected call is canceled;
calls must have no effect that matters then.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from random import Random
from time import monotonic
from typing import Any

Distribution = Mapping[str, float]


async def speculate(
    f: Callable[[str], Awaitable[Distribution]],
    g: Callable[[str], Awaitable[Any]],
    x: str,
    guess: Callable[[str], Awaitable[Distribution]],
    random: Random,
) -> tuple[str, Any, bool]:
    """Return an outcome with the distribution `f(x)`, what g returns for it, and whether it was guessed."""
    q = await guess(x)
    guessed = draw(q, random)
    started = asyncio.ensure_future(g(guessed))
    p = await f(x)
    if random.random() * q[guessed] < p.get(guessed, 0.0):
        return guessed, await started, True
    started.cancel()
    outcome = draw({y: max(0.0, weight - q.get(y, 0.0)) for y, weight in p.items()}, random)
    return outcome, await g(outcome), False


def draw(weights: Distribution, random: Random) -> str:
    """Return an outcome; the weights need not sum to 1."""
    return random.choices(list(weights), list(weights.values()))[0]


QUESTIONS = ["weather in Oslo", "7 * 191", "weather in Lima", "who wrote Dune", "12 / 5", "weather in Rome"]


async def policy(question: str) -> Distribution:
    """Return how likely each tool is to help, after a long thought."""
    await asyncio.sleep(0.5)
    if "weather" in question:
        return {"weather": 0.9, "search": 0.1}
    return {"calculator": 0.95, "search": 0.05} if any(map(str.isdigit, question)) else {"search": 1.0}


async def small_policy(question: str) -> Distribution:
    """Return the same, at a glance."""
    return {"weather": 1.0} if "weather" in question else {"calculator": 0.6, "search": 0.4}


async def call_tool(tool: str) -> str:
    """Ask a service."""
    await asyncio.sleep(0.5)
    return f"answer of {tool}"


async def main() -> None:
    """Answer the questions one after another."""
    random, begun, kept = Random(1), monotonic(), 0
    for question in QUESTIONS:
        _, answer, accepted = await speculate(policy, call_tool, question, small_policy, random)
        kept += accepted
        print(f"{question}: {answer}")
    print(f"{kept} of {len(QUESTIONS)} guesses kept")
    print(f"{len(QUESTIONS) / (monotonic() - begun):.2f} times as fast as waiting for every decision")


if __name__ == "__main__":
    asyncio.run(main())
