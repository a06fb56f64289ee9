"""Studies: benchmarks that `specdec compare` reads, runs and reports. Importing this imports no torch."""

from specdec_core.study.comparison import Comparison, compare
from specdec_core.study.config.loader import MAX_RUNS, load_study
from specdec_core.study.config.schema import StudyConfig, run_model, study_model, study_schema
from specdec_core.study.config.study import BASELINE, Run, RunLabels, Study, Task

__all__ = [
    "BASELINE",
    "MAX_RUNS",
    "Comparison",
    "Run",
    "RunLabels",
    "Study",
    "StudyConfig",
    "Task",
    "compare",
    "load_study",
    "run_model",
    "study_model",
    "study_schema",
]
