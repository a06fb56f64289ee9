"""The trace of a decoding as an interactive figure: one HTML fragment for pages, reports and notebooks.

A trace is plain data that JSON can hold, as `TraceObserver.traces` returns it: `tokens`, their number; `greedy`;
and `steps`. A step has `begin`, `draft`, `verify` and `seconds`, in seconds, if it was timed, and its `items`, in
the order of Figure 1 of the paper: tokens with `text`, `fate`, and the numbers that decided it. This imports no
torch.
"""
