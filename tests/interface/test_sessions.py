"""The base class of draft sessions refuses what could not work inside a hierarchy."""

import pytest

from specdec_core.interface import DraftSession


def test_a_session_that_commits_must_be_able_to_roll_back():
    with pytest.raises(TypeError, match=r"Forgetful defines commit\(\).* must also define rollback\(lengths\)"):

        class Forgetful(DraftSession):
            def propose(self, request):
                raise NotImplementedError

            def commit(self, outcome):
                pass
