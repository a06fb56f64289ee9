"""Tools of the tests of tuning: a study of toys, made-up times of steps, and progress that is kept."""

from __future__ import annotations

from specdec_core.costs import StepCosts
from specdec_core.measurement.measurement_file import DrafterMeasurement, Measurement, write_measurement

STUDY = """\
target: {folder}
prompts: [a b c, d e, f g h, a a, b d f h, c c e, h g, e f g]
sampling: {{temperature: 1.0, top_k: 4}}
generation: {{max_new_tokens: 10, ignore_eos: true, seed: 7}}
repeats: 1
runs:
  - {{drafter: {{name: echo, token: 2}}, grid: {{gamma: [1, 2, 3]}}}}
  - {{name: three, drafter: {{name: echo, token: 3}}, gamma: 2}}
"""


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


class OneText:
    """A part of a record with a single text."""

    def __init__(self, header, text):
        self.header, self.text = header, text

    def __len__(self):
        return 1

    def __iter__(self):
        return iter([self.text])


def write_times(path, drafts, verify=(1.0, 1.0, 1.0, 1.0), overhead=0.0, batch_size=1):
    """Write a measurement: D(k) of drafters by name, with their settings, and T(k) for all."""
    drafters = tuple(
        DrafterMeasurement(
            name=name,
            settings=settings,
            acceptance=(),
            seconds=StepCosts(draft=draft, verify=verify, overhead=overhead),
            c=0.1,
        )
        for name, (settings, draft) in drafts.items()
    )
    measurement = Measurement(
        target="tiny", device="paper", batch_size=batch_size, seed=0, sampling={}, versions={}, drafters=drafters
    )
    write_measurement(path, measurement)
    return path


def echo(token):
    """Return the settings of an echo, as a measurement has them."""
    return {"name": "echo", "token": token, "breaks": False}
