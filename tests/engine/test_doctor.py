"""What the doctor finds: runs that nothing moves on, and code that does not fit the runs."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from datetime import timedelta

import pytest
from click.testing import CliRunner

from pgbus import FanOut, Workflow, fan_out, job, removed_step, step
from pgbus.engine.cli import main
from pgbus.engine.definition import registry
from pgbus.engine.insights import deployment, liveness
from pgbus.engine.insights.deployment import RunsOnStep


@job(queue="vendors")
def notify(vendor: int) -> None: ...


class Order(Workflow):
    @step
    def reserve(self) -> None: ...

    @step(wait_for="paid")
    def capture(self) -> None: ...

    @fan_out
    def vendors(self, batch: FanOut) -> None:
        batch.add(notify, 1)
        batch.add(notify, 2)

    @step(wait=86_400)
    def remind(self) -> None: ...


ORDER = f"{__name__}.Order"


@pytest.fixture(autouse=True)
def loaded(monkeypatch):
    """The loaded classes: Order alone, until the test declares or forgets one."""
    loaded = {ORDER: Order._definition}
    monkeypatch.setattr(registry, "_definitions", loaded)
    return loaded


@pytest.fixture
def reach(bus, driver):
    """Starts an order and lets it come to a step."""

    def reach(step_name):
        run = Order.start()
        ways = {"capture": None, "vendors": lambda: run.signal("paid"), "remind": run.skip}
        for name, way in ways.items():
            if run.current_step == step_name:
                break
            if way:
                way()
            driver.drain()
            assert run.reload().current_step == name
        return run

    return reach


@pytest.fixture
def missing(bus):
    """What is missing, of each run that nothing moves on."""

    def missing():
        with bus.services.database.autocommit() as connection:
            return [run.missing for run in liveness.broken(connection, bus.settings)]

    return missing


@pytest.fixture
def misfits(bus):
    def misfits():
        with bus.services.database.autocommit() as connection:
            return deployment.misfits(connection)

    return misfits


class TestLiveness:
    @pytest.mark.parametrize(
        ("step_name", "status"),
        [("reserve", "ready"), ("capture", "waiting"), ("vendors", "waiting"), ("remind", "ready")],
    )
    def test_a_run_is_alive_wherever_the_engine_leaves_it(self, reach, missing, step_name, status):
        assert reach(step_name).status == status
        assert missing() == []

    def test_a_woken_run_is_alive(self, reach, missing):
        reach("capture").signal("paid")
        assert missing() == []

    def test_a_run_is_alive_while_its_body_runs(self, driver, reach, missing):
        run = reach("reserve")
        driver.take()
        assert run.reload().status == "performing"
        assert missing() == []

    @pytest.mark.parametrize("step_name", ["reserve", "capture", "vendors", "remind"])
    def test_a_paused_run_has_a_person(self, reach, missing, step_name):
        reach(step_name).pause()
        assert missing() == []

    def test_an_ended_run_needs_nothing(self, reach, missing):
        reach("capture").cancel()
        assert missing() == []

    def test_a_broken_run_is_named_with_its_place(self, bus, database, reach):
        run = reach("reserve")
        message = lose_messages(database)
        with bus.services.database.autocommit() as connection:
            (found,) = liveness.broken(connection, bus.settings)
        assert found == liveness.BrokenRun(
            run.workflow_id, ORDER, "ready", "reserve", 1,
            f"its message {message} is not in the queue pgbus_workflows",
        )  # fmt: skip

    def test_a_running_body_without_message_would_die_unnoticed(
        self, database, driver, reach, missing
    ):
        reach("reserve")
        driver.take()
        message = lose_messages(database)
        assert missing() == [f"its message {message} is not in the queue pgbus_workflows"]

    def test_a_message_in_another_queue_is_not_the_one(self, bus, database, reach, missing):
        run = reach("reserve")
        bus.ensure_queues(["pgbus_workflows_p2"])
        told = []
        for queue in ("pgbus_workflows_p2", "pgbus_nowhere"):
            database.rows("UPDATE pgbus.workflow_steps SET queue = %s", queue)
            told += missing()
        message = run.steps[0].message_id
        assert told == [
            f"its message {message} is not in the queue pgbus_workflows_p2",
            f"its message {message} is not in the queue pgbus_nowhere",
        ]

    @pytest.mark.parametrize(("seconds", "hidden"), [(55, False), (70, True)])
    @pytest.mark.parametrize("status", ["ready", "performing"])
    def test_a_message_is_hidden_no_longer_than_a_delivery(
        self, database, driver, reach, missing, status, seconds, hidden
    ):
        run = reach("reserve")
        if status == "performing":
            driver.take()
        assert run.reload().status == status
        hide_messages(database, seconds)
        told = [one.partition(" in ")[2] for one in missing()]
        hidden_for = "the queue pgbus_workflows is hidden for longer than a delivery lasts"
        assert told == [hidden_for] * hidden

    def test_a_delivery_may_last_as_long_as_the_visibility_timeout(
        self, bus, database, driver, reach
    ):
        reach("reserve")
        driver.take(visibility=300)
        settings = replace(bus.settings, visibility_timeout=timedelta(minutes=5))
        with bus.services.database.autocommit() as connection:
            assert liveness.broken(connection, settings) == []
            assert len(liveness.broken(connection, bus.settings)) == 1

    def test_broken_runs_come_oldest_first(self, bus, database, reach):
        runs = [reach("reserve") for _ in range(3)]
        runs[0].pause()
        runs[0].resume()
        database.rows("DELETE FROM pgmq.q_pgbus_workflows")
        with bus.services.database.autocommit() as connection:
            found = [run.workflow_id for run in liveness.broken(connection, bus.settings)]
        assert found == [run.workflow_id for run in runs]

    def test_a_message_may_be_hidden_until_its_step_is_due(self, database, reach, missing):
        run = reach("reserve")
        hide_messages(database, 300)
        database.rows(
            "UPDATE pgbus.workflow_steps SET scheduled_at = clock_timestamp() + interval '290 s'"
        )
        assert run.reload().status == "ready"
        assert missing() == []

    @pytest.mark.parametrize(
        ("step_name", "change", "told"),
        [
            ("reserve", "message_id = NULL", "it has no message, and the timer has none to send"),
            (
                "reserve",
                "status = 'in_progress'",
                "the run is ready, and its newest attempt is in_progress",
            ),
            (
                "capture",
                "status = 'scheduled'",
                "the run is waiting, and its newest attempt is scheduled",
            ),
            ("capture", "waiting_since = NULL", "its wait was never begun"),
            ("capture", "waiting_for = NULL", "it waits for nothing"),
            ("reserve", "step_name = 'other'", "its newest attempt is of another run or step"),
            (
                "reserve",
                "workflow_id = gen_random_uuid()",
                "its newest attempt is of another run or step",
            ),
            ("reserve", "step_id = -1", "its newest attempt does not exist"),
        ],
    )
    @pytest.mark.rows_by_hand
    def test_an_attempt_that_does_not_fit_its_run_is_told(
        self, database, reach, missing, step_name, change, told
    ):
        run = reach(step_name)
        database.rows(
            f"UPDATE pgbus.workflow_steps SET {change} WHERE step_id ="
            " (SELECT step_id FROM pgbus.workflows WHERE workflow_id = %s)",
            run.workflow_id,
        )
        assert missing() == [told]

    @pytest.mark.parametrize(
        ("change", "told"),
        [
            ("finished_at = clock_timestamp() - interval '59 min'", None),
            (
                "finished_at = clock_timestamp() - interval '61 min'",
                "finished, and the completion did not come",
            ),
            ("withdrawn_at = clock_timestamp()", "was withdrawn"),
            ("resolved_at = clock_timestamp()", "was resolved without it"),
            ("batch_id = gen_random_uuid()", "does not exist"),
        ],
    )
    def test_a_fan_out_has_a_batch_that_will_end(self, database, reach, missing, change, told):
        reach("vendors")
        batch = database.value("SELECT batch_id FROM pgbus.batches")
        database.rows(f"UPDATE pgbus.batches SET {change}")
        assert missing() == ([f"its batch {batch} {told}"] if told else [])

    def test_a_batch_whose_jobs_have_all_ended_is_to_be_finished(self, database, reach, missing):
        reach("vendors")
        database.rows("UPDATE pgbus.batch_counters SET open = 0")
        (told,) = missing()
        assert told.endswith("has no open job, and is not finished")


def lose_messages(database):
    """Deletes the one message of the workflows' queue; returns its id."""
    return database.value("DELETE FROM pgmq.q_pgbus_workflows RETURNING msg_id")


