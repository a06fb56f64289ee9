"""Suffix automata that grow and shrink with a sequence and know what followed where.

A suffix automaton reads, from its root, every part of a sequence and nothing else. A *state* stands for all parts
that end at the same positions; they are ends of the longest of them. Its *suffix link* leads to the state of the
next shorter end, which ends at more positions. So whatever comes to the end of the sequence lies on the links from
the state of the whole sequence to the root.

References:
    Blumer, Blumer, Haussler, Ehrenfeucht, Chen and Seiferas, "The smallest automaton recognizing the subwords of
    a text", Theoretical Computer Science 40, 1985: the automaton and its construction, one token at a time.

    Added to it are notes of what followed (`LatestPlaces`, `FrequentContinuations`), exact for parts of at most
    `longest` tokens, and a log by which the last tokens are taken back.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence

_ROOT, _NONE = 0, -1


class SuffixAutomaton(ABC):
    """The parts of one sequence, and its longest end that occurred before.

    A token costs amortised constant time plus one visit to each state that holds an end of at most `longest`
    tokens: a few in most sequences, `longest` in a run of one token. Memory is linear in the sequence.

    Why the notes are exact. Each token visits the states of all ends of at most `longest` tokens. The parts of a
    state end at the same positions, so a state with one part that short misses no visit. When a state is split,
    both halves have ended at the same positions until then: the new one takes over the notes. A split takes
    the shorter parts away, so a state that is too long to be visited never becomes short enough again.

    Args:
        longest: The most tokens that are matched.
        undo: How many tokens can be taken back for what they cost to add; for more, `extend` begins anew.
    """

    __slots__ = (
        "_end",
        "_length",
        "_lengths",
        "_links",
        "_log",
        "_longest",
        "_next",
        "_notes",
        "_undo",
        "_window",
    )

    def __init__(self, longest: int, undo: int = 0) -> None:
        self._longest = longest
        self._undo = undo
        self._clear()

    def _clear(self) -> None:
        self._length = 0
        # Of each state: its longest part's length, its suffix link, and where each token leads.
        self._lengths: list[int] = [0]
        self._links: list[int] = [_NONE]
        self._next: list[dict[int, int]] = [{}]
        # What subclasses note of each state.
        self._notes: tuple[list[int], ...] = self._first_notes()
        # The states of the whole sequence and of its last `longest` tokens.
        self._end = self._window = _ROOT
        # Of each of the last tokens: itself, `_end` and `_window` before it, the state it split, replaced notes.
        self._log: deque[tuple[int, int, int, int, list[int]]] = deque(maxlen=self._undo)

    def __len__(self) -> int:
        """How many tokens were taken in."""
        return self._length

    def extend(self, tokens: Sequence[int]) -> None:
        """Take in what `tokens`, the whole sequence, holds beyond the part that was taken in already."""
        lengths, links, following, longest = self._lengths, self._links, self._next, self._longest
        for token in tokens[self._length :]:
            end, window = self._end, self._window
            split = self._grow(token)
            self._log.append((token, end, window, split, self._note(token, window)))
            self._length += 1
            # `window` ended here with at least `longest` tokens or all there are, and so does what it leads to.
            window = following[window][token]
            while lengths[links[window]] >= longest:
                window = links[window]
            self._window = window

    def _grow(self, token: int) -> int:
        """Add the state of the sequence with `token` at its end; return the state that had to be split, or -1."""
        lengths, links, following = self._lengths, self._links, self._next
        state, split, new = self._end, _NONE, len(lengths)
        lengths.append(self._length + 1)
        following.append({})
        links.append(_ROOT)
        for notes in self._notes:
            notes.append(0)
        self._end = new
        while state != _NONE and (target := following[state].setdefault(token, new)) == new:
            state = links[state]
        if state == _NONE:
            return split
        if lengths[target] > lengths[state] + 1:
            split, target = target, self._split(target, lengths[state] + 1)
            while state != _NONE and following[state].get(token) == split:
                following[state][token] = target
                state = links[state]
        links[new] = target
        return split

    def _split(self, state: int, length: int) -> int:
        """Give the parts of `state` of at most `length` tokens, which end at a new place, a state of their own."""
        half = len(self._lengths)
        self._lengths.append(length)
        self._next.append(self._next[state].copy())
        self._links.append(self._links[state])
        self._links[state] = half
        for notes in self._notes:
            notes.append(notes[state])
        return half

    def rollback(self, length: int) -> None:
        """Forget all but the first `length` tokens.

        Further back than the log goes, all is forgotten: the next `extend` reads from the beginning.
        """
        surplus = self._length - length
        if surplus > len(self._log):
            self._clear()
        else:
            for _ in range(surplus):
                self._shrink()

    def _shrink(self) -> None:
        """Undo the last token, in the reverse order of `extend`."""
        token, end, window, split, replaced = self._log.pop()
        self._revoke(token, window, replaced)
        links, following = self._links, self._next
        new = self._end
        if split != _NONE:
            links[split] = links[new + 1]  # the half that was split off came right after the new state
        state = end
        while state != _NONE and following[state].get(token) == new:
            del following[state][token]
            state = links[state]
        if split != _NONE:
            while state != _NONE and following[state].get(token) == new + 1:
                following[state][token] = split
                state = links[state]
        del self._lengths[new:], links[new:], following[new:]
        for notes in self._notes:
            del notes[new:]
        self._end, self._window = end, window
        self._length -= 1

    def match(self) -> tuple[int, int]:
        """Return (size, state) of the longest end of the sequence, within `longest`, that occurred before."""
        # Only the state of the whole sequence ends nowhere else; the state it links to ends elsewhere as well.
        state = self._links[self._window] if self._window == self._end else self._window
        if state == _NONE:  # there is no sequence yet
            return 0, _ROOT
        return min(self._lengths[state], self._longest), state

    def locate(self, tokens: Sequence[int]) -> tuple[int, int]:
        """Return (size, state) of the longest end of other `tokens`, within `longest`, that is continued here."""
        following, links, lengths = self._next, self._links, self._lengths
        state = size = 0
        for token in tokens[-self._longest :]:
            while state != _ROOT and token not in following[state]:
                state = links[state]
                size = lengths[state]
            if token in following[state]:
                state = following[state][token]
                size += 1
        return self._followed(size, state)

    def _followed(self, size: int, state: int) -> tuple[int, int]:
        """Shorten a part of `size` tokens in `state` until it is within `longest` and a token follows it."""
        if size > self._longest:
            size = self._longest
            while self._lengths[self._links[state]] >= size:
                state = self._links[state]
        if state == self._end and state != _ROOT:
            state = self._links[state]
            size = self._lengths[state]
        return size, state

    @abstractmethod
    def continuation(self, tokens: Sequence[int], match: tuple[int, int], count: int) -> Sequence[int]:
        """Return at most `count` tokens that continue a match.

        Args:
            tokens: The sequence that was taken in.
            match: What `match` or `locate` returned, of at least one token.
            count: The most tokens wanted.
        """

    @abstractmethod
    def _first_notes(self) -> tuple[list[int], ...]:
        """Return the lists of notes, with the root's in them."""

    @abstractmethod
    def _note(self, token: int, window: int) -> list[int]:
        """Note that the ends of at most `longest` tokens, `window` and up its links, were followed by `token`."""

    @abstractmethod
    def _revoke(self, token: int, window: int, replaced: list[int]) -> None:
        """Put back what `_note` replaced."""


