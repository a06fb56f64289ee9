"""Your own drafter that remembers each user's requests: later ones take fewer target forward passes."""

import threading
from collections.abc import Sequence

from specdec_core import Decoder, Drafter, PluginConfig, load_model
from specdec_core.interface import DraftRequest, DraftSession, Proposal, SessionInfo, TargetInfo


# --8<-- [start:drafter]
class UserNgrams(Drafter):
    """Proposes what followed the last three tokens in an earlier request of the same user."""

    remembers = True

    def __init__(self, config: PluginConfig, target: TargetInfo) -> None:
        super().__init__(config, target)
        self.lock = threading.Lock()
        self.reset()

    def reset(self) -> None:
        self.known: dict[str | None, dict[tuple[int, ...], int]] = {}  # by user

    def open(self, session: SessionInfo) -> DraftSession:
        return UserNgramsSession(self, [each.get("user") for each in session.metadata])

    def learn(self, user: str | None, row: Sequence[int]) -> None:
        new = {tuple(row[n - 3 : n]): row[n] for n in range(3, len(row))}
        with self.lock:
            self.known[user] = {**self.known.get(user, {}), **new}  # open sessions keep the old one


class UserNgramsSession(DraftSession):
    def __init__(self, drafter: UserNgrams, users: Sequence[str | None]) -> None:
        self.drafter, self.users = drafter, users
        self.known = [drafter.known.get(user, {}) for user in users]  # the snapshot
        self.rows: Sequence[Sequence[int]] = ()

    def propose(self, request: DraftRequest) -> Proposal:
        self.rows = request.tokens  # they grow with the sequences
        each = zip(self.known, request.tokens, request.budget, strict=True)
        return Proposal.from_rows([self.draft(known, row[-3:], n) for known, row, n in each])

    def draft(self, known: dict[tuple[int, ...], int], tokens: Sequence[int], budget: int) -> list[int]:
        trail = list(tokens)
        while len(trail) < len(tokens) + budget and tuple(trail[-3:]) in known:
            trail.append(known[tuple(trail[-3:])])
        return trail[len(tokens) :]

    def close(self) -> None:
        for user, row in zip(self.users, self.rows, strict=False):  # no rows if it was never asked
            self.drafter.learn(user, row)


# --8<-- [end:drafter]


def main() -> None:
    """Decode two prompts that are alike, and the second again for another user and after a reset."""
    target = load_model("builtin:target")
    drafter = UserNgrams(PluginConfig(), target.info())
    decoder = Decoder(target, drafter, gamma=4, temperature=0)

    def calls(prompt: str, user: str) -> int:
        return decoder.generate(prompt, max_new_tokens=64, metadata={"user": user}).metrics.target_calls

    first, second = (f"def read_{what}(path):\n    with open(path) as" for what in ("lines", "words"))
    print(f"Ann's first request: {calls(first, 'ann')} forward passes")
    print(f"one like it: {calls(second, 'ann')}")
    print(f"the same of Bob: {calls(second, 'bob')}")
    drafter.reset()
    print(f"that of Ann after reset(): {calls(second, 'ann')}")


if __name__ == "__main__":
    main()
