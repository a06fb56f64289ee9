"""Decoding: the loop, its metrics, observers and result.

Plugins import these names from here.
"""

from specdec_core.decoding.drawing import greedy_request
from specdec_core.decoding.guard import failure_text
from specdec_core.decoding.rows import TokenView
from specdec_core.decoding.validation import check_form
from specdec_core.sampling.generators import row_seed

__all__ = ["TokenView", "check_form", "failure_text", "greedy_request", "row_seed"]
