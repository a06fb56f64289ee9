"""List what the tests need beside torch and transformers, and download it as wheels for Python 3.12 on Linux.

The wheels come into .wheels, which git ignores, with packages.txt, what to install by name. pip resolves the
versions twice, with the project and without it; the difference is what a machine lacks that has these two.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / ".wheels"
PRESENT = ("torch==2.11.0", "transformers==5.17.0")
TESTS = ("hypothesis", "pytest", "pytest-timeout", "pytest-xdist")
MOST = 64 * 2**20
"""Bytes that reach the GPU's machine with a checkout."""
PLATFORMS = (
    *(f"manylinux_2_{minor}_x86_64" for minor in range(35, 16, -1)),
    "manylinux2014_x86_64",
    "manylinux1_x86_64",
)
OPTIONS = ["--only-binary", ":all:", "--python-version", "3.12", "--implementation", "cp"]
OPTIONS += [word for platform in PLATFORMS for word in ("--platform", platform)]


def main() -> None:
    """Download what is missing, and print its size beside that of the tracked files.

    Raises:
        SystemExit: A package has no wheel, or pip failed for another reason, which it printed.
    """
    parser = argparse.ArgumentParser(prog="benchmarks/gpu/run wheels", description=__doc__)
    parser.add_argument("--there", nargs="+", default=[], metavar="PACKAGE", help="what else the machine has")
    words = {"nargs": "+", "default": [], "metavar": "PACKAGE"}
    parser.add_argument("--lacks", **words, help="what it lacks, though torch or transformers have it installed")
    options = parser.parse_args()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    tools = [*project["build-system"]["requires"], "editables", *TESTS]
    needed = [*project["project"]["dependencies"], *tools]
    present = (resolved(PRESENT).keys() | set(options.there)) - set(options.lacks)
    missing = {name: version for name, version in resolved([*PRESENT, *needed]).items() if name not in present}
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.iterdir():
        old.unlink()
    pinned = [f"{name}=={version}" for name, version in sorted(missing.items())]
    pip("download", "--no-deps", "--dest", str(FOLDER), *OPTIONS, *pinned)
    (FOLDER / "packages.txt").write_text("\n".join(tools) + "\n", encoding="utf-8")
    for file in sorted(FOLDER.iterdir()):
        print(f"{file.stat().st_size / 1e6:6.2f} MB  {file.name}")
    wheels = sum(file.stat().st_size for file in FOLDER.iterdir())
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    files = [ROOT / name for name in listed.stdout.split("\0") if name]
    tracked = sum(file.stat().st_size for file in files if file.is_file())  # a sparse checkout lacks some
    print(
        f"{wheels / 2**20:.1f} MiB of wheels and {tracked / 2**20:.1f} MiB of tracked files, of {MOST / 2**20:.0f}"
    )
    if wheels + tracked > MOST:
        raise SystemExit("That is too much: leave out folders by a sparse checkout, as the README says.")


def resolved(requirements: list[str] | tuple[str, ...]) -> dict[str, str]:
    """Return the name and version of each package that pip would install, without downloading them."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        options = ["--dry-run", "--ignore-installed", "--target", folder, "--report", str(report), *OPTIONS]
        pip("install", *options, *requirements)
        found = json.loads(report.read_text(encoding="utf-8"))["install"]
    return {one["metadata"]["name"].lower(): one["metadata"]["version"] for one in found}


def pip(command: str, *arguments: str) -> None:
    """Run pip; what it says is printed.

    Raises:
        SystemExit: It failed.
    """
    done = subprocess.run([sys.executable, "-m", "pip", command, "--quiet", *arguments], cwd=ROOT)
    if done.returncode:
        raise SystemExit(f"pip {command} failed: see above.")


if __name__ == "__main__":
    main()
