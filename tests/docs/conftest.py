"""What the tests of the site share."""

import pytest

from tests.docs.site import Site, build


@pytest.fixture(scope="session")
def built_site(tmp_path_factory) -> Site:
    """The site, built strictly, once."""
    pytest.importorskip("mkdocs", reason="the site is built with what the extra `docs` installs")
    return build(tmp_path_factory.mktemp("site"))