class LatestPlaces(SuffixAutomaton):
    """Continues a match with what followed its latest place.

    A place counts once a token follows it, so the end of the sequence never finds itself. Noted of each state is
    the position after the latest of its places.

    Args:
        longest: The most tokens that are matched.
        undo: How many tokens can be taken back cheaply.
        endless: Whether a copy that reaches the end of the sequence goes on in itself, as long as is asked.
    """

    __slots__ = ("_endless",)

    def __init__(self, longest: int, undo: int = 0, *, endless: bool = True) -> None:
        super().__init__(longest, undo)
        self._endless = endless

    def place(self, state: int) -> int:
        """Return the position after the latest place of a state that `match` or `locate` returned."""
        return self._notes[0][state]

    def continuation(self, tokens: Sequence[int], match: tuple[int, int], count: int) -> list[int]:
        """Return `count` tokens from the latest place on, or as many as there are; see the base class."""
        position = self.place(match[1])
        copied = list(tokens[position : position + count])
        if self._endless:
            period = self._length - position
            while len(copied) < count:
                copied.append(copied[-period])
        return copied

    def _first_notes(self) -> tuple[list[int], ...]:
        return ([0],)

    def _note(self, token: int, window: int) -> list[int]:  # noqa: ARG002  (only its position counts here)
        latest, links, position = self._notes[0], self._links, self._length
        replaced = []
        while window != _ROOT:
            replaced.append(latest[window])
            latest[window] = position
            window = links[window]
        return replaced

    def _revoke(self, token: int, window: int, replaced: list[int]) -> None:  # noqa: ARG002
        latest, links = self._notes[0], self._links
        for place in replaced:
            latest[window] = place
            window = links[window]


class FrequentContinuations(SuffixAutomaton):
    """Continues a match with the token that followed it most often, and so on after each token.

    Of tokens that followed equally often, the one that did so last is taken. After each token the match is
    again the longest end, of what the sequence and the copy hold by then, that a token follows in the sequence.
    Noted of each state are how often it occurred and the token to continue it with.

    Args:
        longest: The most tokens that are matched.
        undo: How many tokens can be taken back cheaply.
        shortest: The copy ends where fewer tokens match.
    """

    __slots__ = ("_shortest",)

    def __init__(self, longest: int, undo: int = 0, *, shortest: int = 1) -> None:
        super().__init__(longest, undo)
        self._shortest = shortest

    def continuation(
        self,
        tokens: Sequence[int],  # noqa: ARG002  (the automaton knows what followed)
        match: tuple[int, int],
        count: int,
    ) -> list[int]:
        """Return at most `count` tokens, each the most frequent after the match by then; see the base class."""
        best, following = self._notes[1], self._next
        size, state = match
        copied: list[int] = []
        while len(copied) < count and size >= self._shortest:
            token = best[state]
            copied.append(token)
            size, state = self._followed(size + 1, following[state][token])
        return copied

    def _first_notes(self) -> tuple[list[int], ...]:
        return [0], [0]

    def _note(self, token: int, window: int) -> list[int]:
        (counts, best), links, following = self._notes, self._links, self._next
        replaced = []
        counted = _NONE
        while window != _NONE:
            continuations = following[window]
            longer = continuations[token]
            if longer != counted:  # several ends may lead to one state
                counts[longer] += 1
                counted = longer
            replaced.append(best[window])
            rival = continuations.get(best[window], longer)  # a state that was never continued has no rival
            if counts[longer] >= counts[rival]:
                best[window] = token
            window = links[window]
        return replaced

    def _revoke(self, token: int, window: int, replaced: list[int]) -> None:
        (counts, best), links, following = self._notes, self._links, self._next
        counted = _NONE
        for choice in replaced:
            longer = following[window][token]
            if longer != counted:
                counts[longer] -= 1
                counted = longer
            best[window] = choice
            window = links[window]
