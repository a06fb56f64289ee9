"""The example notebook runs, and its results show themselves."""

import re
import warnings
from html import unescape

import nbclient
import nbformat
import pytest

from tests.docs.pages import ROOT

PATH = ROOT / "examples" / "notebook.ipynb"
pytestmark = pytest.mark.slow  # a kernel starts and imports torch


@pytest.fixture(scope="module")
def cells():
    """The code cells of the notebook after it was run."""
    notebook = nbformat.read(PATH, as_version=4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of jupyter's own libraries
        nbclient.NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(ROOT)}}).execute()
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def html_of(cell):
    return [output.data["text/html"] for output in cell.outputs if "text/html" in output.get("data", {})]


def test_generated_text_is_colored_by_where_its_tokens_come_from(cells):
    (html,) = html_of(cells[1])
    (text,) = re.findall(r"<pre>(.*?)</pre>", html, re.DOTALL)
    printed = "".join(output.text for output in cells[2].outputs)
    shown = unescape(re.sub(r"<[^>]+>", "", text)).replace("⏎\n", "\n")
    assert printed.startswith(shown)
    for origin in ("accepted", "recovered", "bonus"):
        assert f'<span class="{origin}" title' in html
    assert printed.splitlines()[-1] in unescape(html)


def test_the_study_shows_its_table_and_charts_and_the_progress_is_gone(cells):
    progress, comparison = html_of(cells[4])
    assert progress == ""
    page = unescape(comparison)
    assert all(f">{name}<" in page for name in ("baseline", "transformer-4", "prompt-copy-4"))
    assert "<svg" in page


def test_nothing_is_printed_beside_the_results(cells):
    # The first cell loads a model, of which transformers shows the progress.
    streams = [output for cell in cells[1:] for output in cell.outputs if output.output_type == "stream"]
    assert [output.name for output in streams] == ["stdout"]


def test_the_notebook_is_stored_without_outputs():
    notebook = nbformat.read(PATH, as_version=4)
    nbformat.validate(notebook)
    assert not [cell for cell in notebook.cells if cell.get("outputs") or cell.get("execution_count")]
