"""The requests of a server that gives their texts and not their names, and a drafter's session for each."""

from array import array
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from specdec_core.decoding.proposer import Proposer
from specdec_core.decoding.rows import TokenView
from specdec_core.decoding.validation import FINE, worst
from specdec_core.interface import Outcome
from specdec_core.interface.outcome import common_prefix


class Request:
    """One request and the drafter's session for it, which learns from the text what was committed.

    Args:
        text: `[n]` int32 or int64, its tokens so far, prompt first.
        proposer: Asks the drafter, which sees this request alone.
    """

    def __init__(self, text: NDArray[np.integer], proposer: Proposer) -> None:
        self._tokens: list[int] = text.tolist()
        self._view = (TokenView(self._tokens),)
        self._known = array("q", self._tokens)  # the same, to be compared in one go
        self._proposer = proposer
        self._draft: list[int] = []

    def __len__(self) -> int:
        return len(self._tokens)

    def begins(self, text: NDArray[np.integer]) -> bool:
        """Whether a text begins with everything that is committed here, so that the session can go on with it."""
        n = len(self._tokens)
        return n <= len(text) and bool((np.frombuffer(self._known, np.int64) == text[:n]).all())

    def draft(self, text: NDArray[np.integer], room: int) -> list[int]:
        """Commit what a text has beyond the tokens known here, and draft what follows.

        Args:
            text: `[n]`, a text that this request `begins`.
            room: The most tokens to draft.
        """
        self._commit(text[len(self._tokens) :].tolist())
        proposal, faults = self._proposer.propose(self._view, [room])
        fault = FINE if faults is None else worst(faults.tolist(), proposal.lengths)
        if fault != FINE:
            self._proposer.reject(fault)
        self._draft = [] if fault != FINE else proposal.tokens[0, : proposal.lengths[0]].tolist()
        return self._draft

    def close(self) -> None:
        """Close the drafter's session."""
        self._proposer.close()

    def _commit(self, new: list[int]) -> None:
        if not new:
            return
        # The last new token is never an accepted one. Of a draft that the server cut before it verified it, too
        # few tokens may count as accepted, never too many.
        accepted = common_prefix(self._draft, new[:-1])
        self._tokens += new
        self._known.extend(new)
        self._proposer.commit(Outcome((len(self._draft),), (accepted,), (tuple(new),), (False,)))
        self._draft = []


class Requests:
    """The requests of a server. Which row of its batch is which one follows from the texts.

    Rows move when others finish, and a row may pass from one request to another between two calls. Whatever
    happened, a session whose tokens are the beginning of a row's text is right for it, since a drafter's proposal
    depends on the committed tokens alone. A row that no session fits is a request that is new, or that returns
    with another text: it is read from the start.

    A session that no row fits is closed before others are opened, so that a drafter that remembers knows a
    finished request when the next one begins. A request that was only preempted is read again when it returns.

    Args:
        open_session: Returns what asks the drafter for one new request.
    """

    def __init__(self, open_session: Callable[[], Proposer]) -> None:
        self._open_session = open_session
        self._rows: dict[int, Request] = {}

    def draft(self, texts: Mapping[int, NDArray[np.integer]], room: Mapping[int, int]) -> dict[int, list[int]]:
        """Draft for some rows of the server's batch; return the tokens by row.

        Args:
            texts: The text of each row, `[n]` int32 or int64.
            room: The most tokens to draft for each.
        """
        known = self._known(texts)
        for request in self._rows.values():
            if request not in known.values():
                request.close()
        opened = {row: Request(text, self._open_session()) for row, text in texts.items() if row not in known}
        self._rows = known | opened
        return {row: self._rows[row].draft(text, room[row]) for row, text in texts.items()}

    def _known(self, texts: Mapping[int, NDArray[np.integer]]) -> dict[int, Request]:
        """Return the request of each row whose text one begins."""
        free = dict.fromkeys(self._rows.values())
        found: dict[int, Request] = {}
        for row, text in texts.items():  # most rows are where they were
            request = self._rows.get(row)
            if request is not None and request.begins(text):
                found[row] = request
                del free[request]
        for row, text in texts.items():
            request = None if row in found else _longest(text, free)
            if request is not None:
                found[row] = request
                del free[request]
        return found


def _longest(text: NDArray[np.integer], free: Mapping[Request, None]) -> Request | None:
    """Return the request that knows most of a text."""
    longest_first = sorted(free, key=len, reverse=True)
    return next((request for request in longest_first if request.begins(text)), None)
