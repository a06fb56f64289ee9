"""Studies: benchmarks that `specdec compare` reads, runs and reports. Importing this imports no torch."""

from typing import TYPE_CHECKING

from specdec_core._lazy import lazy_imports

if TYPE_CHECKING:
    from specdec_core.study.comparison import Comparison as Comparison
    from specdec_core.study.comparison import compare as compare
    from specdec_core.study.config.loader import MAX_RUNS as MAX_RUNS
    from specdec_core.study.config.loader import load_study as load_study
    from specdec_core.study.config.schema import StudyConfig as StudyConfig
    from specdec_core.study.config.schema import run_model as run_model
    from specdec_core.study.config.schema import study_model as study_model
    from specdec_core.study.config.schema import study_schema as study_schema
    from specdec_core.study.config.study import BASELINE as BASELINE
    from specdec_core.study.config.study import Run as Run
    from specdec_core.study.config.study import RunLabels as RunLabels
    from specdec_core.study.config.study import Study as Study
    from specdec_core.study.config.study import Task as Task

lazy_imports(globals())
