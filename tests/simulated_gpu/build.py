"""Compile the simulated device, once per source, compiler, torch and Python."""

import hashlib
import importlib
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import ModuleType

import torch
from filelock import FileLock

NAME = "simulated_gpu_native"
SOURCES = Path(__file__).parent / "native"


def compiler() -> str | None:
    """Return the C++ compiler: `$CXX`, or the first of `c++`, `g++` and `clang++` that is installed."""
    names = (os.environ.get("CXX", "c++"), "c++", "g++", "clang++")
    return next(filter(None, map(shutil.which, names)), None)


def load() -> ModuleType:
    """Return the compiled module, from the user's cache where it is there."""
    command = _command()
    key = hashlib.sha256(repr((command, torch.__version__, sys.version)).encode())
    for source in sorted(SOURCES.iterdir()):
        key.update(source.read_bytes())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "simulated-gpu"
    library = cache / key.hexdigest()[:16] / f"{NAME}.so"
    library.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(library.parent / "lock"):
        if not library.exists():
            _compile([*command, "-o", str(library) + ".part"])
            Path(str(library) + ".part").rename(library)
    sys.path.insert(0, str(library.parent))
    return importlib.import_module(NAME)


def _command() -> list[str]:
    root = Path(torch.__file__).parent
    headers = (root / "include", root / "include/torch/csrc/api/include", sysconfig.get_path("include"))
    return [
        str(compiler()),
        *("-std=c++20", "-O1", "-w", "-fPIC", "-shared", f"-DTORCH_EXTENSION_NAME={NAME}"),
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
        *(f"-isystem{folder}" for folder in headers),
        str(SOURCES / "module.cpp"),
        *(f"-L{root / 'lib'}", f"-Wl,-rpath,{root / 'lib'}", "-lc10", "-ltorch_cpu", "-ltorch", "-ltorch_python"),
    ]


def _compile(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"the simulated GPU does not compile:\n{' '.join(command)}\n{done.stderr[-4000:]}")
