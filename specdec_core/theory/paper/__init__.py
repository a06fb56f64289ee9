"""The tables and figures of the paper: the printed numbers, and what the formulas give."""
