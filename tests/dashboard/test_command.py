"""`pgbus dashboard`: the console by itself."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import pytest
from click.testing import CliRunner
from support.sites import hidden_fields

from pgbus import Workflow, step
from pgbus.dashboard import allow_anyone
from pgbus.dashboard.command import standalone
from pgbus.engine.cli import main

GATE = "def is_staff(request):\n    return request.headers.get('X-Staff') == 'yes'\n"
APP = """
from pgbus import Pgbus, Workflow, step
class Shelved(Workflow):
    @step(wait_for="called")
    def hold(self): ...
bus = Pgbus()
"""
#: As on a machine where pgbus was installed without its extras.
WITHOUT_FLASK = """
import sys
class Without:
    def find_spec(self, name, *_):
        if name == "flask":
            raise ModuleNotFoundError("No module named 'flask'", name=name)
sys.meta_path.insert(0, Without())
from pgbus.engine.cli import main
main()
"""


class Parked(Workflow):
    @step(wait_for="called")
    def hold(self): ...


@pytest.fixture
def folder(database, tmp_path, monkeypatch):
    """The current folder, with the host's modules in it; the database is in the environment."""
    (tmp_path / "gate.py").write_text(GATE)
    (tmp_path / "shelves.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PGBUS_DATABASE_URL", database.url)
    monkeypatch.setenv("USER", "grace")
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.fixture
def refused(folder):
    """Runs the command, which is to end by itself, and returns its lines on standard error."""

    def refused(*arguments, expect):
        result = CliRunner().invoke(main, ["dashboard", *arguments])
        assert result.exit_code == expect, (result.output, result.exception)
        return result.stderr.splitlines()

    return refused


class Console:
    """A console that runs, and where it says that it is."""

    def __init__(self, process):
        self.process = process
        self.told = process.stdout.readline()
        found = re.search(r"http://[^\s;]+", self.told)
        assert found, (self.told, process.communicate(timeout=10))
        self.address = found[0].removesuffix("/")

    def status(self, path, form=None, **headers):
        data = urlencode(form).encode() if form else None
        try:
            with urlopen(Request(f"{self.address}{path}", data, headers), timeout=20) as answer:
                return answer.status
        except HTTPError as refusal:
            return refusal.status

    def text(self, path):
        with urlopen(f"{self.address}{path}", timeout=20) as answer:
            return answer.read().decode()

    def end(self, number):
        """Its exit status and what it left on standard error, once the signal has ended it."""
        self.process.send_signal(number)
        _, errors = self.process.communicate(timeout=20)
        return self.process.returncode, errors


