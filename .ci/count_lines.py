"""Count the lines of code of each part of the repository, and fail where one exceeds its limit.

A line of code holds more than a comment or a docstring. Limits are in lines.toml; raising one is a change of
its own, which says why.
"""

import ast
import sys
import tokenize
import tomllib
from pathlib import Path

_ROOT = Path(__file__).parents[1]
_SPACE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def count(path: Path) -> int:
    """Return the number of lines of code in a file."""
    if path.suffix == ".cpp":
        lines = (line.strip() for line in path.read_text(encoding="utf-8").splitlines())
        return sum(1 for line in lines if line and not line.startswith("//"))
    with tokenize.open(path) as opened:
        tokens = [one for one in tokenize.generate_tokens(opened.readline) if one.type not in _SPACE]
    lines = {line for one in tokens for line in range(one.start[0], one.end[0] + 1)}
    for node in ast.walk(ast.parse(path.read_bytes())):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            lines -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def main() -> int:
    """Print the counts beside their limits; return 1 if one is exceeded."""
    failed = False
    for part, limit in tomllib.loads((Path(__file__).parent / "lines.toml").read_text()).items():
        files = [
            path
            for folder in limit["folders"]
            for path in (_ROOT / folder).rglob("*.*")
            if path.suffix in {".py", ".cpp"}
        ]
        lines = sum(map(count, files))
        failed |= lines > limit["most"]
        mark = "  too many" if lines > limit["most"] else ""
        sys.stdout.write(f"{part:10}{lines:7,} of {limit['most']:7,} lines in {len(files)} modules{mark}\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
