"""What `import specdec_core` gives, and what it does not load."""

import subprocess
import sys

import pytest

import specdec_core


@pytest.mark.parametrize("name", specdec_core.__all__)
def test_every_public_name_is_there(name):
    assert getattr(specdec_core, name) is not None
    assert name in dir(specdec_core)


def test_a_name_that_is_not_there():
    with pytest.raises(AttributeError, match="has no attribute 'Decodr'"):
        specdec_core.Decodr  # noqa: B018


def test_importing_it_imports_no_torch():
    code = "import sys, specdec_core, specdec_core.theory, specdec_core.study; assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
