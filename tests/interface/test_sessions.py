"""The base class of draft sessions refuses what could not work inside a hierarchy."""

from __future__ import annotations

import pytest

from specdec_core.interface import DraftSession


def test_a_session_that_commits_must_be_able_to_roll_back():
    with pytest.raises(TypeError, match=r"Forgetful defines commit\(\).* must also define rollback\(lengths\)"):

        class Forgetful(DraftSession):
            def propose(self, request):
                raise NotImplementedError

            def commit(self, outcome):
                pass


def test_a_session_may_inherit_its_rollback():
    class Base(DraftSession):
        def propose(self, request):
            raise NotImplementedError

        def rollback(self, lengths):
            pass

    class Committing(Base):
        def commit(self, outcome):
            pass

    assert Committing.rollback is Base.rollback
