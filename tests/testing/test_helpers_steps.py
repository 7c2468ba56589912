"""Steps in a test's hands: the next one, a named one, all of them."""

from __future__ import annotations

import pytest
from sqlalchemy.orm import scoped_session, sessionmaker
from support import hosts

from pgbus import (
    InvalidTransition,
    RunNotFound,
    StepContext,
    StepWaiting,
    Workflow,
    on_exception,
    step,
)
from pgbus.testing import perform_next_step, run_step_inline, speedrun, taking

done = []


@pytest.fixture(autouse=True)
def nothing_done():
    done.clear()


def note(workflow):
    done.append(workflow.step_name)


class Plain(Workflow):
    one = step(note)
    two = step(note)
    three = step(note)


class FarOff(Workflow):
    soon = step(note, wait=30)
    days_ahead = step(note, wait=2 * 86_400)


class Guarded(Workflow):
    skipped = step(note, skip_if=lambda _self: True)
    last = step(note)


class Flaky(Workflow):
    @step(policies=[on_exception(ConnectionError, action="reattempt", wait=3600, max_reattempts=2)])
    def call(self):
        note(self)
        if self.attempt <= self.arguments["failures"]:
            raise ConnectionError("the line is down")


class Endless(Workflow):
    @step
    def again(self):
        self.reattempt()


class Waits(Workflow):
    ship = step(note, wait_for="shipped")


def states(run):
    return [(one.step_name, one.status) for one in run.steps]


def events(run, name):
    return [(event.step_name, event.actor) for event in run.events if event.event == name]


def test_only_the_next_step_is_performed_and_the_run_comes_back_reloaded(bus):
    run = bus.start(Plain)
    assert perform_next_step(run) is run
    assert done == ["one"]
    assert (run.status, run.current_step) == ("ready", "two")


def test_a_due_step_is_not_pulled_forward(bus):
    run = perform_next_step(bus.start(Plain))
    assert events(run, "run_now") == []


def test_a_wait_is_pulled_forward_on_the_trail_by_the_helpers(bus):
    run = bus.start(FarOff)
    perform_next_step(run)
    perform_next_step(run)
    assert done == ["soon", "days_ahead"]
    assert run.status == "finished"
    assert events(run, "run_now") == [
        ("soon", "test_helpers"),
        ("days_ahead", "test_helpers"),
    ]


def test_a_lost_message_is_sent_again(bus, database):
    run = bus.start(Plain)
    database.rows("DELETE FROM pgmq.q_pgbus_workflows")
    assert perform_next_step(run).current_step == "two"


def test_other_runs_and_their_messages_are_left_alone(bus, database):
    first, second = bus.start(Plain), bus.start(Plain)
    before = hosts.messages(database)[0]
    speedrun(second)
    assert second.status == "finished"
    assert hosts.messages(database) == [before]
    assert states(first.reload()) == [("one", "scheduled")]


def test_no_message_of_a_finished_run_is_left(bus, database):
    speedrun(bus.start(Plain))
    assert hosts.messages(database) == []


def test_guards_are_asked(bus):
    assert states(speedrun(bus.start(Guarded))) == [("skipped", "skipped"), ("last", "completed")]


def test_a_body_runs_as_in_a_worker(bus):
    class Asks(Workflow):
        @step
        def ask(self):
            done.append(StepContext.current().step)

    run = speedrun(bus.start(Asks))
    assert done == ["ask"]
    assert run.steps[0].worker == taking.worker_of(bus.services).name


def test_a_worker_passes_a_step_over_that_is_in_the_helpers_hands(bus, driver):
    class Looks(Workflow):
        @step
        def look(self):
            done.append(driver.drain())

    speedrun(bus.start(Looks))
    assert done == [0]


def test_a_step_that_another_worker_took_is_told(bus, driver, monkeypatch):
    def too_late(_run, _delivery):
        driver.redeliver()
        driver.drain()

    monkeypatch.setattr(taking, "perform", too_late)
    with pytest.raises(InvalidTransition, match="another worker took its step 'one' first") as told:
        perform_next_step(bus.start(Plain))
    assert told.value.status == "finished"


def test_a_named_step_is_performed_when_it_is_next(bus):
    run = bus.start(Plain)
    run_step_inline(run, "one")
    assert run_step_inline(run, "two").current_step == "three"
    assert done == ["one", "two"]


