"""Transactional steps: what the body writes and its step's completion are one, or nothing."""

import contextlib

import psycopg
import pytest
import sqlalchemy
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, scoped_session, sessionmaker
from support import apps
from support.driving import Driver
from support.scripts import Transactional, script
from support.waiting import eventually
from support.workers import Stage, running

from pgbus import Pgbus
from pgbus.engine.errors import CommitRefused
from pgbus.engine.states import AttemptStatus, Event, RunStatus


class Base(DeclarativeBase): ...


class Effect(Base):
    __tablename__ = "effects"
    id: Mapped[int] = mapped_column(primary_key=True)
    what: Mapped[str]


@pytest.fixture
def sessions(database):
    return sessionmaker(database.engine)


@pytest.fixture
def teardown():
    """What the host's surroundings do when a body has ended: a list of callables."""
    return []


@pytest.fixture
def bus_options(sessions, teardown):
    @contextlib.contextmanager
    def around():
        yield
        while teardown:
            teardown.pop()()

    return {"session_factory": sessions, "around": around}


@pytest.fixture
def effects(database):
    Base.metadata.create_all(database.engine)
    return lambda: [what for (what,) in database.rows("SELECT what FROM effects ORDER BY id")]


@pytest.fixture
def perform(bus, driver, effects):
    """Starts a run whose steps do this, and performs what is due; returns the run."""

    def perform(first, second=None):
        script(first=first, second=second or (lambda self: None))
        run = Transactional.start()
        driver.drain()
        return run.reload()

    return perform


def writing(then=lambda self: None):
    def body(self):
        self.session.add(Effect(what=f"{self.step_name} {self.attempt}"))
        return then(self)

    return body


def attempts(run):
    return [(attempt.step_name, attempt.attempt, attempt.status) for attempt in run.steps]


def errors(run):
    return [attempt.error_class for attempt in run.steps if attempt.error_class]


def reattempted(run):
    return [attempt.reattempted_by for attempt in run.steps if attempt.reattempted_by]


def events(run):
    return [event.event for event in run.events]


def on_first(action):
    """Does it in the first attempt only."""
    return lambda self: action(self) if self.attempt == 1 else None


#: Where a worker is killed, in the order it gets there.
GATES = ("body", "written", "run", "completed", "next", "told", "commit")

ONCE = [("first", 1, AttemptStatus.COMPLETED), ("second", 1, AttemptStatus.COMPLETED)]
AT_THE_SECOND_TRY = [
    ("first", 1, AttemptStatus.FAILED),
    ("first", 2, AttemptStatus.COMPLETED),
    ("second", 1, AttemptStatus.COMPLETED),
]


def test_the_writes_and_the_completion_are_committed_together(database, perform, effects):
    run = perform(writing(lambda self: {"made": 1}))
    ((one, other),) = database.rows(
        "SELECT (SELECT xmin::text FROM effects), (SELECT min(xmin::text) FROM pgbus.workflow_steps"
        " WHERE step_name = 'first')"
    )
    assert one == other
    assert (attempts(run), run.outputs, effects()) == (ONCE, {"first": {"made": 1}}, ["first 1"])


def test_nothing_is_visible_before(database, perform, effects):
    seen = []

    def look(self):
        self.session.flush()
        seen.append(effects())
        seen.append(database.value("SELECT count(*) FROM pgbus.workflow_steps"))

    perform(writing(look))
    assert seen == [[], 1]


@pytest.mark.parametrize("factory", [sessionmaker, scoped_session], ids=lambda one: one.__name__)
@pytest.mark.parametrize("driver_name", ["psycopg", "psycopg2"])
def test_any_host_session_will_do(database, effects, factory, driver_name):
    engine = sqlalchemy.create_engine(database.sqlalchemy_url(driver_name))
    sessions = sessionmaker(engine)
    bus = Pgbus(
        database_url=database.url,
        session_factory=scoped_session(sessions) if factory is scoped_session else sessions,
    )
    script(first=writing())
    run = bus.start(Transactional)
    Driver(bus).drain()
    assert (attempts(run), effects()) == (ONCE, ["first 1"])
    assert engine.pool.checkedout() == 0
    bus.close()
    engine.dispose()


