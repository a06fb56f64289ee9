"""The mutations still fit the code. Whether tests catch them is for `python -m tests.mutations` to say."""

from __future__ import annotations

import pytest

from tests.mutations.__main__ import ROOT, occurrences
from tests.mutations.mutations import MUTATIONS


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_mutation_applies_at_one_place_and_names_tests_that_exist(mutation):
    assert occurrences(mutation) == 1
    assert mutation.new != mutation.old
    for test in mutation.tests:
        assert (ROOT / test.split("::")[0]).exists()


def test_no_two_mutations_have_one_name():
    names = [mutation.name for mutation in MUTATIONS]
    assert len(set(names)) == len(names)