def hide_messages(database, seconds):
    database.rows(
        "UPDATE pgmq.q_pgbus_workflows SET vt = clock_timestamp() + make_interval(secs => %s)",
        seconds,
    )


class TestMisfits:
    def test_a_class_that_fits_its_runs_has_none(self, reach, misfits):
        reach("capture")
        found = misfits()
        assert (found.not_loaded, found.undeclared, found.moved, found.removed) == ((),) * 4

    def test_runs_of_a_class_that_is_not_loaded_are_counted_by_step(self, reach, misfits, loaded):
        for step_name in ("capture", "reserve", "reserve"):
            reach(step_name)
        reach("reserve").cancel()
        loaded.clear()
        expected = (RunsOnStep(ORDER, "capture", 1), RunsOnStep(ORDER, "reserve", 2))
        assert misfits().not_loaded == expected
        assert misfits().undeclared == ()

    def test_a_run_on_a_step_that_its_class_lost_is_found(self, bus, misfits):
        class Export(Workflow):
            @step
            def collect(self) -> None: ...

        Export.start()

        class Export(Workflow):
            @step
            def gather(self) -> None: ...

        name = Export._definition.name
        assert misfits().undeclared == (RunsOnStep(name, "collect", 1),)
        Export.start()
        assert misfits().undeclared == (RunsOnStep(name, "collect", 1),)

    def test_gravestones_tell_how_many_runs_are_on_them(self, bus, misfits):
        class Export(Workflow):
            @step
            def collect(self) -> None: ...

        Export.start()
        Export.start().pause()

        class Export(Workflow):
            collect = removed_step()
            publish = removed_step()

            @step
            def tell(self) -> None: ...

        name = Export._definition.name
        found = misfits()
        assert found.removed == (RunsOnStep(name, "collect", 2), RunsOnStep(name, "publish", 0))
        assert found.undeclared == ()

    def test_an_anonymous_step_moves_when_one_is_inserted_before_another(self, bus, misfits):
        class Export(Workflow):
            @step
            def collect(self) -> None: ...

            @step
            def _(self) -> None: ...

        Export.start()

        class Export(Workflow):
            @step
            def _(self) -> None: ...

            @step
            def collect(self) -> None: ...

            @step
            def _(self) -> None: ...

        name = Export._definition.name
        assert misfits().moved == (RunsOnStep(name, "step_1", 0),)
        Export.start()
        assert misfits().moved == (RunsOnStep(name, "step_1", 0),)

    def test_runs_that_stand_on_a_moved_step_are_counted(self, bus, driver, misfits):
        class Export(Workflow):
            @step
            def collect(self) -> None: ...

            @step(wait=60)
            def _(self) -> None: ...

        Export.start()
        driver.drain()

        class Export(Workflow):
            @step(wait=60)
            def _(self) -> None: ...

            @step
            def collect(self) -> None: ...

        assert misfits().moved == (RunsOnStep(Export._definition.name, "step_1", 1),)

    def test_named_steps_that_come_and_go_move_no_anonymous_one(self, bus, misfits):
        class Export(Workflow):
            @step
            def collect(self) -> None: ...

            @step
            def sort(self) -> None: ...

            @step
            def _(self) -> None: ...

        Export.start()

        class Export(Workflow):
            @step
            def check(self) -> None: ...

            @step
            def collect(self) -> None: ...

            @step
            def _(self) -> None: ...

            @step
            def _(self) -> None: ...

        assert misfits().moved == ()

    def test_a_step_that_is_only_called_like_an_anonymous_one_is_none(self, bus, misfits):
        class Export(Workflow):
            @step
            def collect(self) -> None: ...

            @step
            def step_1(self) -> None: ...

        Export.start()

        class Export(Workflow):
            @step
            def step_1(self) -> None: ...

            @step
            def collect(self) -> None: ...

        assert misfits().moved == ()