@pytest.mark.parametrize(
    ("end", "status", "kept"),
    [
        (lambda self: self.pause(), RunStatus.PAUSED, True),
        (lambda self: self.finish(), RunStatus.FINISHED, True),
        (lambda self: self.cancel(), RunStatus.CANCELLED, False),
        (lambda self: self.skip(), RunStatus.FINISHED, False),
        (lambda self: self.reattempt(wait=60), RunStatus.READY, False),
        (lambda self: 1 / 0, RunStatus.PAUSED, False),
    ],
    ids=["pause", "finish", "cancel", "skip", "reattempt", "error"],
)
def test_the_writes_stand_when_the_step_completes_and_only_then(
    database, perform, effects, end, status, kept
):
    run = perform(writing(end))
    assert run.status is status
    assert effects() == (["first 1"] if kept else [])
    assert database.engine.pool.checkedout() == 0


def test_a_body_that_commits_is_refused_before_anything_is_committed(perform, effects):
    run = perform(writing(lambda self: self.session.commit()))
    assert (run.status, errors(run)) == (RunStatus.PAUSED, ["pgbus.engine.errors.CommitRefused"])
    assert "Take the commit out" in run.steps[0].error_message
    assert effects() == []


def test_a_commit_inside_a_savepoint_block_is_refused_too(perform, effects):
    def body(self):
        self.session.begin_nested()
        self.session.add(Effect(what="nested"))
        self.session.commit()

    run = perform(body)
    assert (run.status, errors(run)) == (RunStatus.PAUSED, ["pgbus.engine.errors.CommitRefused"])
    assert effects() == []


def test_a_refused_commit_that_is_swallowed_leaves_the_step_whole(perform, effects):
    def body(self):
        with contextlib.suppress(CommitRefused):
            self.session.commit()

    run = perform(writing(body))
    assert (attempts(run), effects()) == (ONCE, ["first 1"])


def test_savepoints_come_and_go(perform, effects):
    def body(self):
        with self.session.begin_nested():
            self.session.add(Effect(what="kept"))
        with self.session.begin_nested() as savepoint:
            self.session.add(Effect(what="dropped"))
            savepoint.rollback()

    run = perform(body)
    assert (attempts(run), effects()) == (ONCE, ["kept"])


def test_the_session_may_commit_again_in_the_next_attempt_of_another_step(perform, effects):
    run = perform(writing(), writing(lambda self: self.session.commit()))
    assert (attempts(run), effects()) == (ONCE, ["first 1", "second 1"])


def test_an_outcome_that_comes_late_takes_the_writes_with_it(bus, driver, perform, effects):
    def stall(self):
        self.session.flush()
        driver.redeliver()
        (again,) = driver.take()
        driver.perform(again)

    run = perform(writing(on_first(stall)))
    assert effects() == ["first 2"]
    assert attempts(run) == AT_THE_SECOND_TRY
    assert events(run).count(Event.LATE_COMPLETION_IGNORED) == 1
    assert events(run).count(Event.STALL_DETECTED) == 1


def test_a_cancel_meanwhile_takes_the_writes_with_it(bus, perform, effects):
    run = perform(writing(lambda self: bus.find(self.workflow_id).cancel() and None))
    assert (run.status, effects()) == (RunStatus.CANCELLED, [])
    assert events(run)[-1] is Event.LATE_COMPLETION_IGNORED


def test_a_pause_meanwhile_keeps_the_writes_and_holds_the_next_step(bus, driver, perform, effects):
    run = perform(writing(lambda self: bus.find(self.workflow_id).pause() and None))
    assert (run.status, effects()) == (RunStatus.PAUSED, ["first 1"])
    assert attempts(run) == ONCE[:1]
    run.resume()
    driver.drain()
    assert attempts(run) == ONCE


def test_a_pause_in_the_steps_own_transaction_is_of_it(bus, perform, effects):
    def pause(self):
        bus.find(self.workflow_id).pause(session=self.session)

    run = perform(writing(pause))
    assert (run.status, effects()) == (RunStatus.PAUSED, ["first 1"])
    assert attempts(run) == ONCE[:1]


