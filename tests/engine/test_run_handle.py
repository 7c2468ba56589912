"""What a handle reads of its run, and how a run is found."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from support.database import Database
from support.driving import Driver

from pgbus import Pgbus, Workflow, removed_step, step
from pgbus.engine.definition import registry
from pgbus.engine.errors import RunNotFound


class Order(Workflow):
    @step
    def reserve(self):
        return {"place": self.attempt}

    exported = removed_step()
    mailed = removed_step()

    @step
    def ship(self): ...


class RushOrder(Order):
    """The same, faster."""


class Other(Workflow):
    @step
    def reserve(self): ...


class FirstOutputOnly(Workflow):
    @step
    def measure(self):
        if self.attempt == 1:
            self.output(grams=5)

    @step
    def stop(self):
        self.pause()


class Earlier(Workflow):
    @step
    def exported(self): ...

    @step
    def ship(self): ...


def deploy(monkeypatch, old, new):
    """From here on the dotted name of `old` means what `new` declares."""
    name = old._definition.name
    monkeypatch.setitem(registry._definitions, name, replace(new._definition, name=name))


def test_a_handle_reads_the_run(bus, driver):
    before = datetime.now(UTC) - timedelta(minutes=1)
    run = Order.start(plan="pro")
    assert run.workflow_class == f"{__name__}.Order"
    assert (run.status, run.current_step, run.ended_at) == ("ready", "reserve", None)
    assert before < run.created_at < datetime.now(UTC) + timedelta(minutes=1)
    assert run.arguments == {"plan": "pro"}
    assert (run.subject, run.rerun_of, run.reruns, run.duplicate_start) == (None, None, [], False)
    assert run.outputs == {}
    assert run.workflow_id in repr(run)
    driver.drain()
    assert run.status == "ready"
    assert run.reload() is run
    assert (run.status, run.current_step) == ("finished", "ship")
    assert run.ended_at >= run.created_at
    assert run.outputs == {"reserve": {"place": 1}}
    assert [(s.step_name, s.attempt, s.status, s.outcome) for s in run.steps] == [
        ("reserve", 1, "completed", "completed"), ("ship", 1, "completed", "completed"),
    ]  # fmt: skip
    assert run.steps[0].output == {"place": 1}
    assert run.steps[1].output is None


def test_a_run_is_found_by_its_class_its_bases_and_workflow_but_not_by_others(bus):
    run, rush = Order.start(), RushOrder.start()
    assert Order.find(run.workflow_id).workflow_id == run.workflow_id
    assert RushOrder.find(run.workflow_id) is None
    assert Other.find(run.workflow_id) is None
    for kind in (RushOrder, Order, Workflow):
        assert kind.find(rush.workflow_id).workflow_id == rush.workflow_id
    assert Other.find(rush.workflow_id) is None


def test_nothing_is_found_under_an_unknown_id_or_what_is_none(bus):
    for workflow_id in ("0" * 32, "", "order-7", "\0", "'", "0x7"):
        assert Workflow.find(workflow_id) is None
        assert bus.find(workflow_id) is None


def test_a_run_whose_class_is_gone_is_found_by_workflow_only(bus, monkeypatch):
    run = Order.start()
    monkeypatch.delitem(registry._definitions, run.workflow_class)
    assert Order.find(run.workflow_id) is None
    found = Workflow.find(run.workflow_id)
    assert found.workflow_class == run.workflow_class
    assert found.definition_outdated is False


def test_the_outputs_are_those_of_the_latest_completed_attempts(bus, driver):
    run = FirstOutputOnly.start()
    driver.drain()
    assert run.outputs == {"measure": {"grams": 5}}
    run.resume_at("measure")
    driver.drain()
    assert [s.attempt for s in run.steps if s.step_name == "measure"] == [1, 2]
    assert run.outputs == {}


@pytest.mark.rows_by_hand
def test_a_deleted_run_is_not_there_to_be_read_again(bus, database):
    run = Order.start()
    database.rows("DELETE FROM pgbus.workflow_steps")
    database.rows("DELETE FROM pgbus.workflows")
    with pytest.raises(RunNotFound, match=f"no run {run.workflow_id} \\(any more\\)"):
        run.reload()
    with pytest.raises(RunNotFound, match=run.workflow_id):
        _ = run.available_actions
    assert run.steps == []


def test_a_run_that_began_on_other_steps_is_outdated(bus, monkeypatch):
    run = Earlier.start()
    assert run.definition_outdated is False
    deploy(monkeypatch, Earlier, Order)
    assert run.definition_outdated is True


def test_the_ongoing_runs_on_removed_steps_are_counted_for_each(bus, monkeypatch):
    assert Order.removed_steps_in_flight() == {"exported": 0, "mailed": 0}
    assert Other.removed_steps_in_flight() == {}
    first, second, third = (Earlier.start() for _ in range(3))
    first.pause()
    second.cancel()
    deploy(monkeypatch, Earlier, Order)
    assert bus.removed_steps_in_flight(registry.find(third.workflow_class)) == {
        "exported": 2,
        "mailed": 0,
    }


def test_wait_returns_the_run_once_it_has_ended(bus):
    run = Order.start()
    worker = threading.Thread(target=Driver(bus).drain)
    worker.start()
    assert run.wait(timedelta(seconds=10)) is run
    worker.join()
    assert run.status == "finished"
    assert run.wait(0).status == "finished"


def test_wait_gives_up_after_its_time_and_says_where_the_run_is(bus):
    run = Order.start().pause()
    with pytest.raises(TimeoutError, match=f"{run.workflow_id} is still paused at reserve"):
        run.wait(0.06)


def test_each_bus_finds_its_own_runs(bus, server, template):
    run = Order.start()
    elsewhere = Database(server, template=template)
    other = Pgbus(database_url=elsewhere.url)
    try:
        assert other.find(run.workflow_id) is None
        assert bus.find(run.workflow_id) is not None
    finally:
        other.close()
        assert elsewhere.close() == []
