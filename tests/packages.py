"""Plugin packages as if installed: subprocesses find them beside those of the environment."""

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path


def install(site: Path, packages: Iterable[Path]) -> None:
    """Write the files that pip would install, for packages of one module or one folder each."""
    site.mkdir(exist_ok=True)
    for package in packages:
        project = tomllib.loads((package / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        module = project["name"].replace("-", "_")
        if (package / module).is_dir():
            shutil.copytree(package / module, site / module)
        else:
            shutil.copy(package / f"{module}.py", site)
        info = site / f"{module}-{project['version']}.dist-info"
        info.mkdir()
        metadata = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
        (info / "METADATA").write_text(metadata, encoding="utf-8")
        points = "".join(f"{name} = {value}\n" for name, value in project["entry-points"]["specdec"].items())
        (info / "entry_points.txt").write_text(f"[specdec]\n{points}", encoding="utf-8")


def run(site: Path, *arguments: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run Python in a folder, with the packages of a site folder on its path."""
    path = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
