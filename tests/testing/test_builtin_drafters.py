"""Every drafter that ships passes the kit that authors are given."""

from __future__ import annotations

import pytest

from specdec_core import default_registry
from specdec_core.testing import DrafterSubject, checks
from specdec_core.testing.instruments.world import world
from specdec_core.testing.kits import report_to_pytest
from tests.catalogue import DRAFTERS, Catalogue, plugin_of

# A hierarchy takes four times as long as others. What one on a chain may do wrong, one on a bigram may too.
JUDGED = [who for who in DRAFTERS if who != "hierarchy-chain"]


@pytest.fixture(scope="module")
def catalogues(device, tmp_path_factory):
    """Return what makes the drafters of a target, decoder-only or encoder-decoder."""
    kinds = {False: "decoder-only", True: "encoder-decoder"}
    return {
        encoder: Catalogue(world(encoder, device).target, tmp_path_factory.mktemp(name))
        for encoder, name in kinds.items()
    }


@pytest.fixture(scope="module")
def subjects(catalogues, device):
    """Return each drafter as the kit judges it, with what its plugin announced."""

    def subject(who):
        def make(target):
            return catalogues[target.encoder_decoder].make(who, afresh=True)

        spec = default_registry().spec("drafter", plugin_of(who))
        return DrafterSubject(make, spec.capabilities, device=device)

    return {who: subject(who) for who in JUDGED}


@pytest.mark.parametrize("check", checks("drafter"), ids=lambda check: check.name)
@pytest.mark.parametrize("who", JUDGED)
def test_a_drafter_conforms(subjects, who, check):
    report_to_pytest(check, subjects[who], None, required=check.required)
