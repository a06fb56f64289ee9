"""The numbers that the paper and the slides print, to compare with the formulas.

All numbers are as printed, rounded by their authors.

References:
    Leviathan, Kalman, Matias: Fast Inference from Transformers via Speculative Decoding, arXiv 2211.17192v2.
    Tulsian, Goyal, Aggarwal: Fast Inference from Transformers via Speculative Decoding, slides of a course project
        that extends it ("the slides").
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TradeOff:
    """A row of Table 1 (section 3.5): operations and speed with c = c_hat = 0.

    Attributes:
        alpha: Expected acceptance rate.
        gamma: Tokens drafted per step.
        operations: Factor by which arithmetic operations grow, with two decimals; None if the paper does not print
            it.
        speed: Factor by which decoding gets faster, with two decimals.
    """

    alpha: float
    gamma: int
    operations: float | None
    speed: float


@dataclass(frozen=True)
class Runtime:
    """A row of Table 4 (appendix A.3): expected and measured speed of T5-XXL (11B).

    Attributes:
        task: EnDe (translation) or CNNDM (summaries).
        drafter: M_q.
        temperature: 0 is greedy.
        gamma: Tokens drafted per step.
        alpha: Expected acceptance rate, printed with at most two decimals.
        c: Cost coefficient, with two decimals, from profiler traces.
        expected: The column EXP, with one decimal.
        measured: The column EMP, with one decimal; the same as the column SPEED of Table 2.
    """

    task: str
    drafter: str
    temperature: int
    gamma: int
    alpha: float
    c: float
    expected: float
    measured: float


@dataclass(frozen=True)
class Alpha:
    """A row of Table 3 (section 4.2): an empirical alpha.

    Attributes:
        task: Task and target: LM1B (a GPT-like model of 97M parameters), EnDe and CNNDM (T5-XXL, 11B), or
            dialogue (LaMDA, 137B).
        drafter: M_q.
        temperature: 0 is greedy, 1 standard sampling.
        alpha: The mean of Corollary 3.6 over 10,000 tokens, with two decimals.
    """

    task: str
    drafter: str
    temperature: int
    alpha: float


@dataclass(frozen=True)
class SlideRow:
    """A row of a table of the slides, whose target is T5-Large.

    Attributes:
        task: EnDe or CNNDM.
        drafter: M_q.
        gamma: Tokens drafted per step; None if it is adaptive or not printed.
        alpha: Acceptance rate, with two decimals; None if it is not printed.
        bleu: Average BLEU, from 0 to 1.
        speed: Factor by which decoding gets faster.
    """

    task: str
    drafter: str
    gamma: int | None
    alpha: float | None
    bleu: float
    speed: float


@dataclass(frozen=True)
class Leniences:
    """Acceptance and improvement for each of `LENIENCES`, with T5-XXL as the target on EnDe (appendix A.5).

    Attributes:
        drafter: M_q.
        alphas: Expected acceptance rates, with two decimals.
        factors: Improvement factors from the text, with one decimal; empty if it has none.
    """

    drafter: str
    alphas: tuple[float, ...]
    factors: tuple[float, ...] = ()


TABLE_1 = (
    TradeOff(0.6, 2, 1.53, 1.96),
    TradeOff(0.7, 3, 1.58, 2.53),
    TradeOff(0.8, 2, 1.23, 2.44),
    TradeOff(0.8, 5, 1.63, 3.69),
    TradeOff(0.9, 2, 1.11, 2.71),
    TradeOff(0.9, 10, 1.60, 6.86),
)
"""Table 1, section 3.5."""

BIGRAM = TradeOff(0.2, 3, None, 1.25)
"""The bigram drafter on EnDe (sections 3.6 and 4.2): alpha about 0.2, c 0."""

TABLE_3 = (
    Alpha("LM1B", "unigram", 0, 0.03),
    Alpha("LM1B", "bigram", 0, 0.05),
    Alpha("LM1B", "GPT-like (6M)", 0, 0.88),
    Alpha("LM1B", "unigram", 1, 0.03),
    Alpha("LM1B", "bigram", 1, 0.05),
    Alpha("LM1B", "GPT-like (6M)", 1, 0.89),
    Alpha("EnDe", "unigram", 0, 0.08),
    Alpha("EnDe", "bigram", 0, 0.20),
    Alpha("EnDe", "T5-small", 0, 0.75),
    Alpha("EnDe", "T5-base", 0, 0.80),
    Alpha("EnDe", "T5-large", 0, 0.82),
    Alpha("EnDe", "unigram", 1, 0.07),
    Alpha("EnDe", "bigram", 1, 0.19),
    Alpha("EnDe", "T5-small", 1, 0.62),
    Alpha("EnDe", "T5-base", 1, 0.68),
    Alpha("EnDe", "T5-large", 1, 0.71),
    Alpha("CNNDM", "unigram", 0, 0.13),
    Alpha("CNNDM", "bigram", 0, 0.23),
    Alpha("CNNDM", "T5-small", 0, 0.65),
    Alpha("CNNDM", "T5-base", 0, 0.73),
    Alpha("CNNDM", "T5-large", 0, 0.74),
    Alpha("CNNDM", "unigram", 1, 0.08),
    Alpha("CNNDM", "bigram", 1, 0.16),
    Alpha("CNNDM", "T5-small", 1, 0.53),
    Alpha("CNNDM", "T5-base", 1, 0.55),
    Alpha("CNNDM", "T5-large", 1, 0.56),
    Alpha("dialogue", "LaMDA (100M)", 0, 0.61),
    Alpha("dialogue", "LaMDA (2B)", 0, 0.71),
    Alpha("dialogue", "LaMDA (8B)", 0, 0.75),
    Alpha("dialogue", "LaMDA (100M)", 1, 0.57),
    Alpha("dialogue", "LaMDA (2B)", 1, 0.71),
    Alpha("dialogue", "LaMDA (8B)", 1, 0.74),
)
"""Table 3, section 4.2."""

TABLE_4 = (
    Runtime("EnDe", "T5-small", 0, 7, 0.75, 0.02, 3.2, 3.4),
    Runtime("EnDe", "T5-base", 0, 7, 0.80, 0.04, 3.3, 2.8),
    Runtime("EnDe", "T5-large", 0, 7, 0.82, 0.11, 2.5, 1.7),
    Runtime("EnDe", "T5-small", 1, 7, 0.62, 0.02, 2.3, 2.6),
    Runtime("EnDe", "T5-base", 1, 5, 0.68, 0.04, 2.4, 2.4),
    Runtime("EnDe", "T5-large", 1, 3, 0.71, 0.11, 2.0, 1.4),
    Runtime("CNNDM", "T5-small", 0, 5, 0.65, 0.02, 2.4, 3.1),
    Runtime("CNNDM", "T5-base", 0, 5, 0.73, 0.04, 2.6, 3.0),
    Runtime("CNNDM", "T5-large", 0, 3, 0.74, 0.11, 2.0, 2.2),
    Runtime("CNNDM", "T5-small", 1, 5, 0.53, 0.02, 1.9, 2.3),
    Runtime("CNNDM", "T5-base", 1, 3, 0.55, 0.04, 1.8, 2.2),
    Runtime("CNNDM", "T5-large", 1, 3, 0.56, 0.11, 1.6, 1.7),
)
"""Table 4, appendix A.3, with the measured factors of Table 2, section 4.1."""

LENIENCES = (1.0, 0.5, 0.3, 0.1)
"""The leniences of appendix A.5."""

LENIENCE_C = 0.015
"""c of T5-small beside T5-XXL in appendix A.5."""

TABLE_5 = (
    Leniences("unigram", (0.07, 0.10, 0.11, 0.16)),
    Leniences("bigram", (0.19, 0.23, 0.25, 0.32)),
    Leniences("T5-small", (0.62, 0.71, 0.76, 0.84), (2.5, 3.1, 3.6, 5.0)),
    Leniences("T5-base", (0.68, 0.80, 0.83, 0.90)),
)
"""Table 5, appendix A.5: standard sampling, with T5-small of 77M parameters and T5-base of 250M.

