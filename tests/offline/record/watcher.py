"""Receives the progress of a recording, and can stop it."""


class Watcher:
    """Receives progress; raises at one step if asked to."""

    def __init__(self, stop_at=None):
        self.stop_at = stop_at
        self.seen = []

    def stage(self, what, total=None):
        self.seen.append(what)

    def advance(self, done, note=""):
        self.seen.append(done)
        if self.stop_at is not None and done >= self.stop_at:
            raise KeyboardInterrupt

    def measured(self, point):
        pass
