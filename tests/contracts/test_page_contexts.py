"""Each page's template and its frozen context name the same things, and a template only renders."""

from __future__ import annotations

import importlib
import inspect
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest
from contracts.documents import ROOT
from jinja2 import nodes

from pgbus.dashboard import console, pages
from pgbus.dashboard.views.refusals import Refusal

TEMPLATES = ROOT / "dashboard" / "templates" / "pgbus"
#: What every template may use beside its page, and what Jinja itself brings.
SHARED = {
    *("page", "shell", "words", "url", "asset", "may", "_", "pgettext", "ngettext"),
    *("rich", "nrich"),
    *("badge", "breakable", "class_name", "code", "icon"),
    *("m", "here", "super", "caller", "loop", "range"),
}


def contexts():
    """Returns the context of each page by its template's name."""
    modules = [
        f"{pages.__name__}.{file.stem}" for file in Path(pages.__path__[0]).glob("[a-z]*.py")
    ]
    found = {"refusal.html": Refusal}
    for name in modules:
        module = importlib.import_module(name)
        for member in vars(module).values():
            if (
                inspect.isclass(member)
                and member.__module__ == name
                and hasattr(member, "template")
            ):
                found[member.template] = member
    return found


def tree(name):
    """Returns the syntax of a template and of those that it includes and imports, the base aside."""
    environment = console.environment()
    source = (TEMPLATES / name).read_text(encoding="utf-8")
    yield (parsed := environment.parse(source))
    for kind in (nodes.Include, nodes.Import, nodes.FromImport):
        for found in parsed.find_all(kind):
            other = found.template.value.removeprefix("pgbus/")
            if other not in ("_macros.html", "_icons.html"):
                yield from tree(other)


def attributes(name, of):
    """Returns the attributes of a variable that the template uses."""
    return {
        found.attr
        for part in tree(name)
        for found in part.find_all(nodes.Getattr)
        if isinstance(found.node, nodes.Name) and found.node.name == of
    }


@pytest.mark.parametrize(("template", "context"), contexts().items(), ids=str)
def test_a_template_uses_exactly_what_its_context_has(template, context):
    assert is_dataclass(context)
    assert context.__dataclass_params__.frozen
    assert attributes(template, "page") == {field.name for field in fields(context)}


def test_the_base_uses_exactly_what_the_shell_has():
    used = attributes("base.html", "shell") | attributes("_macros.html", "shell")
    assert used == {field.name for field in fields(console.Shell)}


def test_every_page_has_its_template():
    partial = {"base.html"}
    whole = {file.name for file in TEMPLATES.glob("[a-z]*.html")} - partial
    assert whole == set(contexts())


@pytest.mark.parametrize("file", sorted(TEMPLATES.glob("*.html")), ids=lambda file: file.name)
def test_a_template_counts_and_compares_nothing_of_its_own(file):
    """Arithmetic belongs to presenters."""
    parsed = console.environment().parse(file.read_text(encoding="utf-8"))
    sums = [*parsed.find_all((nodes.Sub, nodes.Div, nodes.FloorDiv, nodes.Mod, nodes.Pow))]
    assert sums == []


@pytest.mark.parametrize("file", sorted(TEMPLATES.glob("*.html")), ids=lambda file: file.name)
def test_no_template_marks_anything_as_safe(file):
    text = file.read_text(encoding="utf-8")
    assert "|safe" not in text.replace(" ", "")
    assert "autoescape" not in text
    assert " style=" not in text
    assert "<style" not in text
