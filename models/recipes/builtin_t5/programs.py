"""The programs whose message catalogs are used, and the download of their archives.

Every program is pinned to a version, downloaded with the ordinary client of its registry, and only unpacked, never
installed or run. All licences are permissive (MIT, BSD, Apache-2.0, PostgreSQL), so that weights trained on the
messages may be distributed.

Run from the repository root to download missing archives: `python -m recipes.builtin_t5.programs`
"""

from __future__ import annotations

import hashlib
import io
import re
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator

WORK = Path(__file__).parent / ".work"

Registry = Literal["pypi", "debian", "npm"]


@dataclass(frozen=True)
class Package:
    """An archive in a registry; `python` is the Python version of its wheel."""

    registry: Registry
    name: str
    version: str
    python: str = "3.13"

    def archive(self, folder: Path) -> Path | None:
        """Return the downloaded archive in `folder`, or None."""
        stem = {
            "pypi": f"{self.name}-{self.version}-",
            "debian": f"{self.name}_{self.version.replace(':', '%3a')}_",
            "npm": f"{self.name.removeprefix('@')}-{self.version}.tgz",
        }[self.registry]
        found = [path for path in folder.iterdir() if _plain(path.name).startswith(_plain(stem))]
        return min(found, default=None)

    def command(self, folder: Path) -> list[str]:
        """Return the client's command that downloads the archive when run in `folder`."""
        if self.registry == "pypi":
            options = ["--quiet", "--no-deps", "--only-binary=:all:", "--python-version", self.python]
            client = [sys.executable, "-m", "pip", "download", *options, "--dest", str(folder)]
            return [*client, f"{self.name}=={self.version}"]
        if self.registry == "debian":
            return ["apt-get", "download", "-qq", f"{self.name}={self.version}"]
        return ["npm", "pack", "--silent", f"{self.name}@{self.version}"]


@dataclass(frozen=True)
class Program:
    """A program, its packages, and the location of its catalogs.

    `german` and `english` are full-match patterns of member names; two members belong together if their groups are
    equal. `english` is empty for gettext catalogs, which contain the English texts. `reader` is a key of
    `catalogs.READERS`.
    """

    name: str
    licence: str
    packages: tuple[Package, ...]
    reader: str
    german: str
    english: str = ""
    accelerators: bool = False

    @property
    def version(self) -> str:
        """The version of the first package."""
        return self.packages[0].version


def _pypi(name: str, version: str, python: str = "3.13") -> tuple[Package, ...]:
    return (Package("pypi", name, version, python),)


def _npm(name: str, version: str) -> tuple[Package, ...]:
    return (Package("npm", name, version),)


PO = r".*/locale/de/LC_MESSAGES/([\w-]+)\.po"
POSTGRESQL = "15.20-0+deb12u1"
CHROMIUM = "156.0.8078.79-1~deb12u1"