@pytest.fixture
def serve(folder):
    """Starts consoles on free ports."""
    started = []

    def serve(*arguments):
        process = subprocess.Popen(
            [sys.executable, "-m", "pgbus.engine.cli", "dashboard", "--port", "0", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return Console(process)

    yield serve
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("arguments", [(), ("--auth", "gate:is_staff", "--allow-anyone")])
def test_who_is_let_in_must_be_said_and_only_once(refused, arguments):
    assert refused(*arguments, expect=2)[-1] == (
        "Error: say who is let in: --auth module:callable, or --allow-anyone on a machine that only "
        "you can reach."
    )


@pytest.mark.parametrize("auth", ["gate", "gate:", ":is_staff"])
def test_an_auth_without_both_parts_is_refused_with_the_form_it_should_have(refused, auth):
    assert refused("--auth", auth, expect=2)[-1] == (
        f"Error: Invalid value for --auth: {auth!r} is not of the form module:attribute, such as "
        "shop.console:is_staff."
    )


@pytest.mark.parametrize(
    ("auth", "problem"),
    [
        ("nowhere:is_staff", "ModuleNotFoundError: No module named 'nowhere'"),
        ("gate:is_boss", "AttributeError: module 'gate' has no attribute 'is_boss'"),
    ],
)
def test_an_auth_that_is_not_there_is_told(refused, auth, problem):
    assert refused("--auth", auth, expect=2)[0] == f"Error: {auth} cannot be loaded: {problem}"


def test_an_auth_that_cannot_be_called_is_told(refused):
    assert refused("--auth", "gate:__name__", expect=2)[-1] == (
        "Error: Invalid value for --auth: gate:__name__ is no callable."
    )


def test_an_auth_whose_module_raises_is_told_with_its_line(refused, folder):
    broken = folder / "broken.py"
    broken.write_text("\n1 / 0\n")
    told, *lines = refused("--auth", "broken:is_staff", expect=2)
    assert told.endswith("broken:is_staff cannot be loaded: ZeroDivisionError: division by zero")
    assert f"  {broken}:2 in <module>" in lines


def test_a_port_in_use_is_said_in_one_line(refused):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        (told,) = refused("--auth", "gate:is_staff", "--port", str(port), expect=2)
    assert told.startswith(
        f"Error: Port {port} of 127.0.0.1 cannot be used: Address already in use"
    )
    assert told.endswith("Choose others with --port and --host; port 0 is any that is free.")


def test_a_host_that_is_none_is_said_in_one_line(refused):
    (told,) = refused("--auth", "gate:is_staff", "--host", "no host", expect=2)
    assert told.startswith("Error: Port 8900 of no host cannot be used: ")


def test_without_a_database_it_does_not_start(refused, monkeypatch):
    monkeypatch.setenv("PGBUS_DATABASE_URL", "postgresql://127.0.0.1:1/nothing")
    (told,) = refused("--auth", "gate:is_staff", expect=3)
    assert told.startswith("Error: PostgreSQL does not answer: ")


def test_a_database_that_is_not_migrated_is_said_before_anybody_looks(
    refused, empty_database, monkeypatch
):
    monkeypatch.setenv("PGBUS_DATABASE_URL", empty_database.url)
    (told,) = refused("--auth", "gate:is_staff", expect=1)
    assert "pgbus migrate" in told


def test_help_lists_it():
    assert re.search(
        r"^  dashboard +Serve the operator's console",
        CliRunner().invoke(main, ["--help"]).stdout,
        re.MULTILINE,
    )


@pytest.mark.parametrize(
    ("host", "ending"), [("127.0.0.1", signal.SIGINT), ("localhost", signal.SIGTERM)]
)
def test_it_lets_in_whom_auth_lets_in_until_a_signal_ends_it_in_order(serve, host, ending):
    console = serve("--auth", "gate:is_staff", "--host", host)
    assert console.told == f"The console is at {console.address}/; Ctrl-C stops it.\n"
    assert console.status("/workflows") == 403
    assert console.status("/workflows", **{"X-Staff": "yes"}) == 200
    code, said = console.end(ending)
    # The server says so when its threads are slow to begin.
    assert (code, re.sub(r"Task queue depth is \d+\n", "", said)) == (0, "")


def test_an_address_of_ipv6_is_shown_as_browsers_want_it(serve):
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError as problem:
        pytest.skip(f"This machine has no ::1: {problem}")
    console = serve("--allow-anyone", "--host", "::1")
    assert re.fullmatch(r"http://\[::1\]:\d+/pgbus", console.address)
    assert console.status("/workflows") == 200


def test_a_foreign_name_that_leads_to_this_machine_gets_nothing(serve):
    console = serve("--allow-anyone")
    assert console.status("/workflows", Host="evil.example") == 400
    assert console.status("/workflows", Host="localhost:80") == 200


@pytest.mark.parametrize(("arguments", "loaded"), [((), False), (("--app", "shelves:bus"), True)])
def test_classes_are_loaded_with_app_and_without_it_runs_are_shown_all_the_same(
    serve, bus, database, arguments, loaded
):
    run = Parked.start()
    database.rows("UPDATE pgbus.workflows SET workflow_class = 'shelves.Shelved'")
    page = serve("--allow-anyone", *arguments).text(f"/workflows/{run.workflow_id}")
    assert run.workflow_id in page
    assert ("not loaded" not in page) is loaded


@pytest.mark.parametrize(("key", "status"), [("one key", 200), ("another", 400), (None, 400)])
def test_processes_of_one_secret_key_take_each_others_forms(serve, bus, monkeypatch, key, status):
    if key:
        monkeypatch.setenv("PGBUS_DASHBOARD_SECRET_KEY", key)
    elsewhere = standalone(bus, allow_anyone, "one key").test_client()
    form = hidden_fields(elsewhere.get("/pgbus/workflows").text) | {"theme": "dark"}
    cookie = f"pgbus_session={elsewhere.get_cookie('pgbus_session').value}"
    assert serve("--allow-anyone").status("/preferences", form, Cookie=cookie) == status


@pytest.mark.parametrize(
    ("auth", "actor"), [(allow_anyone, "dashboard:grace"), (lambda _request: True, "dashboard")]
)
def test_the_trail_names_who_started_it_only_where_nobody_else_acts(bus, monkeypatch, auth, actor):
    monkeypatch.setenv("USER", "grace")
    run = Parked.start()
    client = standalone(bus, auth, "signs the forms").test_client()
    form = hidden_fields(client.get(f"/pgbus/workflows/{run.workflow_id}").text)
    client.post(f"/pgbus/workflows/{run.workflow_id}/actions/pause", data=form)
    assert run.events[-1].actor == actor


def test_the_root_leads_to_the_console(bus):
    client = standalone(bus, allow_anyone, "signs the forms").test_client()
    assert client.get("/").location == "/pgbus/"


def run_without_flask(*arguments):
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_FLASK, *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


def test_without_flask_it_says_what_to_install():
    refusal = run_without_flask("dashboard")
    assert refusal.returncode == 2
    assert refusal.stderr.splitlines()[-1] == (
        "Error: No module named 'flask': pip install 'pgbus[dashboard]' brings what "
        "`pgbus dashboard` needs."
    )


def test_without_flask_help_does_not_list_it():
    listed = run_without_flask("--help").stdout
    assert "workflows" in listed
    assert "dashboard" not in listed
