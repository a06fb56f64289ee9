"""The pictures of the digits' recipe as token ids, from a file such as scikit-learn's, and its objective."""

from __future__ import annotations

import gzip
import sys

import numpy as np
import pytest
import torch

from recipes.builtin_digits import data, train
from recipes.builtin_digits.data import PIXELS, read_digits, read_ids, shifted


@pytest.fixture
def csv(tmp_path):
    """A file of 300 pictures: their classes in turn, their pixels the numbers 0 to 16 in turn."""
    numbers = np.arange(300 * PIXELS).reshape(300, PIXELS) % 17
    table = np.concatenate([numbers, np.arange(300)[:, None] % 10], axis=1)
    path = tmp_path / "digits.csv.gz"
    with gzip.open(path, "wt") as file:
        np.savetxt(
            file, table, delimiter=","
        )  # numbers such as 5.000000000000000000e+00, as scikit-learn's file has
    return path


def test_a_picture_is_a_class_and_its_pixels(csv):
    pictures = read_digits(csv)
    assert pictures.shape == (300, 65)
    assert pictures[12, :4].tolist() == [17 + 2, (12 * 64) % 17, (12 * 64 + 1) % 17, (12 * 64 + 2) % 17]
    assert pictures[:, 1:].max() == 16


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (",".join(["1"] * 64), "expected lines of 64 levels and a class; found 64"),
        (",".join([*["17"] * 64, "1"]), "expected levels 0 to 16"),
        (",".join([*["1"] * 64, "10"]), "classes 0 to 9"),
        (",".join([*["0.5"] * 64, "1"]), "expected levels"),
        (",".join([*["-1"] * 64, "1"]), "expected levels"),
    ],
)
def test_another_file_is_refused(tmp_path, line, message):
    path = tmp_path / "digits.csv"
    path.write_text(line + "\n")
    with pytest.raises(ValueError, match=message):
        read_digits(path)


def test_without_a_file_and_scikit_learn_it_says_what_to_do(monkeypatch):
    monkeypatch.setattr(data, "find_spec", lambda _: None)
    with pytest.raises(FileNotFoundError, match="pip install scikit-learn, or give --csv FILE"):
        read_digits(None)


def test_a_shift_moves_pixels_and_loses_a_border():
    picture = np.array([[20, *range(64)]])
    grid = np.arange(64).reshape(8, 8)
    down = shifted(picture, 1, 0)
    assert down[0, 0] == 20
    assert (down[0, 1:].reshape(8, 8)[1:] == grid[:-1]).all()
    assert (down[0, 1:9] == 0).all()
    right = shifted(picture, 0, 1)[0, 1:].reshape(8, 8)
    assert (right[:, 1:] == grid[:, :-1]).all()
    assert (right[:, 0] == 0).all()
    assert (shifted(shifted(picture, -1, 0), 1, 0)[0, 9:] == picture[0, 9:]).all()


def test_the_files_hold_out_the_last_pictures(csv, tmp_path, monkeypatch, capsys):
    given = [
        "--csv",
        str(csv),
        "--work",
        str(tmp_path / "work"),
        "--provenance",
        str(tmp_path / "provenance.json"),
    ]
    monkeypatch.setattr(sys, "argv", ["data", *given])
    data.main()
    assert "3 pictures to train on, 297 held out" in capsys.readouterr().out
    pictures = read_digits(csv)
    assert (read_ids(tmp_path / "work" / "train.ids") == pictures[:3]).all()
    assert (read_ids(tmp_path / "work" / "test.ids") == pictures[3:]).all()
    assert read_ids(tmp_path / "work" / "shifted.ids").shape == (15, 65)


def test_bits_per_pixel_leave_out_the_class():
    class Uniform(torch.nn.Module):
        def forward(self, input_ids, use_cache):
            return type("Out", (), {"logits": torch.zeros(*input_ids.shape, 16)})()

    bits, error = train.bits_per_pixel(Uniform(), np.tile(np.arange(65) % 16, (5, 1)))
    assert bits == pytest.approx(4.0)
    assert error == pytest.approx(0.0, abs=1e-6)


def test_a_batch_is_a_function_of_the_step_and_half_moved():
    pictures = np.concatenate([np.full((50, 1), 20), np.arange(50 * 64).reshape(50, 64)], axis=1)
    objective = train.PixelObjective(None, pictures, pictures, batch=200, seed=1)
    rows = objective.batch_at(7)
    assert rows.equal(objective.batch_at(7))
    assert not rows.equal(objective.batch_at(8))
    originals = {tuple(row) for row in pictures.tolist()}
    unmoved = sum(tuple(row) in originals for row in rows.tolist())
    assert 70 < unmoved < 130