PROGRAMS = (
    Program("django", "BSD-3-Clause", _pypi("Django", "6.1.3"), "po", PO),
    Program(
        "postgresql",
        "PostgreSQL",
        tuple(
            Package("debian", name, POSTGRESQL)
            for name in ("postgresql-15", "postgresql-client-15", "libpq5", "postgresql-plpython3-15")
        ),
        "mo",
        r".*/locale/de/LC_MESSAGES/([\w.-]+)\.mo",
    ),
    Program("wagtail", "BSD-3-Clause", _pypi("wagtail", "8.0.1"), "po", PO),
    Program(
        "homeassistant",
        "Apache-2.0",
        _pypi("homeassistant", "2026.2.3", "3.14"),
        "paired",
        r"homeassistant/components/(.*)/translations/de\.json",
        r"homeassistant/components/(.*)/translations/en\.json",
    ),
    Program(
        "home-assistant-frontend",
        "Apache-2.0",
        _pypi("home-assistant-frontend", "20260128.6"),
        "paired",
        r"hass_frontend/static/translations/(.*)de-[0-9a-f]+\.json",
        r"hass_frontend/static/translations/(.*)en-[0-9a-f]+\.json",
    ),
    Program(
        "chromium",
        "BSD-3-Clause",
        (Package("debian", "chromium-l10n", CHROMIUM), Package("debian", "chromium-common", CHROMIUM)),
        "pak",
        r".*/locales/de\.pak",
        r".*/locales/en-US\.pak",
        accelerators=True,
    ),
    Program(
        "vscode",
        "MIT",
        (
            Package("npm", "@codingame/monaco-vscode-language-pack-de", "25.1.2"),
            Package("npm", "@codingame/monaco-vscode-api", "25.1.2"),
        ),
        "vscode",
        r"package/translations/.*(?:main|vscode)[\w.-]*i18n\.json(?:\.js)?",
        r"package/vscode/.*\.js",
        accelerators=True,
    ),
    Program(
        "typescript",
        "Apache-2.0",
        _npm("typescript", "5.9.3"),
        "typescript",
        r"package/lib/de/diagnosticMessages\.generated\.json",
        r"package/lib/typescript\.js",
    ),
    Program("pyright", "MIT", _npm("pyright", "1.1.414"), "pyright", r"package/dist/pyright-internal\.js"),
    Program(
        "subversion",
        "Apache-2.0",
        (Package("debian", "subversion", "1.14.2-4+deb12u1"),),
        "mo",
        r".*/locale/de/LC_MESSAGES/([\w.-]+)\.mo",
    ),
    Program(
        "derby",
        "Apache-2.0",
        (Package("debian", "libderby-java", "10.14.2.0-2"),),
        "paired",
        r".*/derbyLocale_de_DE[-\d.]*\.jar!/(.*)_de_DE\.properties",
        r".*/derby(?:net|client|tools)?[-\d.]*\.jar!/(.*?)(?:_en)?\.properties",
    ),
    Program(
        "tomcat",
        "Apache-2.0",
        (Package("debian", "libtomcat10-java", "10.1.60-1~deb12u1"),),
        "paired",
        r".*/tomcat10-i18n-de-[\d.]+jar!/(.*)/LocalStrings_de\.properties",
        r".*/tomcat10-[a-z-]+-[\d.]+jar!/(.*)/LocalStrings\.properties",
    ),
    Program(
        "superset",
        "Apache-2.0",
        _pypi("apache-superset", "6.1.0"),
        "po",
        r".*/translations/de/LC_MESSAGES/(\w+)\.po",
    ),
    Program(
        "airflow",
        "Apache-2.0",
        _pypi("apache-airflow-core", "3.3.2"),
        "paired",
        r"airflow/ui/dist/i18n/locales/de/(.*)\.json",
        r"airflow/ui/dist/i18n/locales/en/(.*)\.json",
    ),
    Program("horizon", "Apache-2.0", _pypi("horizon", "27.0.0"), "po", PO),
    Program("nova", "Apache-2.0", _pypi("nova", "34.0.0"), "po", PO),
    Program("keystone", "Apache-2.0", _pypi("keystone", "30.0.0"), "po", PO),
    Program("heat", "Apache-2.0", _pypi("openstack-heat", "27.0.1"), "po", PO),
    Program("neutron", "Apache-2.0", _pypi("neutron", "29.0.0"), "po", PO),
    Program("glance", "Apache-2.0", _pypi("glance", "33.0.0"), "po", PO),
    Program("manila-ui", "Apache-2.0", _pypi("manila-ui", "16.0.0"), "po", PO),
    Program("heat-dashboard", "Apache-2.0", _pypi("heat-dashboard", "16.0.0"), "po", PO),
    Program("octavia-dashboard", "Apache-2.0", _pypi("octavia-dashboard", "18.0.0"), "po", PO),
    Program("trove-dashboard", "Apache-2.0", _pypi("trove-dashboard", "27.0.0"), "po", PO),
    Program("sahara-dashboard", "Apache-2.0", _pypi("sahara-dashboard", "19.0.0"), "po", PO),
    Program("magnum-ui", "Apache-2.0", _pypi("magnum-ui", "19.0.0"), "po", PO),
    Program("sphinx", "BSD-2-Clause", _pypi("sphinx", "9.2.0"), "po", PO),
    Program("django-cms", "BSD-3-Clause", _pypi("django-cms", "5.1.3"), "po", PO),
    Program("django-allauth", "MIT", _pypi("django-allauth", "65.21.1"), "po", PO),
    Program("django-oscar", "BSD-3-Clause", _pypi("django-oscar", "4.2.1"), "po", PO),
    Program(
        "djangorestframework",
        "BSD-3-Clause",
        _pypi("djangorestframework", "3.18.3"),
        "mo",
        r".*/locale/de/LC_MESSAGES/(\w+)\.mo",
    ),
    Program(
        "flask-appbuilder",
        "BSD-3-Clause",
        _pypi("Flask-AppBuilder", "5.3.0"),
        "po",
        r".*/translations/de/LC_MESSAGES/(\w+)\.po",
    ),
    Program(
        "jupyterlab",
        "BSD-3-Clause",
        _pypi("jupyterlab-language-pack-de-DE", "4.5.post3"),
        "mo",
        r".*/de_DE/LC_MESSAGES/(\w+)\.mo",
    ),
    Program(
        "node-red-editor",
        "Apache-2.0",
        _npm("@node-red/editor-client", "5.0.7"),
        "paired",
        r"package/locales/de/(.*)\.json",
        r"package/locales/en-US/(.*)\.json",
    ),
    Program(
        "node-red-nodes",
        "Apache-2.0",
        _npm("@node-red/nodes", "5.0.7"),
        "paired",
        r"package/locales/de/(.*)\.json",
        r"package/locales/en-US/(.*)\.json",
    ),
    Program(
        "strapi",
        "MIT",
        _npm("@strapi/admin", "5.54.0"),
        "paired",
        r"package/dist/admin/admin/src/translations/de\.json\.mjs",
        r"package/dist/admin/admin/src/translations/en\.json\.mjs",
    ),
)


