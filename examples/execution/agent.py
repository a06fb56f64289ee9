"""An agent that calls a tool on the decision it expects, while its policy is still thinking.

    python examples/execution/agent.py

The policy stands for a large model behind a network: half a second for a decision. The small policy answers at
once, and mostly knows. The tools only read, so calling one in vain does no harm.
"""

import asyncio
from random import Random
from time import monotonic

from specdec_core.execution import expected_speedup, speculate_async

QUESTIONS = ["weather in Oslo", "7 * 191", "weather in Lima", "who wrote Dune", "12 / 5", "weather in Rome"]


async def policy(question: str) -> dict[str, float]:
    """Return how likely each tool is to help, after a long thought."""
    await asyncio.sleep(0.5)
    if "weather" in question:
        return {"weather": 0.9, "search": 0.1}
    return {"calculator": 0.95, "search": 0.05} if any(map(str.isdigit, question)) else {"search": 1.0}


async def small_policy(question: str) -> dict[str, float]:
    """Return the same, at a glance."""
    await asyncio.sleep(0.02)
    if "weather" in question:
        return {"weather": 1.0}
    return {"calculator": 0.6, "search": 0.4}


async def call_tool(tool: str) -> str:
    """Ask a service."""
    await asyncio.sleep(0.4)
    return f"answer of {tool}"


async def main() -> None:
    """Answer the questions one after another, and compare with waiting for every decision."""
    random = Random(1)
    begun = monotonic()
    kept = 0
    for question in QUESTIONS:
        step = await speculate_async(policy, call_tool, question, guess=small_policy, random=random)
        kept += step.accepted
        print(f"{question}: {step.value}\n{step}\n")
    faster = len(QUESTIONS) * (0.5 + 0.4) / (monotonic() - begun)
    expected = expected_speedup(kept / len(QUESTIONS), f=0.5, g=0.4, guess=0.02)
    print(f"{kept} of {len(QUESTIONS)} guesses kept")
    print(f"{faster:.2f} times as fast as waiting for every decision, {expected:.2f} expected")


if __name__ == "__main__":
    asyncio.run(main())
