"""`pgbus dashboard`: the console by itself."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import pytest
from support.sites import hidden_fields

from pgbus import Workflow, step
from pgbus.dashboard import allow_anyone
from pgbus.dashboard.command import standalone

PGBUS = (sys.executable, "-m", "pgbus.engine.cli")
SIGNED_IN = "def is_staff(request):\n    return request.headers.get('X-Staff') == 'yes'\n"
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
def environment(database, tmp_path):
    """What the command finds: the database, and `gate.py` in the current folder."""
    (tmp_path / "gate.py").write_text(SIGNED_IN)
    kept = {name: text for name, text in os.environ.items() if not name.startswith("PGBUS_")}
    return {
        "cwd": tmp_path,
        "env": {**kept, "PGBUS_DATABASE_URL": database.url, "USER": "grace"},
        "text": True,
    }


@pytest.fixture
def refused(environment):
    """Runs the command, which is to end by itself, and returns what it says on standard error."""

    def refused(*arguments, expect, program=PGBUS):
        done = subprocess.run(
            [*program, "dashboard", *arguments],
            **environment,
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == expect, done.stderr
        assert "Traceback" not in done.stderr
        return done.stderr

    return refused


class Console:
    """A console that runs, and where it says that it is."""

    def __init__(self, process):
        self.process = process
        self.told = process.stdout.readline()
        found = re.search(r"http://\S+", self.told)
        assert found, (self.told, process.stderr.read() if process.poll() else "")
        self.address = found[0].removesuffix("/")

    def get(self, path, **headers):
        return urlopen(Request(f"{self.address}{path}", headers=headers), timeout=10)

    def end(self, number):
        """Its exit status and what it left on standard error, once the signal has ended it."""
        self.process.send_signal(number)
        _, errors = self.process.communicate(timeout=20)
        return self.process.returncode, errors


@pytest.fixture
def serve(environment):
    """Starts consoles on free ports."""
    started = []

    def serve(*arguments, **variables):
        process = subprocess.Popen(
            [*PGBUS, "dashboard", "--port", "0", *arguments],
            **{**environment, "env": environment["env"] | variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        started.append(process)
        return Console(process)

    yield serve
    for process in started:
        process.kill()
        process.communicate()


def last_line(text):
    return text.splitlines()[-1]


@pytest.mark.parametrize("arguments", [(), ("--auth", "gate:is_staff", "--allow-anyone")])
def test_who_is_let_in_must_be_said_and_only_once(refused, arguments):
    assert last_line(refused(*arguments, expect=2)) == (
        "Error: say who is let in: --auth module:callable, or --allow-anyone on a machine that only "
        "you can reach."
    )


@pytest.mark.parametrize(
    ("auth", "told"),
    [
        ("gate", "'gate' is not of the form module:attribute, such as shop.console:is_staff."),
        ("gate:", "'gate:' is not of the form module:attribute, such as shop.console:is_staff."),
        ("nowhere:is_staff", "cannot be loaded: ModuleNotFoundError: No module named 'nowhere'"),
        ("gate:is_boss", "AttributeError: module 'gate' has no attribute 'is_boss'"),
        ("gate:__name__", "gate:__name__ is no callable."),
    ],
)
def test_an_auth_that_is_none_is_refused_with_the_reason(refused, auth, told):
    assert last_line(refused("--auth", auth, expect=2)).endswith(told)


def test_an_auth_whose_module_raises_is_told_with_its_line(refused, environment):
    broken = environment["cwd"] / "broken.py"
    broken.write_text("\n1 / 0\n")
    assert refused("--auth", "broken:is_staff", expect=2).splitlines() == [
        "Error: broken:is_staff cannot be loaded: ZeroDivisionError: division by zero",
        f"  {broken}:2 in <module>",
    ]


def test_a_port_in_use_is_said_in_one_line(refused):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        told = refused("--auth", "gate:is_staff", "--port", str(port), expect=2)
    assert re.fullmatch(
        rf"Error: Port {port} of 127\.0\.0\.1 cannot be used: Address already in use.* "
        r"Choose others with --port and --host; port 0 is any that is free\.\n",
        told,
    )


def test_a_host_that_is_none_is_said_in_one_line(refused):
    told = refused("--auth", "gate:is_staff", "--host", "no host", expect=2)
    assert told.startswith("Error: Port 8900 of no host cannot be used: ")
    assert told.count("\n") == 1


def test_without_a_database_it_does_not_start(refused, environment):
    environment["env"]["PGBUS_DATABASE_URL"] = "postgresql://127.0.0.1:1/nothing"
    told = refused("--auth", "gate:is_staff", expect=3)
    assert told.startswith("Error: PostgreSQL does not answer: ")


def test_a_database_that_is_not_migrated_is_said_before_anybody_looks(
    refused, environment, empty_database
):
    environment["env"]["PGBUS_DATABASE_URL"] = empty_database.url
    assert "pgbus migrate" in refused("--auth", "gate:is_staff", expect=1)


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_until_a_signal_ends_it_in_order(serve, ending):
    console = serve("--auth", "gate:is_staff")
    assert console.told == f"The console is at {console.address}/; Ctrl-C stops it.\n"
    assert "No run" in console.get("/workflows", **{"X-Staff": "yes"}).read().decode()
    assert console.end(ending) == (0, "")


@pytest.mark.parametrize(
    ("host", "shown"), [("localhost", r"127\.0\.0\.1|\[::1\]"), ("::1", r"\[::1\]")]
)
def test_a_host_of_either_family_is_listened_on_and_shown(serve, host, shown):
    console = serve("--allow-anyone", "--host", host)
    assert re.fullmatch(rf"http://({shown}):\d+/pgbus", console.address)
    assert console.get("/").status == 200


def test_whom_auth_refuses_is_not_let_in(serve):
    console = serve("--auth", "gate:is_staff")
    with pytest.raises(HTTPError, match="403"):
        console.get("/workflows")


def test_an_open_door_is_warned_of(serve):
    console = serve("--allow-anyone")
    assert console.end(signal.SIGTERM) == (
        0,
        "The dashboard pgbus lets anybody in (allow_anyone).\n",
    )


def test_the_root_leads_to_the_console(serve):
    console = serve("--allow-anyone")
    with urlopen(console.address.removesuffix("/pgbus"), timeout=10) as answer:
        assert answer.url == f"{console.address}/"


def test_without_app_runs_are_shown_and_their_classes_are_not_loaded(serve, bus):
    run = Parked.start()
    page = serve("--allow-anyone").get(f"/workflows/{run.workflow_id}").read().decode()
    assert "hold" in page
    assert "not loaded" in page


def test_with_app_the_classes_are_loaded(serve, bus, environment):
    (environment["cwd"] / "shop_with_console.py").write_text(
        "from pgbus import Pgbus, Workflow, step\n"
        "class Kept(Workflow):\n    @step(wait_for='called')\n    def hold(self): ...\n"
        "bus = Pgbus()\n"
        "if __name__ == '__main__':\n    print(Kept.start().workflow_id)\n"
    )
    run = Parked.start()
    serve("--allow-anyone", "--app", "shop_with_console:bus")
    assert run


@pytest.mark.parametrize(
    ("keys", "status"),
    [(("one key", "one key"), 200), (("one key", "another"), 400), (("", ""), 400)],
)
def test_processes_with_one_secret_key_take_each_others_forms(serve, keys, status):
    first, second = (serve("--allow-anyone", PGBUS_DASHBOARD_SECRET_KEY=key) for key in keys)
    with first.get("/workflows") as answer:
        cookie = answer.headers["Set-Cookie"].partition(";")[0]
        form = hidden_fields(answer.read().decode()) | {"theme": "dark"}
    press = Request(f"{second.address}/preferences", urlencode(form).encode(), {"Cookie": cookie})
    try:
        with urlopen(press, timeout=10) as answer:
            assert answer.status == status
    except HTTPError as refusal:
        assert refusal.status == status  # noqa: PT017 (both outcomes are expected)


@pytest.mark.parametrize(
    ("auth", "actor"), [(allow_anyone, "dashboard:grace"), (lambda _request: True, "dashboard")]
)
def test_the_trail_names_who_started_it_only_where_nobody_else_is_known(
    bus, monkeypatch, auth, actor
):
    monkeypatch.setenv("USER", "grace")
    run = Parked.start()
    client = standalone(bus, auth, "signs the forms").test_client()
    form = hidden_fields(client.get(f"/pgbus/workflows/{run.workflow_id}").text)
    client.post(f"/pgbus/workflows/{run.workflow_id}/actions/pause", data=form)
    assert run.events[-1].actor == actor


def test_help_lists_it(refused):
    done = subprocess.run([*PGBUS, "--help"], capture_output=True, text=True, check=True)
    assert re.search(r"^  dashboard +Serve the operator's console", done.stdout, re.MULTILINE)


def test_without_flask_it_says_what_to_install(refused):
    told = refused(expect=2, program=(sys.executable, "-c", WITHOUT_FLASK))
    assert last_line(told) == (
        "Error: No module named 'flask': pip install 'pgbus[dashboard]' brings what "
        "`pgbus dashboard` needs."
    )


def test_without_flask_help_does_not_list_it():
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_FLASK, "--help"], capture_output=True, text=True, check=True
    )
    assert "workflows" in done.stdout
    assert "dashboard" not in done.stdout