def beat(database, kind, *queues, seconds_ago=0):
    database.rows(
        "INSERT INTO pgbus.processes VALUES (gen_random_uuid(), %s, 'host', 7, NULL, %s::jsonb, now(),"
        " now() - make_interval(secs => %s))",
        kind,
        json.dumps({"queues": queues} if queues else {}),
        seconds_ago,
    )


@pytest.fixture
def served(database):
    """A worker and a dispatcher beat."""
    beat(database, "worker", "pgbus_workflows", "pgbus_vendors")
    beat(database, "dispatcher")


@pytest.fixture
def doctor(database, served, tmp_path, monkeypatch):
    """Runs `pgbus doctor` on the test's database, which is served; `shop:make` makes a bus for it."""
    (tmp_path / "shop.py").write_text(
        "from pgbus import Pgbus\ndef make():\n    return Pgbus()\n", encoding="utf-8"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PGBUS_DATABASE_URL", database.url)

    def doctor(*arguments, expect):
        result = CliRunner().invoke(main, ["doctor", *arguments])
        assert result.exit_code == expect, (result.output, result.exception)
        return result.stdout

    yield doctor
    sys.modules.pop("shop", None)


APP = ("--app", "shop:make")


class TestCommand:
    def test_nothing_found_is_one_line(self, doctor, reach):
        reach("capture")
        assert doctor(*APP, expect=0) == "Nothing to mend.\n"

    def test_without_the_app_it_says_that_the_code_was_not_looked_at(self, doctor, reach, loaded):
        reach("capture")
        loaded.clear()
        assert doctor(expect=0) == (
            "Nothing to mend.\n\nThe code was not looked at; --app compares it with the runs.\n"
        )

    def test_a_run_that_nothing_moves_on_is_1_and_told_with_its_place(
        self, doctor, database, reach
    ):
        run = reach("reserve")
        message = lose_messages(database)
        assert doctor(*APP, expect=1) == (
            "Runs that nothing moves on (run-now if ready; else pause, then resume-at):\n"
            f"  {run.workflow_id}  {ORDER}  ready  reserve 1"
            f"  its message {message} is not in the queue pgbus_workflows\n"
        )

    @pytest.mark.rows_by_hand
    def test_a_run_without_attempt_is_told_too(self, doctor, database, reach):
        reach("reserve")
        database.rows("UPDATE pgbus.workflow_steps SET step_id = -1")
        assert "  ready  reserve  its newest attempt does not exist\n" in doctor(expect=1)

    def test_a_class_that_does_not_load_is_1(self, doctor, reach, loaded):
        reach("reserve")
        loaded.clear()
        told = doctor(*APP, expect=1)
        assert told.startswith("Runs whose class no loaded module declares")
        assert told.endswith(f"\n  {ORDER}  reserve  1 run\n")

    @pytest.mark.rows_by_hand
    def test_an_undeclared_step_is_1(self, doctor, database, reach):
        reach("reserve")
        reach("reserve")
        database.rows("UPDATE pgbus.workflows SET current_step = 'gone'")
        database.rows("UPDATE pgbus.workflow_steps SET step_name = 'gone', attempt = step_id")
        told = doctor(*APP, expect=1)
        assert told.startswith("Runs on a step that their class does not declare")
        assert told.endswith(f"\n  {ORDER}  gone  2 runs\n")

    def test_gravestones_and_moved_steps_are_hints(self, doctor, bus):
        class Export(Workflow):
            @step
            def old(self) -> None: ...

            @step
            def collect(self) -> None: ...

            @step
            def _(self) -> None: ...

        Export.start()

        class Export(Workflow):
            old = removed_step()
            older = removed_step()

            @step
            def _(self) -> None: ...

            @step
            def collect(self) -> None: ...

        name = Export._definition.name
        assert doctor(*APP, expect=0) == (
            "Hint: anonymous steps that have moved since runs began (name them):\n"
            f"  {name}  step_1  0 runs\n"
            "\n"
            "Hint: removed steps with runs still on them:\n"
            f"  {name}  old  1 run\n"
            "\n"
            "Hint: removed steps without runs, whose lines can go:\n"
            f"  {name}  older  0 runs\n"
        )

    @pytest.mark.rows_by_hand
    def test_what_nobody_serves_are_hints(self, doctor, database, reach):
        reach("capture")
        reach("reserve")
        database.rows(
            "UPDATE pgbus.workflow_steps SET timeout_at = now() WHERE waiting_since IS NOT NULL"
        )
        database.rows("DELETE FROM pgbus.processes")
        assert doctor(*APP, expect=0) == (
            "Hint: No worker is running.\n"
            "  Runs and jobs wait for one: pgbus start --app MODULE:BUS.\n"
            "\n"
            "Hint: No dispatcher is running, and 1 deadline has passed.\n"
            "  Deadlines, steps due later and the repair of what died wait for one: pgbus dispatcher.\n"
            "\n"
            "Hint: No worker reads the queue pgbus_workflows, where 1 message is due.\n"
            "  Name it where workers start: --queues.\n"
        )

    def test_a_database_that_was_never_migrated_is_1(self, doctor, empty_database, monkeypatch):
        monkeypatch.setenv("PGBUS_DATABASE_URL", empty_database.url)
        assert doctor(*APP, expect=1) == (
            "The schema is not what this pgbus needs (run pgbus migrate):\n"
            "  PGMQ is not installed\n"
            "  schema pgbus was never migrated\n"
            "\n"
            "The runs were not looked at.\n"
        )

    def test_its_document_has_all_that_was_found(self, doctor, database, reach):
        run = reach("reserve")
        message = lose_messages(database)
        nothing = {"not_loaded": [], "undeclared": [], "moved": [], "removed": []}
        assert json.loads(doctor(*APP, "--json", expect=1)) == {
            "healthy": False,
            "schema": [],
            "code": nothing,
            "broken_runs": [
                {
                    "workflow_id": run.workflow_id,
                    "workflow_class": ORDER,
                    "status": "ready",
                    "step_name": "reserve",
                    "attempt": 1,
                    "missing": f"its message {message} is not in the queue pgbus_workflows",
                }
            ],
            "hints": [],
        }
        run.cancel()
        healthy = {"healthy": True, "schema": [], "code": None, "broken_runs": []}
        healthy["hints"] = []
        assert json.loads(doctor("--json", expect=0)) == healthy

    def test_its_document_tells_what_was_not_looked_at(self, doctor, empty_database, monkeypatch):
        monkeypatch.setenv("PGBUS_DATABASE_URL", empty_database.url)
        found = json.loads(doctor(*APP, "--json", expect=1))
        assert (found["code"], found["broken_runs"], found["hints"]) == (None, None, None)
        assert "PGMQ is not installed" in found["schema"]
