"""The argmax form of lenience: strict where tokens are sampled."""

from __future__ import annotations

from specdec_core.border import BatchInfo, LenienceController, LenienceSession
from specdec_plugins.configs import ArgmaxLenienceConfig
from specdec_plugins.constant_lenience import ConstantLenienceSession


class ArgmaxLenience(LenienceController):
    """Keeps a draft token when p(x) >= l max p, p before the argmax; where tokens are sampled, l is 1.

    So l acts before standardisation: it compares a token with the best one, not p with q. In logits it is a margin
    of log(1 / l) below the best. `constant` does the same where decoding is argmax, and multiplies q where tokens
    are sampled; this one leaves sampling exact.

    References:
        Appendix A.5 of arXiv 2211.17192, which prints the inequality the other way round.
    """

    Config = ArgmaxLenienceConfig

    def open(self, batch: BatchInfo) -> LenienceSession:
        """Begin a batch."""
        lenience = float(self.config.lenience) if batch.argmax else 1.0
        return ConstantLenienceSession(lenience, batch.batch_size)
