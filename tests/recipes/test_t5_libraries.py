"""Docstrings and messages from the sources of Python libraries, for the built-in T5."""

import zipfile

from recipes.builtin_t5.data import split_summaries
from recipes.builtin_t5.docstrings import Summary
from recipes.builtin_t5.libraries import LIBRARIES, MAX_REPEATS, Library, of_library
from recipes.builtin_t5.programs import Package
from recipes.builtin_t5.sentences import messages_of

PERMISSIVE = {"MIT", "BSD-2-Clause", "BSD-3-Clause", "Apache-2.0"}
FURTHER = {"Matplotlib (PSF-based)", "Biopython or BSD-3-Clause"}
BODY = "The knob is turned as often as it is asked to, and then it rests for a while."


def documented_function(name: str, summary: str, body: str = BODY) -> str:
    return f'def {name}():\n    """{summary}\n\n    {body}\n    """\n'


def wheel(folder, files: dict[str, str]) -> Library:
    with zipfile.ZipFile(folder / "toy_kit-1.0-py3-none-any.whl", "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return Library(Package("pypi", "Toy-Kit", "1.0"), "MIT")


def test_every_library_is_permissive_and_pinned_once():
    assert {library.licence for library in LIBRARIES} <= PERMISSIVE | FURTHER
    names = [library.package.name.lower() for library in LIBRARIES]
    assert len(set(names)) == len(names)
    assert all(library.package.version for library in LIBRARIES)


def test_a_library_gives_each_description_once_and_no_stock_phrases(tmp_path):
    stock = "".join(
        documented_function(f"stock_{word}", "Return the usual thing.", f"{BODY} It is {word}.")
        for word in ("red", "green", "blue", "black")
    )
    assert stock.count("usual") > MAX_REPEATS
    files = {
        "toy/a.py": documented_function("turn", "Turn the knob several times.") + stock,
        "toy/b.py": documented_function("again", "Turn the knob over and over."),
        "toy/tests/c.py": documented_function("test", "Test the knob several times.", f"{BODY} Really."),
    }
    pairs = of_library(wheel(tmp_path, files), tmp_path)
    assert [pair.summary for pair in pairs] == ["Turn the knob several times."]


def test_no_librarys_text_is_close_to_a_held_out_one():
    words = [f"word{chr(97 + number)}" for number in range(20)]
    body = " ".join(words)
    train = [
        Summary(" ".join([*words[:18], "other", "words"]), "Close to a held-out body.", "a", False, origin="toy"),
        Summary(
            " ".join([*words[:12], *"abcdefgh"]), "Far enough from a held-out body.", "b", False, origin="toy"
        ),
        *(Summary(f"{body} x{chr(97 + n)}", f"Of CPython {chr(97 + n)}.", "c", False) for n in range(3)),
    ]
    splits = split_summaries(train, [Summary(body, "Held out.", "d", True, "d.py")])
    assert {pair.program for pair in splits["valid"]} == {"cpython"}
    assert [pair.location for pair in splits["train"]] == ["b"]


def test_messages_are_those_that_are_raised_logged_or_shown(tmp_path):
    source = """
raise ValueError(f"The knob {name} of {the.door} is missing")
raise OSError(_("The disk is full: %s") % path)
logger.warning("Turned the knob {} times".format(n))
parser.add_argument("--knob", help="Which knob to turn "
    "and how often.")
warn("no", UserWarning)
print("This is not a message")
"""
    library = wheel(tmp_path, {"toy/a.py": source, "toy/b.py": "raise"})
    assert messages_of(library, tmp_path) == [
        "The knob {name} of {value} is missing",
        "The disk is full: %s",
        "Turned the knob {} times",
        "Which knob to turn and how often.",
    ]
