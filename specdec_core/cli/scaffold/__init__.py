"""Packages for new plugins: names and files. Importing this imports no torch."""

from specdec_core.cli.scaffold.names import Names, check_free, names_of
from specdec_core.cli.scaffold.package import STYLES, File, Kind, Style, package_files, write_package

__all__ = [
    "STYLES",
    "File",
    "Kind",
    "Names",
    "Style",
    "check_free",
    "names_of",
    "package_files",
    "write_package",
]
