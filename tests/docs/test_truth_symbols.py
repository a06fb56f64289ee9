"""Every public name of the code stands on the site, with its signature."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import pkgutil
import re
from functools import cached_property
from types import ModuleType
from typing import TypeVar

import pytest
from pydantic import BaseModel

import specdec_core
from specdec_core.registry import HookSpecs
from specdec_core.registry.hookspecs import HOOK_OF_KIND
from tests.docs.pages import ROOT
from tests.docs.test_truth_keys import PLUGINS, SHIPPED

# What commands are made of stands on the page of commands.
INNER = ("specdec_core.cli", "specdec_core.scaffold")
PACKAGES = ["specdec_core"] + [
    found.name
    for found in pkgutil.walk_packages(specdec_core.__path__, "specdec_core.")
    if found.ispkg and not found.name.startswith(INNER)
]
MODULES = sorted(
    {
        module
        for page in (ROOT / "docs" / "api").glob("*.md")
        for module in re.findall(r"^::: (\S+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    }
)
NAMES = [
    (package, name)
    for package in PACKAGES
    for name in getattr(importlib.import_module(package), "__all__", ())
    if not name.startswith("__")
]
_CALLABLE = (staticmethod, classmethod)
_READ = (property, cached_property)


class _Bare(ast.NodeTransformer):
    """Makes annotations alike however they were written: as texts, or by the name of a module."""

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        return ast.Name(node.attr)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        # Imported as `_Name`, it is shown as what it is.
        return ast.Name(node.id.lstrip("_"))

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if not isinstance(node.value, str):
            return node
        try:
            return self.visit(ast.parse(node.value, mode="eval").body)
        except SyntaxError:
            return node


def bare(annotation: object) -> str:
    """An annotation in one form."""
    if not isinstance(annotation, str):
        annotation = inspect.formatannotation(annotation)
    return ast.unparse(_Bare().visit(ast.parse(annotation, mode="eval"))) if annotation else ""


def takes(thing: object) -> list[tuple[str, str]]:
    """The parameters of a function or a class, each with its annotation, and last what comes back."""
    signature = inspect.signature(thing)
    own = [each for each in signature.parameters.values() if each.name not in ("self", "cls")]
    returns = "" if inspect.isclass(thing) or signature.return_annotation is inspect.Signature.empty else "returns"
    written = [(each.name, "" if each.annotation is each.empty else bare(each.annotation)) for each in own]
    return [*written, ("->", bare(signature.return_annotation) if returns else "")]


def shown(signature: str) -> list[tuple[str, str]]:
    """The same, read from the site."""
    (function,) = ast.parse(f"def {signature}: ...").body
    assert isinstance(function, ast.FunctionDef)
    arguments = function.args
    own = [*arguments.posonlyargs, *arguments.args, arguments.vararg, *arguments.kwonlyargs, arguments.kwarg]
    written = [(each.arg, bare(ast.unparse(each.annotation)) if each.annotation else "") for each in own if each]
    return [*written, ("->", bare(ast.unparse(function.returns)) if function.returns else "")]


def home(package: str, name: str) -> str:
    """Where a name is defined."""
    thing = getattr(importlib.import_module(package), name)
    qualified = getattr(thing, "__qualname__", None)
    return f"{thing.__module__}.{qualified}" if qualified and "<" not in qualified else f"{package}.{name}"


def entry_of(site, package: str, name: str):
    """What the site says of a public name."""
    # A function that is called as its module has no entry under the shorter name.
    return site.entry(home(package, name)) or site.entry(f"{package}.{name}")


def has_constructor(kind: type) -> bool:
    """Whether a class takes arguments of its own, rather than fields that stand below it."""
    if issubclass(kind, (BaseModel, BaseException)) and "__init__" not in vars(kind):
        return False
    made = kind.__init__
    ours = inspect.isfunction(made) and not getattr(kind, "_is_protocol", False)
    return ours and (dataclasses.is_dataclass(kind) or made.__module__.startswith("specdec_"))


def faults(site, name: str, thing: object, entry) -> list[str]:
    """What the site lacks of a function, or of a class and its members."""
    if entry is None:
        return [f"{name} stands nowhere"]
    if inspect.isclass(thing):
        found = faults_of_signature(name, thing, entry) if has_constructor(thing) else []
        return found + faults_of_members(site, name, thing, entry)
    if inspect.isfunction(inspect.unwrap(thing)):
        return faults_of_signature(name, thing, entry)
    return [] if entry.signature else [f"{name} has no value or kind"]


def faults_of_signature(name: str, thing: object, entry) -> list[str]:
    if entry.signature is None:
        return [f"{name} has no signature"]
    if shown(entry.signature) != takes(thing):
        return [f"{name} is shown as {entry.signature}, and takes {takes(thing)}"]
    return []


def faults_of_members(site, name: str, kind: type, entry) -> list[str]:
    """What the site lacks of the public methods, properties and fields that a class has itself."""
    found = []
    for member, value in own_members(site, kind).items():
        if member.startswith("_") and not (member == "__call__" and getattr(kind, "_is_protocol", False)):
            continue
        below = site.entries.get(f"{home_of(kind)}.{member}")
        if isinstance(value, _CALLABLE) or inspect.isfunction(value):
            function = value.__func__ if isinstance(value, _CALLABLE) else value
            found += faults(site, f"{name}.{member}", function, below)
        elif isinstance(value, _READ) and not (below and below.signature):
            found.append(f"{name}.{member} stands nowhere")
    return found + [
        f"the field {name}.{field} stands nowhere"
        for field in own_fields(site, kind)
        if field not in entry.listed and f"{home_of(kind)}.{field}" not in site.entries
    ]


def inside(site, kind: type) -> list[type]:
    """A class, and those of its bases that a reader cannot look up: what they give it belongs to it."""
    ours = [base for base in kind.__mro__[1:] if base.__module__.startswith("specdec_")]
    return [kind, *(base for base in ours if home_of(base) not in site.entries)]


def own_members(site, kind: type) -> dict[str, object]:
    members: dict[str, object] = {}
    for each in reversed(inside(site, kind)):
        members |= vars(each)
    return members


def home_of(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def own_fields(site, kind: type) -> list[str]:
    """The public fields that a class has itself; one that it states anew stands where it was stated first."""
    bases = [base for base in kind.__mro__[1:] if base.__module__.startswith("specdec_")]
    stated = {field for base in bases for field in inspect.get_annotations(base)}
    own = set(inspect.get_annotations(kind))
    hidden = {field for base in inside(site, kind)[1:] for field in inspect.get_annotations(base)}
    return sorted(f for f in (own - stated) | (hidden - vars(kind).keys() - own) if not f.startswith("_"))


def test_the_packages_are_found():
    found = {package for package, _ in NAMES}
    named = ["", ".border", ".decoding", ".models", ".registry", ".study", ".testing", ".theory"]
    assert found >= {f"specdec_core{name}" for name in named}
    assert len(MODULES) > 40


@pytest.mark.parametrize(("package", "name"), NAMES, ids=lambda part: str(part))
def test_a_public_name_stands_with_its_signature(built_site, package, name):
    thing = getattr(importlib.import_module(package), name)
    assert not faults(built_site, f"{package}.{name}", thing, entry_of(built_site, package, name))


def definitions(module: ModuleType) -> list[str]:
    """The public names that a module binds itself."""
    names = []
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.append(node.name)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names += [target.id for target in targets if isinstance(target, ast.Name)]
    return [name for name in names if not name.startswith("_") and not isinstance(getattr(module, name), TypeVar)]


@pytest.mark.parametrize("module", MODULES)
def test_all_that_a_documented_module_defines_stands_there(built_site, module):
    loaded = importlib.import_module(module)
    missing = []
    for name in definitions(loaded):
        thing = getattr(loaded, name)
        ours = getattr(thing, "__module__", None) == module
        entry = built_site.entries.get(f"{module}.{name}")
        missing += faults(built_site, f"{module}.{name}", thing if ours else None, entry)
    assert not missing


@pytest.mark.parametrize(("kind", "name"), PLUGINS)
def test_a_plugin_that_ships_stands_with_what_it_takes(built_site, kind, name):
    spec = SHIPPED.spec(kind, name)
    module, _, factory = spec.factory.partition(":")
    made = getattr(importlib.import_module(module), factory)
    for thing in (made, spec.config):
        assert not faults(built_site, thing.__name__, thing, built_site.entries.get(home_of(thing)))


HOOKS = [name for name, value in vars(HookSpecs).items() if hasattr(value, "specdec_spec")]


def test_there_is_a_hook_for_each_kind():
    assert sorted(HOOKS) == sorted(HOOK_OF_KIND.values())


@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_stands_with_its_signature_and_all_that_its_manual_says(built_site, hook):
    entry = built_site.entries[f"{HookSpecs.__module__}.HookSpecs.{hook}"]
    assert shown(entry.signature) == takes(getattr(HookSpecs, hook))
    said = words(inspect.getdoc(getattr(HookSpecs, hook)))
    assert said <= words(entry.text), f"{hook}: the site leaves out {said - words(entry.text)}"


def words(text: str) -> set[str]:
    """The runs of three words in the paragraphs of a text, without marks."""
    paragraphs = (re.findall(r"\w+", part) for part in re.split(r"\n\s*\n|^\w+:$", text, flags=re.MULTILINE))
    return {" ".join(part[at : at + 3]) for part in paragraphs for at in range(len(part) - 2)}
