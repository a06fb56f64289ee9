"""A logits processor without state: it finds in the text where the thinking part began."""

import torch
from transformers import LogitsProcessor


class ThinkingBudget(LogitsProcessor):
    """Ends a thinking part that has a given number of tokens."""

    def __init__(self, begin: int, end: int, most: int) -> None:
        self.begin, self.end, self.most = begin, end, most  # ids of the two marks, and the budget

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        for ids, row in zip(input_ids.tolist(), scores, strict=True):
            since = ids[::-1].index(self.begin) if self.begin in ids else 0
            if since >= self.most and self.end not in ids[-since:]:
                row.fill_(-torch.inf)[self.end] = 0
        return scores
