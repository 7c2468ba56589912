"""Guards: asked under the run's lock, before the body, in a session that is rolled back."""

from typing import ClassVar

import psycopg
import pytest
import sqlalchemy
from sqlalchemy.orm import sessionmaker
from support.replay import told

from pgbus import Workflow, cancel_if, on_exception, step
from pgbus.engine.states import AttemptStatus, Event, Outcome, RunStatus


class Guarded(Workflow):
    asked: ClassVar[list] = []
    cancels: ClassVar = None
    skips: ClassVar = None
    second_skips: ClassVar = None

    @cancel_if
    def gone(self):
        self.asked.append(("cancel", self.step_name))
        return type(self).cancels and type(self).cancels(self)

    def paid(self):
        self.asked.append(("skip", self.step_name))
        return type(self).skips and type(self).skips(self)

    @step(skip_if="paid", policies=[on_exception(LookupError, action="skip")])
    def remind(self):
        self.asked.append(("body", self.step_name))

    @step
    def close(self):
        self.asked.append(("body", self.step_name))


class Elsewhere(Workflow):
    @step(wait=3600)
    def later(self): ...


class Renewing(Guarded):
    """Its errors are reattempted once."""

    policies = (on_exception(OSError, action="reattempt", max_reattempts=1),)


@pytest.fixture
def bus_options(database):
    return {"session_factory": sessionmaker(database.engine)}


@pytest.fixture
def perform(bus, driver, monkeypatch):
    def perform(cancels=None, skips=None, workflow=Guarded):
        monkeypatch.setattr(Guarded, "asked", [])
        monkeypatch.setattr(Guarded, "cancels", cancels)
        monkeypatch.setattr(Guarded, "skips", skips)
        run = workflow.start()
        driver.drain()
        return run.reload()

    return perform


def test_guards_are_asked_before_every_step_cancel_first(perform):
    assert perform().status is RunStatus.FINISHED
    assert Guarded.asked == [
        ("cancel", "remind"), ("skip", "remind"), ("body", "remind"),
        ("cancel", "close"), ("body", "close"),
    ]  # fmt: skip


def test_a_true_cancel_if_cancels_and_nothing_else_is_asked(perform):
    run = perform(cancels=lambda self: "yes", skips=lambda self: True)
    assert Guarded.asked == [("cancel", "remind")]
    (attempt,) = run.steps
    assert run.status is RunStatus.CANCELLED
    assert (attempt.status, attempt.outcome) == (AttemptStatus.CANCELLED, Outcome.CANCELLED)
    assert told(run) == [
        Event.STARTED, Event.STEP_SCHEDULED, Event.STEP_STARTED, Event.CANCELLED
    ]  # fmt: skip
    assert run.events[-1].reason == "cancel_if gone"


def test_a_true_skip_if_skips_the_step_and_the_run_goes_on(perform):
    run = perform(skips=lambda self: [1])
    assert ("body", "remind") not in Guarded.asked
    assert [attempt.status for attempt in run.steps] == [
        AttemptStatus.SKIPPED, AttemptStatus.COMPLETED
    ]  # fmt: skip
    assert told(run)[2:4] == [Event.STEP_STARTED, Event.STEP_SKIPPED]
    assert run.status is RunStatus.FINISHED


@pytest.mark.parametrize("falsy", [False, None, 0, ""])
def test_what_is_false_lets_the_body_run(perform, falsy):
    perform(cancels=lambda self: falsy, skips=lambda self: falsy)
    assert ("body", "remind") in Guarded.asked


def test_the_run_is_locked_while_its_guards_are_asked(database, perform):
    seen = []

    def look(self):
        with database.connection() as connection:
            try:
                connection.execute("SELECT 1 FROM pgbus.workflows FOR UPDATE NOWAIT")
            except psycopg.errors.LockNotAvailable:
                seen.append("locked")

    perform(cancels=look, skips=look)
    assert seen == ["locked"] * 3


def test_the_claim_is_not_visible_before_the_guards_have_answered(database, perform):
    seen = []
    status = "SELECT status FROM pgbus.workflow_steps ORDER BY step_id DESC LIMIT 1"
    perform(cancels=lambda self: seen.append(database.value(status)))
    assert seen == ["scheduled", "scheduled"]