def test_a_session_of_another_database_is_refused_before_the_body(
    database, empty_database, effects
):
    bus = Pgbus(database_url=database.url, session_factory=sessionmaker(empty_database.engine))
    ran = []
    script(first=ran.append)
    run = bus.start(Transactional)
    Driver(bus).drain()
    assert (run.reload().status, ran) == (RunStatus.PAUSED, [])
    assert errors(run) == ["pgbus.engine.errors.WrongDatabase"]
    bus.close()


def test_without_a_session_factory_the_step_fails_with_the_mend(database):
    bus = Pgbus(database_url=database.url)
    run = bus.start(Transactional)
    Driver(bus).drain()
    (attempt,) = run.steps
    assert "session_factory" in attempt.error_message
    bus.close()


def refuse_at_commit(database, *, state):
    """A deferred trigger that refuses the effects of first attempts with this SQLSTATE."""
    database.rows(f"""
        CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN RAISE 'refused' USING ERRCODE = '{state}'; END $$;
        CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON effects DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW WHEN (NEW.what = 'first 1') EXECUTE FUNCTION refuse();
    """)


def test_a_commit_that_a_constraint_refuses_goes_to_the_policies(
    database, driver, perform, effects
):
    refuse_at_commit(database, state="23514")
    run = perform(writing())
    assert (run.status, effects()) == (RunStatus.PAUSED, [])
    assert errors(run) == ["sqlalchemy.exc.IntegrityError"]
    run.resume()
    driver.drain()
    assert (attempts(run), effects()) == (AT_THE_SECOND_TRY, ["first 2"])


def test_a_commit_that_was_unlucky_is_tried_again_without_asking_the_policies(
    database, perform, effects
):
    refuse_at_commit(database, state="40001")
    run = perform(writing())
    assert (attempts(run), effects()) == (AT_THE_SECOND_TRY, ["first 2"])
    assert reattempted(run) == ["stall"]
    assert run.steps[0].error_class == "sqlalchemy.exc.OperationalError"
    assert Event.STALL_DETECTED not in events(run)


@pytest.mark.parametrize("driver_name", ["psycopg", "psycopg2"])
def test_a_connection_lost_before_the_flush_is_tried_again(
    database, perform, effects, sessions, driver_name
):
    engine = sqlalchemy.create_engine(database.sqlalchemy_url(driver_name))
    sessions.configure(bind=engine)
    run = perform(writing(on_first(lose_connection(database))))
    assert (attempts(run), effects()) == (AT_THE_SECOND_TRY, ["first 2"])
    assert reattempted(run) == ["stall"]
    engine.dispose()


def test_a_connection_lost_before_the_commit_is_tried_again(database, perform, effects):
    def at_commit(self):
        lose = lose_connection(database)
        sqlalchemy.event.listen(self.session, "before_commit", lambda _session: lose(self))

    run = perform(writing(on_first(at_commit)))
    assert (attempts(run), effects()) == (AT_THE_SECOND_TRY, ["first 2"])
    assert reattempted(run) == ["stall"]


def lose_connection(database):
    def lose(self):
        connection = self.session.connection()
        pid = connection.scalar(sqlalchemy.text("SELECT pg_backend_pid()"))
        database.rows("SELECT pg_terminate_backend(%s, 5000)", pid)

    return lose


def raising(error):
    def fail(*_):
        raise error

    return fail


@pytest.mark.parametrize(
    "error", [psycopg.OperationalError("the connection is lost"), ValueError("a hook")]
)
def test_an_error_that_hides_a_commit_changes_nothing(perform, effects, error):
    def after_commit(self):
        sqlalchemy.event.listen(self.session, "after_commit", raising(error))

    run = perform(writing(on_first(after_commit)))
    assert (attempts(run), effects()) == (ONCE, ["first 1"])
    assert (run.status, errors(run)) == (RunStatus.FINISHED, [])


