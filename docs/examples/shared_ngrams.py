"""Your own drafter that remembers earlier requests: later ones take fewer target forward passes."""

import threading
from collections.abc import Sequence

from specdec_core import Decoder, Drafter, PluginConfig, load_model
from specdec_core.interface import DraftRequest, DraftSession, Proposal, SessionInfo, TargetInfo


# --8<-- [start:drafter]
class SharedNgrams(Drafter):
    """Proposes what followed the last three tokens in an earlier request."""

    remembers = True

    def __init__(self, config: PluginConfig, target: TargetInfo) -> None:
        super().__init__(config, target)
        self.lock = threading.Lock()
        self.reset()

    def reset(self) -> None:
        self.followed_by: dict[tuple[int, ...], int] = {}

    def open(self, session: SessionInfo) -> DraftSession:  # noqa: ARG002
        return SharedNgramsSession(self)

    def learn(self, rows: Sequence[Sequence[int]]) -> None:
        new = {tuple(row[n - 3 : n]): row[n] for row in rows for n in range(3, len(row))}
        with self.lock:
            self.followed_by = {**self.followed_by, **new}  # open sessions keep the old one


class SharedNgramsSession(DraftSession):
    def __init__(self, drafter: SharedNgrams) -> None:
        self.drafter = drafter
        self.known = drafter.followed_by  # the snapshot
        self.rows: Sequence[Sequence[int]] = ()

    def propose(self, request: DraftRequest) -> Proposal:
        self.rows = request.tokens  # they grow with the sequences
        pairs = zip(request.tokens, request.budget, strict=True)
        return Proposal.from_rows([self.draft(row[-3:], n) for row, n in pairs])

    def draft(self, tokens: Sequence[int], budget: int) -> list[int]:
        trail = list(tokens)
        while len(trail) < len(tokens) + budget and tuple(trail[-3:]) in self.known:
            trail.append(self.known[tuple(trail[-3:])])
        return trail[len(tokens) :]

    def close(self) -> None:
        self.drafter.learn(self.rows)


# --8<-- [end:drafter]


def main() -> None:
    """Decode two prompts that are alike, and the second again after a reset."""
    target = load_model("builtin:target")
    drafter = SharedNgrams(PluginConfig(), target.info())
    decoder = Decoder(target, drafter, gamma=4, temperature=0)

    def calls(prompt: str) -> int:
        return decoder.generate(prompt, max_new_tokens=64).metrics.target_calls

    first, second = (f"def read_{what}(path):\n    with open(path) as" for what in ("lines", "words"))
    print(f"the first request: {calls(first)} forward passes")
    print(f"one like it: {calls(second)}")
    drafter.reset()
    print(f"the same after reset(): {calls(second)}")


if __name__ == "__main__":
    main()
