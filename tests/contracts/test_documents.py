"""What the documents show is there and works."""

import os
import re
import subprocess
import sys

import pytest
from contracts.documents import ALL, GUIDE, ROOT, TAUGHT, blocks, blocks_in

import pgbus
from pgbus.engine import errors
from pgbus.engine.settings import Settings

README = ROOT / "README.md"


ERRORS = {name for name in pgbus.__all__ if isinstance(getattr(pgbus, name), type)
          and issubclass(getattr(pgbus, name), pgbus.PgbusError)}  # fmt: skip


def test_every_public_name_is_shown_in_an_example():
    shown = "\n".join(block.code for block in blocks_in(TAUGHT, "python"))
    names = [name for name in pgbus.__all__ if name not in ERRORS]
    assert [name for name in names if not re.search(rf"\b{name}\b", shown)] == []


def test_every_error_is_public_and_listed_in_the_guide():
    listed = set(re.findall(r"`(\w+)`", "\n".join(path.read_text() for path in TAUGHT)))
    assert {cls.__name__ for cls in _errors()} == ERRORS
    assert ERRORS - listed == set()


def _errors():
    return [cls for cls in vars(errors).values()
            if isinstance(cls, type) and issubclass(cls, errors.PgbusError)]  # fmt: skip


@pytest.mark.parametrize("block", blocks_in(ALL, "python"), ids=str)
def test_a_python_block_compiles(block):
    compile(block.code, str(block), "exec")


@pytest.fixture(scope="module")
def examples(tmp_path_factory):
    """The guide's modules where their first lines say, and each page's other blocks as one module."""
    folder = tmp_path_factory.mktemp("examples")
    for block in blocks_in(list(GUIDE.glob("*.md")), "python"):
        path = folder / (block.module or f"guide_{block.page.stem.replace('-', '_')}.py")
        path.parent.mkdir(exist_ok=True)
        with path.open("a") as module:
            module.write(block.code + "\n\n")
    return folder


def test_the_guides_examples_pass_mypy_strict(examples):
    done = _python(examples, "-m", "mypy", "--strict", "--explicit-package-bases", ".")
    assert done.returncode == 0, done.stdout


def test_the_guides_examples_import(examples):
    pages = sorted(path.stem for path in examples.glob("guide_*.py"))
    done = _python(examples, "-c", f"import shop.app, {', '.join(pages)}")
    assert done.returncode == 0, done.stderr


def test_the_readmes_examples_define_or_import_their_names():
    code = "\n".join(block.code for block in blocks_in([README], "python"))
    ruff = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F821", "-"]
    done = subprocess.run(ruff, input=code, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_readmes_imports_from_pgbus_exist():
    imports = [
        line
        for block in blocks_in([README], "python")
        for line in re.findall(
            r"^from pgbus[\w.]* import (?:[\w, ]+|\([^)]*\))$", block.code, re.MULTILINE
        )
    ]
    for line in imports:
        exec(line, {})


def _python(folder, *arguments):
    environment = {name: text for name, text in os.environ.items() if "PGBUS" not in name}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment | {"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_every_environment_variable_exists():
    known = {f"PGBUS_{name.upper()}" for name in Settings.__dataclass_fields__}
    sources = [
        *(ROOT / "engine").rglob("*.py"),
        *(ROOT / "dashboard").glob("*.py"),
        *(ROOT / "mcp_server").glob("*.py"),
        *(ROOT / "tests").rglob("conftest.py"),
    ]
    known |= {name for path in sources for name in re.findall(r"\bPGBUS_[A-Z_]+", path.read_text())}
    for page in ALL:
        named = set(re.findall(r"\bPGBUS_[A-Z_]*[A-Z]", page.read_text()))
        assert named - known == set(), page.name


@pytest.mark.parametrize("page", ALL, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_link_leads_to_a_page_and_heading_of_the_project(page):
    text = page.read_text()
    for code in blocks(page):
        text = text.replace(code.code, "")
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"\w+:", target):
            continue
        file, _, anchor = target.partition("#")
        linked = page.parent / file if file else page
        assert linked.exists(), target
        if anchor:
            assert anchor in _anchors(linked.read_text()), target


def _anchors(text):
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
