"""A bus on the test's database, and a worker in the test's hands."""

from __future__ import annotations

import sys

import pytest
from click.testing import CliRunner
from support.replay import assert_trail_replays

from pgbus.engine.cli import main


def pytest_configure(config):
    config.addinivalue_line(
        "markers", "rows_by_hand: the test writes rows that no trail leads to, so none is replayed"
    )


@pytest.fixture
def bus(database, bus, request):
    """A bus; when the test is over, the trail of every run is replayed to its rows."""
    yield bus
    bus.close()
    if not request.node.get_closest_marker("rows_by_hand"):
        assert_trail_replays(database)


@pytest.fixture
def pgbus(database, tmp_path, monkeypatch):
    """Runs the command in this process, on the test's database; `shop:make` makes a bus for it."""
    (tmp_path / "shop.py").write_text(
        "from pgbus import Pgbus\ndef make():\n    return Pgbus()\n", encoding="utf-8"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "shop", raising=False)
    monkeypatch.setenv("PGBUS_DATABASE_URL", database.url)

    def pgbus(*arguments, expect=0):
        result = CliRunner().invoke(main, [str(argument) for argument in arguments])
        assert result.exit_code == expect, (result.output, result.exception)
        return result

    yield pgbus
    sys.modules.pop("shop", None)
