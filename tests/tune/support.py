"""What the tests of tuning share."""

from __future__ import annotations


class Seen:
    """Remembers the stages and points of the progress."""

    def __init__(self):
        self.stages, self.points = [], []

    def stage(self, what, total=None):
        self.stages.append(what)

    def advance(self, done, note=""):
        pass

    def measured(self, point):
        self.points.append(dict(point))
