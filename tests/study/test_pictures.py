"""Outputs as pictures in the report: their pixels, what is said of them, and that nothing hostile gets through."""

import base64
import io
import re

import numpy as np
import pytest
from pydantic import ValidationError

from specdec_core.study.config.prompts import PromptText
from specdec_core.study.config.schema import ImagesConfig
from specdec_core.study.report.html.html_report import report_page
from specdec_core.study.report.html.pictures import MAX_PICTURES, pictures
from specdec_core.study.report.quality import Output
from tests.study.page_elements import Elements
from tests.study.summaries import baseline, run

IMAGES = ImagesConfig(width=3, height=2, levels=5, first=10)
HOSTILE = "\"><script>alert('&')</script>"


def pixels(picture):
    """Return the pixels of a picture, `[H, W, 2]`: gray and opacity, as another decoder reads them."""
    Image = pytest.importorskip("PIL.Image")
    kind, _, data = picture.source.partition(",")
    assert kind == "data:image/png;base64"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(data, validate=True))))


def test_levels_go_from_black_to_white_and_anything_else_is_empty():
    (one,) = pictures([10, 11, 12, 13, 14, 9], IMAGES)
    gray, opaque = np.moveaxis(pixels(one), -1, 0)
    assert gray.tolist() == [[0, 64, 128], [191, 255, 0]]
    assert opaque.tolist() == [[255, 255, 255], [255, 255, 0]]
    assert one.words == "5 of 6 pixels drawn; 1 token(s) are not gray levels"
    assert (one.width, one.height) == (72, 48)


def test_an_unfinished_picture_has_its_size():
    (one,) = pictures([14, 14], IMAGES)
    assert pixels(one)[..., 1].tolist() == [[255, 255, 0], [0, 0, 0]]
    assert one.words == "2 of 6 pixels drawn"
    assert list(pictures([], IMAGES)) == []


def test_tokens_beyond_a_picture_begin_the_next():
    first, second = pictures([10] * 6 + [14] * 3, IMAGES)
    assert pixels(first)[..., 0].max() == 0
    assert pixels(second)[0, :, 0].min() == 255
    assert len(list(pictures([10] * 600, IMAGES))) == MAX_PICTURES


@pytest.mark.parametrize("levels", [2, 17, 256, 1000, 65_536])
def test_any_number_of_levels_fits_into_a_byte(levels):
    images = ImagesConfig(width=2, height=1, levels=levels)
    (one,) = pictures([0, levels - 1], images)
    assert pixels(one)[0, :, 0].tolist() == [0, 255]


@pytest.mark.parametrize(
    "changed", [{"width": 0}, {"height": 513}, {"levels": 1}, {"levels": 65_537}, {"first": -1}, {"color": 1}]
)
def test_sizes_that_make_no_picture_are_refused(changed):
    with pytest.raises(ValidationError, match=next(iter(changed))):
        ImagesConfig(**{"width": 3, "height": 2, "levels": 5, **changed})


@pytest.fixture
def drawn():
    """A page on which a run draws one of the pictures that the baseline draws, and another run is unfinished."""
    names = ("baseline", HOSTILE, "short")
    tokens = ([(10,) * 6, (11,) * 6], [(10,) * 6, (14,) * 6], [(10, 11)])
    outputs = {(None, name): [Output(one, None) for one in all_] for name, all_ in zip(names, tokens, strict=True)}
    prompts = [PromptText(HOSTILE, None, tokens=(3, 4)), PromptText("other", None, tokens=(5,))]
    runs = [baseline(), *(run(name) for name in names[1:])]
    return lambda images: report_page("study.yaml", runs, outputs, {None: prompts}, images)


def test_the_page_shows_the_pictures_of_each_run_and_says_what_they_are(drawn):
    elements = Elements(drawn(IMAGES))
    shown = elements.of("img")
    assert [one["alt"] for one in shown] == [
        f"baseline, prompt {HOSTILE}: 6 of 6 pixels drawn",
        "baseline, prompt other: 6 of 6 pixels drawn",
        f"{HOSTILE}, prompt {HOSTILE}: 6 of 6 pixels drawn; the baseline's picture",
        f"{HOSTILE}, prompt other: 6 of 6 pixels drawn",
        f"short, prompt {HOSTILE}: 2 of 6 pixels drawn",
    ]
    assert all(re.fullmatch("data:image/png;base64,[A-Za-z0-9+/=]+", one["src"]) for one in shown)
    assert elements.of("script") == []
    assert len(elements.of("caption")) == len(elements.of("table"))
    (policy,) = [one["content"] for one in elements.of("meta") if one.get("http-equiv")]
    assert "img-src data:" in policy
    start = elements.texts.index("Prompt, token ids")
    assert elements.texts[start + 1] == "3, 4"


def test_without_the_setting_there_are_no_pictures(drawn):
    text = drawn(None)
    assert "<img" not in text
    assert "<h3>Pictures</h3>" not in text
