"""The binaries of `data/kenlm`, and KenLM's program that makes them, from the source that its package brings.

    python -m tests.drafters.kenlm_binaries          # makes them again
    python -m tests.drafters.kenlm_binaries --check  # says which differ

pip downloads the source of the installed version; g++ compiles it, which takes half a minute and needs no Boost.
"""

import argparse
import subprocess
import sys
import tarfile
import tempfile
from importlib.metadata import version
from pathlib import Path

from specdec_drafters.ngram.arpa import write_arpa
from specdec_drafters.ngram.kneser_ney import fit
from tests.drafters.ngram_models import DATA, sentences_of

V = 1000
MAX_ORDER = 6  # that of the package
BINARIES = {
    "small.3.probing": (3, ["probing"]),
    "small.3.trie": (3, ["trie"]),
    "small.3.quantized": (3, ["-q", "8", "-b", "8", "trie"]),
    "small.4.quantized": (4, ["-q", "6", "-b", "7", "trie"]),
    "small.5.compressed": (5, ["-a", "22", "trie"]),
    "small.5.probing": (5, ["probing"]),
    "small.6.trie": (6, ["trie"]),
}
"""The order and the options of each. The n-grams are those of `small.txt`."""


def build_program(folder: Path) -> Path:
    """Compile `build_binary` in an empty folder, and return its path."""
    kenlm = f"kenlm=={version('kenlm')}"
    pip = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--no-binary",
        "kenlm",
        "--dest",
        folder,
    ]
    subprocess.run([*pip, kenlm], check=True)
    (archive,) = folder.glob("kenlm-*.tar.gz")
    with tarfile.open(archive) as file:
        file.extractall(folder, filter="data")
    source = next(folder.glob("kenlm-*/"))
    parts = [path for place in ("lm", "util", "util/double-conversion") for path in (source / place).glob("*.cc")]
    parts = [path for path in parts if not path.name.endswith(("main.cc", "test.cc"))]
    program = folder / "build_binary"
    options = ["-O2", "-DNDEBUG", f"-DKENLM_MAX_ORDER={MAX_ORDER}", "-std=c++11", "-w", "-I", source]
    files = [source / "lm" / "build_binary_main.cc", *parts]
    subprocess.run(["g++", *options, "-o", program, *files, "-lpthread", "-lrt"], check=True)
    return program


def write_binary(program: Path | str, arpa: Path, binary: Path, options: list[str]) -> None:
    """Make a binary of an ARPA file."""
    subprocess.run([program, *options, arpa, binary], check=True, capture_output=True)


def main() -> None:
    """Make or check the binaries."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="say which differ, and write none")
    parser.add_argument("--program", help="a build_binary that is there already")
    options = parser.parse_args()
    differ = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program = options.program or build_program(folder)
        for binary, (order, arguments) in BINARIES.items():
            model = fit(sentences_of("small"), V, order)
            write_arpa(folder / f"{order}.arpa", model.levels, model.known)
            write_binary(program, folder / f"{order}.arpa", folder / binary, arguments)
            made, there = (folder / binary).read_bytes(), DATA / "kenlm" / binary
            if not there.exists() or there.read_bytes() != made:
                differ.append(binary)
                if not options.check:
                    there.parent.mkdir(exist_ok=True)
                    there.write_bytes(made)
    print(f"{', '.join(differ)} {'differ' if options.check else 'written'}" if differ else "all as they are")  # noqa: T201
    raise SystemExit(bool(options.check and differ))


if __name__ == "__main__":
    main()
