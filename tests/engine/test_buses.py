"""Which bus a call belongs to, and what a bus enters around the host's code."""

from contextlib import contextmanager

import pytest
from support.database import Database
from support.driving import Driver
from support.hosts import NOTHING, Purchase, stored

from pgbus import Pgbus, Workflow, cancel_if, on_exception, step
from pgbus.engine.errors import AmbiguousBus, InvalidSetting, NoBus

entered = []
seen = []
others = []


class Ping(Workflow):
    @step
    def send(self): ...


class Relay(Workflow):
    """Starts a run of `Ping` from inside its body, as `others` says."""

    @step
    def relay(self):
        run = others[0]()
        self.output(workflow_id=run.workflow_id)


class Guarded(Workflow):
    @cancel_if
    def never(self):
        seen.append(("guard", list(entered)))
        return False

    @step(skip_if=lambda self: seen.append(("skip_if", list(entered))))
    def act(self):
        seen.append(("body", list(entered)))
        raise ConnectionError

    @on_exception(ConnectionError)
    def handle(self, error):
        seen.append(("policy", list(entered)))
        return self.finish()


@pytest.fixture(autouse=True)
def clean_lists():
    for one in (entered, seen, others):
        one.clear()


@pytest.fixture
def second(server, template):
    """A bus on a database of its own, beside `bus`."""
    database = Database(server, template=template)
    bus = Pgbus(database_url=database.url)
    bus.test_database = database
    yield bus
    bus.close()
    assert database.close() == []


def test_without_a_bus_a_start_says_how_to_make_one():
    with pytest.raises(NoBus, match=r"bus = Pgbus\(database_url=...\)"):
        Ping.start()


def test_a_closed_bus_is_none(bus):
    other = Pgbus(database_url=bus.settings.database_url)
    other.close()
    assert Ping.start().workflow_id


def test_two_buses_without_an_active_one_are_ambiguous_and_named(bus, second, database):
    for call in (Ping.start, lambda: Ping.start_many([]), lambda: Ping.find("x")):
        with pytest.raises(AmbiguousBus) as raised:
            call()
        for name in (database.name, second.test_database.name, "with bus.active()"):
            assert name in str(raised.value)
    assert stored(database) == NOTHING


def test_the_innermost_active_bus_is_meant(bus, second, database):
    with bus.active():
        with second.active():
            far = Ping.start()
        near = Ping.start()
    assert bus.find(near.workflow_id)
    assert second.find(near.workflow_id) is None
    assert second.find(far.workflow_id)
    assert bus.find(far.workflow_id) is None


def test_start_on_a_bus_means_that_bus_whatever_is_active(bus, second):
    with bus.active():
        run = second.start(Ping, None, n=1)
        keyed = second.start(Ping.options(idempotency_key="k"))
    assert second.find(run.workflow_id).arguments == {"n": 1}
    assert second.start(Ping.options(idempotency_key="k")).workflow_id == keyed.workflow_id
    assert bus.find(run.workflow_id) is None


def test_a_body_belongs_to_the_bus_that_runs_it(bus, second):
    others.append(Ping.start)
    run = second.start(Relay)
    with bus.active():
        Driver(second).drain()
    assert second.find(run.reload().outputs["relay"]["workflow_id"])


def test_a_body_can_start_on_the_other_bus_by_its_name(bus, second):
    others.append(lambda: bus.start(Ping))
    run = second.start(Relay)
    Driver(second).drain()
    started = run.outputs["relay"]["workflow_id"]
    assert bus.find(started)
    assert second.find(started) is None


def test_a_bus_works_only_its_own_runs(bus, second):
    mine, theirs = bus.start(Ping), second.start(Ping)
    assert Driver(bus).drain() == 1
    assert mine.reload().status == "finished"
    assert theirs.reload().status == "ready"


def test_a_run_is_found_by_its_class_and_its_bases(bus):
    run = Ping.start()
    assert Ping.find(run.workflow_id).workflow_id == run.workflow_id
    assert Workflow.find(run.workflow_id).workflow_id == run.workflow_id
    assert Relay.find(run.workflow_id) is None


def test_around_is_entered_around_each_guard_phase_body_and_policy(database):
    @contextmanager
    def around():
        entered.append("in")
        try:
            yield
        finally:
            entered.append("out")

    bus = Pgbus(database_url=database.url, around=around)
    run = Guarded.start()
    Driver(bus).drain()
    status = run.reload().status
    bus.close()
    inside = [(phase, before[-1]) for phase, before in seen]
    assert inside == [("guard", "in"), ("skip_if", "in"), ("body", "in"), ("policy", "in")]
    assert entered == ["in", "out"] * 3
    assert status == "finished"


def test_an_around_that_fails_is_recorded_on_the_attempt(database):
    @contextmanager
    def around():
        raise LookupError("no application")
        yield

    bus = Pgbus(database_url=database.url, around=around)
    run = Ping.start()
    Driver(bus).drain()
    [attempt] = run.reload().steps
    bus.close()
    assert (run.status, attempt.error_message) == ("paused", "no application")


@pytest.mark.parametrize("setting", ["around", "session_factory"])
def test_what_is_not_callable_is_refused_when_the_bus_is_made(database, setting):
    with pytest.raises(InvalidSetting, match=rf"{setting}.* must be callable, such as .*a object"):
        Pgbus(database_url=database.url, **{setting: object()})


def test_a_run_about_another_class_of_record_is_refused_at_its_start(bus):
    with pytest.raises(TypeError, match="about Purchase, and 7 is a int"):
        AboutPurchases.start(7)


class AboutPurchases(Workflow[Purchase]):
    @step
    def only(self): ...


class AboutPurchasesToo(AboutPurchases):
    @step
    def second(self): ...


def test_a_subclass_is_about_the_same_class_of_record(bus):
    with pytest.raises(TypeError, match="AboutPurchasesToo is about Purchase"):
        AboutPurchasesToo.start("7")
