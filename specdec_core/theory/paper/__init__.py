"""The tables and figures of the paper: the printed numbers, and the results of the formulas."""