def test_surroundings_that_fail_after_the_commit_change_nothing(perform, effects, teardown):
    run = perform(writing(on_first(lambda self: teardown.append(raising(ValueError())))))
    assert (attempts(run), effects()) == (ONCE, ["first 1"])
    assert (run.status, errors(run)) == (RunStatus.FINISHED, [])


def test_a_lost_connection_in_the_body_itself_is_the_bodys_error(database, perform, effects):
    def body(self):
        lose_connection(database)(self)
        self.session.execute(sqlalchemy.text("SELECT 1"))

    run = perform(body)
    assert (run.status, reattempted(run)) == (RunStatus.PAUSED, [])


class TestAKilledWorker:
    """SIGKILL at every point between the first write and the commit: one effect, all the same."""

    @pytest.fixture
    def stage(self, database):
        stage = Stage(database)
        database.rows("CREATE TABLE effects (what text)")
        database.rows("""
            CREATE FUNCTION stop() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN
                PERFORM set_config('application_name', 'gate ' || TG_ARGV[0], false);
                PERFORM pg_advisory_xact_lock_shared(hashtext(TG_ARGV[0]));
                PERFORM set_config('application_name', 'host', false);
                RETURN NEW;
            END $$;
            CREATE TRIGGER stop_1 AFTER INSERT ON effects
              FOR EACH ROW WHEN (NEW.what = 'book') EXECUTE FUNCTION stop('written');
            CREATE TRIGGER stop_2 BEFORE UPDATE ON pgbus.workflows
              FOR EACH ROW WHEN (OLD.status = 'performing') EXECUTE FUNCTION stop('run');
            CREATE TRIGGER stop_3 BEFORE UPDATE ON pgbus.workflow_steps
              FOR EACH ROW WHEN (NEW.status = 'completed') EXECUTE FUNCTION stop('completed');
            CREATE TRIGGER stop_4 AFTER INSERT ON pgbus.workflow_steps
              FOR EACH ROW WHEN (NEW.step_name = 'confirm') EXECUTE FUNCTION stop('next');
            CREATE TRIGGER stop_5 AFTER INSERT ON pgbus.workflow_events
              FOR EACH ROW WHEN (NEW.event = 'step_completed') EXECUTE FUNCTION stop('told');
            CREATE CONSTRAINT TRIGGER stop_6 AFTER INSERT ON effects DEFERRABLE INITIALLY DEFERRED
              FOR EACH ROW WHEN (NEW.what = 'book') EXECUTE FUNCTION stop('commit');
        """)
        return stage

    @pytest.mark.parametrize(
        ("gate", "backend"),
        [
            *((gate, "dies with it") for gate in GATES),
            ("told", "goes on"),
            ("commit", "goes on"),
        ],
    )
    def test_leaves_one_effect_one_completion_and_one_next_step(self, bus, stage, gate, backend):
        with running(stage.database, threads=1) as worker, stage.closed(gate):
            run = bus.start(apps.Booking)
            stage.arrived_at(gate)
            worker.kill()
            assert stage.database.value("SELECT count(*) FROM effects") == 0
            assert stage.attempts(run) == [("book", 1, "in_progress")]
            if backend == "dies with it":
                stage.database.rows(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE application_name = %s",
                    f"gate {gate}",
                )
        # The server learns of the client's death at its next word, which may be after the commit.
        eventually(lambda: not stage.waiting_at(gate))
        stage.redeliver()
        with running(stage.database, threads=1):
            stage.finished(run)
        effects = stage.database.rows("SELECT what, count(*) FROM effects GROUP BY 1 ORDER BY 1")
        assert effects == [("book", 1), ("confirm", 1)]
        completed = [step for step, _, status in stage.attempts(run) if status == "completed"]
        assert completed == ["book", "confirm"]
        assert stage.events(run).count("step_completed") == 2
        assert stage.notes.count("begin confirm") == 1
        committed = backend == "goes on" and gate == "commit"
        assert stage.notes.count("begin book") == (1 if committed else 2)
        assert stage.database.value("SELECT count(*) FROM pgmq.q_pgbus_workflows") == 0
