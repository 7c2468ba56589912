"""How --app finds the host's bus, and what it says when it does not."""

from __future__ import annotations

import sys

import click
import psycopg
import pytest

from pgbus.engine.cli.app import AppFailure, load
from pgbus.engine.errors import InvalidSetting

URL = "postgresql://localhost/shop"


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes modules into the current folder; what is loaded from there is forgotten."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)

    def write(name, source):
        (tmp_path / f"{name}.py").write_text(source)

    yield write
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.fixture
def load_bus():
    """Loads buses and closes them."""
    opened = []

    def load_bus(app):
        opened.append(load(app))
        return opened[-1]

    yield load_bus
    for bus in opened:
        bus.close()


def refusal(app):
    with pytest.raises(click.BadParameter) as refused:
        load(app)
    return refused.value.format_message()


def failure(app):
    with pytest.raises(AppFailure) as failed:
        load(app)
    assert failed.value.exit_code == 2
    return failed.value.format_message().splitlines()


def test_a_bus_of_a_module_in_the_current_folder_is_found(write, load_bus):
    write("shop_attribute", f"from pgbus import Pgbus\nbus = Pgbus(database_url={URL!r})")
    assert load_bus("shop_attribute:bus") is sys.modules["shop_attribute"].bus


def test_a_callable_is_called_for_its_bus(write, load_bus):
    write(
        "shop_factory",
        f"from pgbus import Pgbus\ndef make():\n    return Pgbus(database_url={URL!r}, schema='made')",
    )
    assert load_bus("shop_factory:make").settings.schema == "made"


@pytest.mark.parametrize("app", ["shop", "shop:", ":bus"])
def test_an_app_without_both_parts_is_refused_with_the_form_it_should_have(app):
    assert f"{app!r} is not of the form module:attribute" in refusal(app)


@pytest.mark.parametrize(
    ("app", "missing"), [("nowhere:bus", "nowhere"), ("nowhere.shop:bus", "nowhere")]
)
def test_a_module_that_does_not_exist_is_named(write, app, missing):
    assert f"There is no module {missing};" in refusal(app)


def test_a_missing_module_of_an_existing_package_is_named(write, tmp_path):
    (tmp_path / "shop_package").mkdir()
    (tmp_path / "shop_package" / "__init__.py").touch()
    assert "There is no module shop_package.app;" in refusal("shop_package.app:bus")


def test_what_the_hosts_module_itself_misses_is_the_hosts_error_with_its_line(write, tmp_path):
    write("shop_broken", "import missing_dependency")
    assert failure("shop_broken:bus") == [
        "shop_broken:bus cannot be loaded: ModuleNotFoundError: No module named 'missing_dependency'",
        f"  {tmp_path / 'shop_broken.py'}:1 in <module>",
    ]


def test_only_the_hosts_own_lines_are_shown_of_an_error_in_its_factory(write, tmp_path):
    write("shop_raises", "import json\ndef make():\n    json.loads('{')")
    told, *lines = failure("shop_raises:make")
    assert told.startswith("shop_raises:make cannot be loaded: json.decoder.JSONDecodeError: ")
    assert lines == [f"  {tmp_path / 'shop_raises.py'}:3 in make"]


def test_a_workflow_that_is_declared_wrongly_is_told_with_its_line(write, tmp_path):
    write("shop_stepless", "from pgbus import Workflow\nclass Order(Workflow): ...\nOrder.start()")
    assert f"  {tmp_path / 'shop_stepless.py'}:3 in <module>" in failure("shop_stepless:bus")


def test_a_bad_setting_in_the_hosts_module_is_told_as_any_other(write):
    write(
        "shop_setting",
        f"from pgbus import Pgbus\nbus = Pgbus(database_url={URL!r}, threads='many')",
    )
    with pytest.raises(InvalidSetting, match="threads"):
        load("shop_setting:bus")


def test_a_database_that_is_away_while_the_host_is_loaded_is_the_databases_failure(write):
    write("shop_away", "import psycopg\nraise psycopg.OperationalError('no route')")
    with pytest.raises(psycopg.OperationalError):
        load("shop_away:bus")


def test_an_attribute_that_is_almost_there_is_suggested(write):
    write("shop_typo", "order_bus = None")
    assert "Module shop_typo has no attribute oder_bus; did you mean order_bus?" in refusal(
        "shop_typo:oder_bus"
    )


def test_an_attribute_that_is_nothing_like_any_other_is_refused_with_the_mend(write):
    write("shop_empty", "")
    assert "name the one that holds your Pgbus(...)" in refusal("shop_empty:bus")


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("app = 'flask'", "shop_other:app is a str, which is no Pgbus"),
        ("def app():\n    return 'flask'", "shop_other:app returns a str, which is no Pgbus"),
        ("app = dict", "shop_other:app returns a dict, which is no Pgbus"),
        ("def app(config): ...", "shop_other:app is a function, which is no Pgbus"),
    ],
)
def test_an_attribute_that_is_no_bus_and_makes_none_is_refused(write, source, told):
    write("shop_other", source)
    refused = refusal("shop_other:app")
    assert told in refused
    assert refused.endswith("or a callable that returns it without arguments.")


def test_a_web_application_is_refused_with_the_bus_beside_it(write):
    write(
        "shop_web",
        "from pgbus import Pgbus\n"
        "class Flask:\n"
        "    def __call__(self, environ, start_response): ...\n"
        f"app, bus = Flask(), Pgbus(database_url={URL!r})\n",
    )
    assert refusal("shop_web:app").endswith(
        "shop_web:app is a Flask, which is no Pgbus; did you mean shop_web:bus?"
    )
    sys.modules["shop_web"].bus.close()
