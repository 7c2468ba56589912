"""What users install, and what `import pgbus` costs them."""

import fnmatch
import os
import subprocess
import sys
import tomllib

import pytest
from contracts.documents import ROOT

SOURCE = ROOT / "src" / "pgbus"
CONFIG = tomllib.loads((ROOT / "pyproject.toml").read_text())

HEAVY = [
    *("alembic", "click", "flask", "jinja2", "mcp", "opentelemetry", "pgmq", "plotly"),
    "prometheus_client",
]


def _folders():
    for folder, folders, files in os.walk(SOURCE, followlinks=True):
        folders[:] = [name for name in folders if name != "__pycache__"]
        yield os.path.relpath(folder, SOURCE.parent), files


@pytest.fixture(scope="module")
def imported():
    code = "import sys, pgbus; print(*sys.modules)"
    return subprocess.check_output([sys.executable, "-c", code], text=True).split()


@pytest.mark.parametrize("package", HEAVY)
def test_importing_pgbus_does_not_import(imported, package):
    assert "pgbus.engine.bus" in imported
    assert package not in imported


def test_every_data_file_is_packaged():
    data = CONFIG["tool"]["setuptools"]["package-data"]
    patterns = [
        f"{package.replace('.', '/')}/{pattern}"
        for package, patterns in data.items()
        for pattern in patterns
    ]
    files = [
        f"{folder}/{file}" for folder, files in _folders() for file in files if file[-3:] != ".py"
    ]
    assert "pgbus/py.typed" in files
    assert "pgbus/engine/storage/functions/40_finalize.sql" in files
    assert [file for file in files if not any(fnmatch.fnmatch(file, one) for one in patterns)] == []


def test_every_folder_with_modules_is_a_package():
    modules = [
        (folder, files) for folder, files in _folders() if any(f[-3:] == ".py" for f in files)
    ]
    assert "pgbus/migrations/versions" in [folder for folder, _ in modules]
    assert [folder for folder, files in modules if "__init__.py" not in files] == []


def test_the_packages_folders_are_links_to_those_at_the_top():
    for name in ("engine", "dashboard", "mcp_server", "migrations", "testing"):
        assert (SOURCE / name).is_symlink()
        assert (SOURCE / name).resolve() == ROOT / name
