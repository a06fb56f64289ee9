"""A study of toy drafters, what records its progress, and the order of its runs."""

import re

from specdec_core.study.run.runner import turns

STUDY = """\
target: {folder}
prompts: [a b c, d e, f]
generation: {{max_new_tokens: 12, ignore_eos: true}}
repeats: 2
runs:
  - {{drafter: echo, gamma: 2}}
  - {{name: lenient, drafter: {{name: echo, token: 3}}, gamma: 3, lenience: 0.5}}
"""


class Recorder:
    """Records the progress of a study, and can stop it after some repeats."""

    def __init__(self, stop_after=None):
        self.stages, self.totals, self.timed, self.resumed, self.done = [], [], [], [], []
        self.stop_after = stop_after

    def stage(self, what, total=None):
        self.stages.append(what)
        self.totals.append(total)

    def advance(self, done, note=""):
        self.done.append((self.stages[-1], done, note))
        if found := re.fullmatch(r"(.+), repeat (\d+): [\d.]+ tokens/s", note):
            self.timed.append((self.stages[-1].removesuffix("timing") + found[1], int(found[2])))
            if len(self.timed) == self.stop_after:
                raise KeyboardInterrupt

    def measured(self, point):
        self.resumed.append((point["repeats"], point["finished before"]))

    @property
    def loaded(self):
        return [what.removeprefix("loading ") for what in self.stages if what.startswith("loading ")]


def in_turn(task, *repeats):
    """Return the runs of some repeats of a task in the order in which they are timed."""
    return [(run.name, number) for number in repeats for run in turns(task, number)]