def test_a_guards_writes_are_rolled_back_and_its_session_closed(database, perform):
    database.rows("CREATE TABLE notes (note text)")

    def write(self):
        self.session.execute(sqlalchemy.text("INSERT INTO notes VALUES ('from a guard')"))

    perform(cancels=write, skips=write)
    assert database.value("SELECT count(*) FROM notes") == 0
    assert database.engine.pool.checkedout() == 0


def raising(error):
    def guard(self):
        raise error

    return guard


def breaking_transaction(self):
    self.session.execute(sqlalchemy.text("SELECT * FROM no_such_table"))


def breaking_connection(self):
    pid = self.session.scalar(sqlalchemy.text("SELECT pg_backend_pid()"))
    with psycopg.connect(
        self.session.get_bind().url.render_as_string().replace("+psycopg", "")
    ) as c:
        c.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])
    self.session.scalar(sqlalchemy.text("SELECT 1"))


class StrangeError(BaseException): ...


@pytest.mark.parametrize("place", ["cancels", "skips"])
@pytest.mark.parametrize(
    ("guard", "name"),
    [
        (raising(ValueError("no")), "ValueError"),
        (raising(StrangeError()), f"{__name__}.StrangeError"),
        (breaking_transaction, "sqlalchemy.exc.ProgrammingError"),
        (breaking_connection, "sqlalchemy.exc.OperationalError"),
        (lambda self: self.pause(), "pgbus.engine.errors.NotInStep"),
        (lambda self: self.reattempt(), "pgbus.engine.errors.NotInStep"),
        (lambda self: self.output(a=1), "pgbus.engine.errors.NotInStep"),
        (lambda self: self.checkpoint(), "pgbus.engine.errors.NotInStep"),
    ],
    ids=[
        "error",
        "base",
        "transaction",
        "connection",
        "pause",
        "reattempt",
        "output",
        "checkpoint",
    ],
)
def test_an_error_in_a_guard_is_recorded_and_pauses(perform, database, place, guard, name):
    run = perform(**{place: guard})
    (attempt,) = run.steps
    assert run.status is RunStatus.PAUSED
    assert (attempt.status, attempt.error_class) == (AttemptStatus.FAILED, name)
    assert told(run)[-3:] == [Event.STEP_STARTED, Event.STEP_FAILED, Event.PAUSED]
    assert database.value("SELECT count(*) FROM pgmq.q_pgbus_workflows") == 0


def test_an_error_in_a_guard_goes_through_the_policies(perform):
    run = perform(skips=raising(LookupError()))
    assert run.status is RunStatus.FINISHED
    assert run.steps[0].status is AttemptStatus.SKIPPED
    run = perform(cancels=raising(OSError()), workflow=Renewing)
    assert [attempt.reattempted_by for attempt in run.steps] == ["policy", None]
    assert run.status is RunStatus.PAUSED


@pytest.mark.parametrize("verb", ["pause", "cancel", "resume", "skip", "run_now", "rerun"])
def test_a_verb_on_the_own_run_from_a_guard_is_refused_and_everything_is_intact(bus, perform, verb):
    run = perform(cancels=lambda self: getattr(bus.find(self.workflow_id), verb)())
    (attempt,) = run.steps
    assert attempt.error_class == "pgbus.engine.errors.InvalidTransition"
    assert "own guard" in attempt.error_message
    assert run.status is RunStatus.PAUSED


def test_a_refused_verb_that_the_guard_swallows_changes_nothing(bus, perform):
    def guard(self):
        try:
            bus.find(self.workflow_id).cancel()
        except Exception:  # noqa: BLE001 (what a host's guard may do)
            return False

    assert perform(cancels=guard).status is RunStatus.FINISHED


def test_a_verb_on_another_run_is_a_guards_own_business(bus, perform):
    other = bus.start(Elsewhere)
    run = perform(cancels=lambda self: other.pause(reason="by a guard") and False)
    assert (run.status, other.reload().status) == (RunStatus.PAUSED, RunStatus.PAUSED)
    # The second step's guard finds it paused already.
    assert run.steps[-1].error_class == "pgbus.engine.errors.InvalidTransition"


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_a_guard_that_ends_the_process_leaves_the_claim_undone(
    bus, database, driver, perform, error
):
    with pytest.raises(error):
        perform(cancels=raising(error()))
    Guarded.cancels = None
    run = bus.find(database.value("SELECT workflow_id::text FROM pgbus.workflows"))
    assert run.status is RunStatus.READY
    driver.redeliver()
    driver.drain()
    assert run.reload().status is RunStatus.FINISHED
    assert Event.STALL_DETECTED not in told(run)
