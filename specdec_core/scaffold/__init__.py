"""Packages for plugins of one's own: names, files, and where they go. Importing this imports no torch."""

from specdec_core.scaffold.names import Names, check_free, names_of
from specdec_core.scaffold.package import STYLES, File, Kind, Style, package_files, write_package

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