def _plain(name: str) -> str:
    """Normalize the name of an archive: lower case, without the signs that registries exchange."""
    return re.sub(r"[-_./]", "-", name.lower())


def fetch(package: Package, folder: Path) -> Path:
    """Return the archive of a package; download it to `folder` if it is missing.

    Raises:
        FileNotFoundError: if the client did not leave the archive there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    found = package.archive(folder)
    if found is None:
        print(f"fetching {package.registry} {package.name} {package.version}", flush=True)
        try:
            done = subprocess.run(package.command(folder), cwd=folder, capture_output=True, text=True, timeout=900)
            said = done.stderr.strip().splitlines()[-1:]
        except (OSError, subprocess.TimeoutExpired) as error:
            said = [str(error)]
        found = package.archive(folder)
        if found is None:
            raise FileNotFoundError(f"{package.name} {package.version} from {package.registry}: {said}")
    return found


def digest(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def members(archive: Path, wanted: re.Pattern[str]) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of the members whose full name matches `wanted`.

    The jars inside a Debian package are opened too; their members are named `<jar>!/<name>`.
    """
    if archive.suffix == ".whl":
        yield from _zip_members(archive.read_bytes(), "", wanted)
        return
    if archive.suffix == ".deb":
        done = subprocess.run(["dpkg-deb", "--fsys-tarfile", str(archive)], capture_output=True, check=True)
        content_of_tar = done.stdout
    else:
        content_of_tar = archive.read_bytes()
    with tarfile.open(fileobj=io.BytesIO(content_of_tar)) as tar:
        for member in tar:
            is_jar = member.name.endswith(".jar")
            content = tar.extractfile(member) if member.isfile() else None
            if content is None or not (is_jar or wanted.fullmatch(member.name)):
                continue
            if is_jar:
                yield from _zip_members(content.read(), f"{member.name}!/", wanted)
            else:
                yield member.name, content.read()


def _zip_members(content: bytes, prefix: str, wanted: re.Pattern[str]) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(io.BytesIO(content)) as opened:
        for name in opened.namelist():
            if wanted.fullmatch(prefix + name):
                yield prefix + name, opened.read(name)


def main() -> None:
    """Download all missing archives."""
    for program in PROGRAMS:
        for package in program.packages:
            try:
                fetch(package, WORK / "archives")
            except FileNotFoundError as error:
                print(f"warning: {error}")


if __name__ == "__main__":
    main()