def test_another_step_than_the_named_one_is_not_performed(bus):
    run = bus.start(Plain)
    with pytest.raises(InvalidTransition, match="is on its step 'one', not on 'two'") as told:
        run_step_inline(run, "two")
    assert told.value.status == "ready"
    assert done == []


def test_whatever_step_is_named_a_run_that_cannot_move_says_what_it_is_at(bus):
    run = perform_next_step(bus.start(Waits))
    for name in ("ship", "unknown"):
        with pytest.raises(StepWaiting, match="deliver_signal"):
            run_step_inline(run, name)


def test_a_speedrun_goes_through_waits_and_reattempts_to_the_end(bus):
    run = speedrun(bus.start(Flaky, failures=2))
    assert run.status == "finished"
    assert done == ["call", "call", "call"]


def test_a_speedrun_stops_where_the_run_pauses(bus):
    run = speedrun(bus.start(Flaky, failures=3))
    assert run.status == "paused"
    assert run.steps[-1].error_message == "the line is down"
    assert speedrun(run.resume()).status == "finished"


def test_a_speedrun_of_a_run_at_rest_does_nothing(bus):
    assert speedrun(bus.start(Plain).pause()).status == "paused"
    assert speedrun(bus.start(Plain).cancel()).status == "cancelled"
    assert done == []


def test_a_speedrun_gives_up_after_max_steps(bus):
    with pytest.raises(RuntimeError, match="still ready at 'again' after 5 steps"):
        speedrun(bus.start(Endless), max_steps=5)
    assert speedrun(bus.start(Plain), max_steps=3).status == "finished"


def test_a_run_that_waits_for_a_signal_names_it_and_its_helpers(bus):
    run = bus.start(Waits)
    with pytest.raises(
        StepWaiting, match=r"'ship' for the signal 'shipped': .*deliver_signal.*expire_wait"
    ):
        speedrun(run)
    with pytest.raises(StepWaiting):
        perform_next_step(run)
    assert done == []


def test_a_run_that_performs_says_where(bus, driver):
    run = bus.start(Plain)
    driver.take()
    with pytest.raises(InvalidTransition, match="performing 'one' in test:1: ") as told:
        perform_next_step(run)
    assert told.value.status == "performing"
    with pytest.raises(InvalidTransition, match="performing"):
        speedrun(run)
    run.cancel()


def test_a_paused_run_says_why_and_how_it_goes_on(bus):
    run = speedrun(bus.start(Flaky, failures=3))
    with pytest.raises(
        InvalidTransition,
        match=r"paused at 'call' by ConnectionError \(the line is down\): go on with run\.resume\(\)",
    ):
        perform_next_step(run)
    with pytest.raises(InvalidTransition, match=r"paused at 'one': go on with run\.resume\(\)"):
        perform_next_step(bus.start(Plain).pause())


def test_a_run_that_is_over_says_so(bus):
    with pytest.raises(InvalidTransition, match="is finished: it is over"):
        perform_next_step(speedrun(bus.start(Plain)))
    with pytest.raises(InvalidTransition, match="is cancelled: it is over"):
        run_step_inline(bus.start(Plain).cancel(), "one")


class TestWithTheHostsSession:
    @pytest.fixture
    def session(self, database):
        hosts.make_purchases(database, 1)
        session = scoped_session(sessionmaker(database.engine))
        yield session
        session.remove()

    @pytest.fixture
    def bus_options(self, session):
        return {"session_factory": session}

    def test_the_tests_scoped_session_is_not_the_bodys(self, bus, session):
        class Marks(Workflow[hosts.Purchase]):
            @step
            def mark(self):
                self.require_subject().state = "marked"

        purchase = session.get(hosts.Purchase, 1)
        draft = hosts.Purchase(id=2, state="draft")
        session.add(draft)
        speedrun(bus.start(Marks, purchase))
        assert draft in session.new
        session.refresh(purchase)
        assert purchase.state == "marked"

    def test_a_run_that_is_not_committed_yet_is_told(self, bus, session):
        run = bus.start(Plain.options(session=session))
        with pytest.raises(RunNotFound) as told:
            speedrun(run)
        assert told.value.__notes__ == [
            "A run that was started with session= exists once that session committed."
        ]


def test_the_helpers_need_no_pytest():
    import subprocess
    import sys

    code = "import sys, pgbus.testing; print('pytest' in sys.modules, 'alembic' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "False False\n"
