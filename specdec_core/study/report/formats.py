"""Formats of numbers, and of text from outside, on a terminal and in the report. Imports no torch.

What is unknown or too small to show must not look like a measured zero: an unknown value is `UNKNOWN`, which a
table explains below it, and a tiny one is `<0.01`.
"""

import re
import textwrap

UNKNOWN = "–"
"""Stands for a value that was not measured."""

# C0 and C1 controls except newline and tab, marks that change the direction of text, characters of no width that
# hide in names, and halves of surrogate pairs, which stand for undecodable bytes in paths.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
_SPELLED = str.maketrans(
    {
        "γ": "gamma",
        "α": "alpha",
        "β": "beta",
        "×": "x",
        "±": "+-",
        "–": "-",
        "—": "-",
        "−": "-",
        "…": "...",
        "≤": "<=",
        "≥": ">=",
        "⏎": "\\n",
        "␍": "\\r",
        "⇥": "\\t",
        "’": "'",
    }
)


def number(value: float | None, digits: int, unit: str = "") -> str:
    """Return a number with some decimals; one that would round to zero is `<0.01`, none is `UNKNOWN`."""
    if value is None:
        return UNKNOWN
    if value == 0:
        return f"0{unit}"
    shown = f"{value:.{digits}f}"
    if float(shown) != 0:
        return f"{shown}{unit}"
    least = f"{10.0**-digits:.{digits}f}"
    return f"<{least}{unit}" if value > 0 else f">-{least}{unit}"


def rate(value: float | None, digits: int = 2) -> str:
    """Return a rate from 0 to 1; only exactly none or all is written as 0 or 1."""
    shown = number(value, digits)
    if value is None or not 0 < value < 1 or float(shown.lstrip("<")) < 1:
        return shown
    return f">{1 - 10.0**-digits:.{digits}f}"


def share(value: float) -> str:
    """Return a share in percent; only exactly none or all is written as 0% or 100%."""
    shown = f"{value:.0%}"
    if shown == "100%" and value < 1:
        return ">99%"
    return "<1%" if shown == "0%" and value > 0 else shown


def with_spread(
    middle: float | None, low: float | None, high: float | None, digits: int, unit: str = "", repeats: int = 2
) -> str:
    """Return a median ± half the range of the repeats; one repeat, or equal ones, have no range."""
    shown = number(middle, digits, unit)
    if middle is None or low is None or high is None or low == high or repeats < 2:
        return shown
    return f"{shown} ±{number((high - low) / 2, digits)}"


def visible(text: str) -> str:
    r"""Return a text in which what a terminal would obey is written as Python writes it: `\x1b`, `\u202e`.

    Newlines and tabs stay.
    """
    return _UNSAFE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def visible_line(text: str) -> str:
    r"""Return a text of one line, such as a name: newlines and tabs are written as `\n` and `\t` too."""
    return visible(text).replace("\n", r"\n").replace("\t", r"\t")


def visible_json(text: str) -> str:
    """Return JSON in which the same characters are written as JSON escapes them; its value is unchanged."""
    return _UNSAFE.sub(_escape_utf16, text)


def printable(text: str, encoding: str) -> str:
    r"""Return a text that an encoding can express: γ becomes `gamma`, × becomes `x`, others `\u4e2d`."""
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        spelled = text.translate(_SPELLED)
        return spelled.encode(encoding, "backslashreplace").decode(encoding)
    return text


def wrapped(text: str, width: int, indent: str = "") -> str:
    """Return a text in lines of at most some characters, broken between words only.

    What is in backquotes, such as a command, stays on one line: it can be copied.

    Args:
        text: One paragraph.
        width: The longest line; a longer word keeps its length.
        indent: Precedes all lines but the first.
    """
    whole = re.sub("`[^`]*`", lambda quoted: quoted[0].replace(" ", "\0"), text)
    wrapper = textwrap.TextWrapper(width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return wrapper.fill(whole).replace("\0", " ")


def _escape_utf16(found: re.Match[str]) -> str:
    code = found[0].encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{code[begin : begin + 4]}" for begin in range(0, len(code), 4))