The text gives no gamma for the factors of T5-small.
"""

GREEDY_LENIENCE = Leniences("T5-small", (0.75, 0.75, 0.80, 0.87), (3.3, 3.3, 3.9, 4.9))
"""Appendix A.5, last paragraph: greedy decoding."""

GREEDY_GAMMA = 8
"""gamma of the factors in `GREEDY_LENIENCE`."""

SLIDES_FIXED = (
    SlideRow("EnDe", "T5-Small", 3, 0.79, 0.73, 2.68),
    SlideRow("EnDe", "T5-Small", 7, 0.55, 0.68, 2.56),
    SlideRow("CNNDM", "T5-Small", 3, 0.48, 0.37, 2.11),
    SlideRow("CNNDM", "T5-Small", 7, 0.33, 0.36, 2.17),
)
"""Table 2 of the slides: fixed gammas."""

SLIDES_ADAPTIVE = (
    SlideRow("EnDe", "T5-Small", None, 0.68, 0.71, 2.61),
    SlideRow("CNNDM", "T5-Small", None, 0.47, 0.35, 2.33),
)
"""The slides' table on adaptive gamma, a running average of accepted tokens."""

SLIDES_HIERARCHY = (
    SlideRow("EnDe", "T5-Small", None, None, 0.723, 2.68),
    SlideRow("EnDe", "T5-Base", None, None, 0.730, 1.13),
    SlideRow("EnDe", "T5-Base on T5-Small", None, None, 0.728, 1.46),
)
"""The slides' table on hierarchies; drafters are named as in the slides, without the target."""
