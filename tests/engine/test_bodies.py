import asyncio
from types import MappingProxyType

import pytest
import sqlalchemy
from sqlalchemy.orm import scoped_session, sessionmaker
from support.scripts import Scripted, script

from pgbus import Workflow, step
from pgbus.engine.errors import NotInStep
from pgbus.engine.states import AttemptStatus, Event, Outcome, RunStatus

NOTE = sqlalchemy.text("INSERT INTO notes VALUES (:note)")


@pytest.fixture
def bus_options(database, request):
    scope = getattr(request, "param", lambda factory: factory)
    return {"session_factory": scope(sessionmaker(database.engine))}


with_either_factory = pytest.mark.parametrize(
    "bus_options",
    [lambda factory: factory, scoped_session],
    ids=["sessionmaker", "scoped_session"],
    indirect=True,
)


@pytest.fixture
def notes(database):
    database.rows("CREATE TABLE notes (note text UNIQUE DEFERRABLE INITIALLY DEFERRED)")
    return lambda: [note for (note,) in database.rows("SELECT note FROM notes ORDER BY 1")]


@pytest.fixture
def perform(bus, driver):
    """Starts a run whose steps do this, and performs what is due; returns the run."""

    def perform(first, second=None, **arguments):
        script(first=first, **({"second": second} if second else {}))
        run = Scripted.start(**arguments)
        driver.drain()
        return run.reload()

    return perform


def told(run):
    return [(event.event, event.reason) for event in run.events]


def errors(run):
    return [attempt.error_class for attempt in run.steps]


def swallowing(verb, **options):
    def body(self):
        try:
            getattr(self, verb)(**options)
        except Exception:  # noqa: BLE001 (what a host's body may do)
            return

    return body


@pytest.mark.parametrize(
    ("verb", "run_status", "attempt_status", "outcome", "last"),
    [
        ("pause", RunStatus.PAUSED, AttemptStatus.COMPLETED, Outcome.PAUSED, Event.PAUSED),
        ("cancel", RunStatus.CANCELLED, AttemptStatus.CANCELLED, Outcome.CANCELLED, Event.CANCELLED),
        ("finish", RunStatus.FINISHED, AttemptStatus.COMPLETED, Outcome.FINISHED, Event.FINISHED),
    ],
)  # fmt: skip
class TestVerbsThatEndTheStretch:
    def test_the_verb_ends_the_body_even_past_a_broad_except(
        self, perform, verb, run_status, attempt_status, outcome, last
    ):
        run = perform(swallowing(verb, reason="because"))
        (attempt,) = run.steps
        assert run.status is run_status
        assert (attempt.status, attempt.outcome) == (attempt_status, outcome)
        assert attempt.finished_at is not None
        assert told(run)[-1] == (last, "because")
        assert run.events[-1].actor == "system"
        assert (run.ended_at is None) == (verb == "pause")

    def test_the_verb_is_found_in_a_task_group(
        self, perform, verb, run_status, attempt_status, outcome, last
    ):
        async def ask(self):
            getattr(self, verb)(reason="inside")

        async def body(self):
            async with asyncio.TaskGroup() as group:
                group.create_task(ask(self))
                group.create_task(asyncio.Event().wait())

        run = perform(body)
        assert (run.status, told(run)[-1]) == (run_status, (last, "inside"))


def test_reattempt_ends_the_attempt_and_schedules_another(perform):
    run = perform(lambda self: self.attempt > 1 or self.reattempt(reason="not yet"))
    first, second, _ = run.steps
    assert (first.status, first.outcome) == (AttemptStatus.FAILED, Outcome.REATTEMPTED)
    assert (first.error_class, first.reattempted_by) == (None, "body")
    assert (second.attempt, second.status) == (2, AttemptStatus.COMPLETED)
    assert (Event.STEP_REATTEMPTED, "not yet") in told(run)
    assert run.status is RunStatus.FINISHED


def test_reattempt_waits_as_long_as_it_says(perform):
    run = perform(lambda self: self.reattempt(wait=45))
    first, second = run.steps
    assert (second.scheduled_at - first.finished_at).total_seconds() == pytest.approx(45, abs=1)
    assert run.status is RunStatus.READY


def test_skip_moves_the_run_on(perform):
    run = perform(swallowing("skip", reason="paid"))
    first, second = run.steps
    assert (first.status, first.outcome) == (AttemptStatus.SKIPPED, Outcome.SKIPPED)
    assert second.status is AttemptStatus.COMPLETED
    assert (Event.STEP_SKIPPED, "paid") in told(run)
    assert run.status is RunStatus.FINISHED


@pytest.mark.parametrize("reason", ["nul \0", "half \ud83d", 42, "x" * 5000, "  "])
def test_any_reason_can_be_stored(perform, reason):
    run = perform(lambda self: self.cancel(reason=reason))
    stored = {"nul \0": "nul ␀", "half \ud83d": "half \\ud83d", 42: "42", "  ": None}
    assert told(run)[-1] == (Event.CANCELLED, stored.get(reason, "x" * 1000))


def test_a_reattempt_with_a_nonsense_wait_goes_to_the_policies(perform):
    run = perform(lambda self: self.reattempt(wait=-1))
    assert (run.status, errors(run)) == (RunStatus.PAUSED, ["ValueError"])
    assert run.steps[0].error_message.startswith("reattempt(wait=...): -1 is no duration; give")


@pytest.mark.parametrize("verb", ["pause", "finish", "cancel", "skip", "reattempt"])
def test_a_verb_inside_a_session_block_rolls_the_block_back(bus, perform, notes, verb):
    def body(self):
        if self.attempt > 1:
            return
        with self.session.begin():
            self.session.execute(NOTE, {"note": "inside"})
            getattr(self, verb)()

    perform(body)
    assert notes() == []


@with_either_factory
@pytest.mark.parametrize(
    ("end", "kept"),
    [
        (lambda self: None, True),
        (lambda self: self.pause(), True),
        (lambda self: self.finish(), True),
        (lambda self: self.cancel(), False),
        (lambda self: self.skip(), False),
        (lambda self: self.reattempt(wait=9), False),
        (lambda self: 1 / 0, False),
    ],
    ids=["return", "pause", "finish", "cancel", "skip", "reattempt", "error"],
)
def test_the_session_commits_when_the_step_completes_and_else_rolls_back(
    database, perform, notes, end, kept
):
    def body(self):
        self.session.execute(NOTE, {"note": "written"})
        return end(self)

    perform(body)
    assert notes() == (["written"] if kept else [])
    assert database.engine.pool.checkedout() == 0


def test_a_session_that_cannot_commit_is_an_error_of_the_step(database, perform, notes):
    def body(self):
        self.output(written=2)
        for _ in range(2):
            self.session.execute(NOTE, {"note": "twice"})

    run = perform(body)
    assert (run.status, errors(run)) == (RunStatus.PAUSED, ["sqlalchemy.exc.IntegrityError"])
    assert notes() == []
    assert database.engine.pool.checkedout() == 0


def test_an_output_exists_exactly_when_the_completion_does(bus, database, perform):
    seen = []

    def body(self):
        self.output(charge="c1")
        seen.append(
            database.value("SELECT count(*) FROM pgbus.workflow_steps WHERE output IS NULL")
        )
        seen.append(self.outputs)

    def second(self):
        seen.append(self.output_of("first"))

    perform(body, second)
    assert seen == [1, {}, {"charge": "c1"}]


def test_outputs_are_merged_and_a_returned_mapping_with_them(perform):
    def body(self):
        self.output(a=1, b=1)
        self.output(b=2)
        return {"c": 3}

    assert perform(body).outputs == {"first": {"a": 1, "b": 2, "c": 3}}


def test_any_mapping_that_a_body_returns_is_its_output(perform):
    assert perform(lambda self: MappingProxyType({"a": 1})).outputs == {"first": {"a": 1}}


@pytest.mark.parametrize("value", [True, 7, "text", ["a"], object(), None])
def test_any_other_return_value_is_ignored(perform, value):
    run = perform(lambda self: value)
    assert (run.status, run.outputs) == (RunStatus.FINISHED, {})


@pytest.mark.parametrize(
    "returned", [{"a": object()}, {"a": float("nan")}, {"a": "x" * 200_000}, {1: "a"}]
)
def test_an_output_that_cannot_be_stored_goes_to_the_policies(perform, returned):
    run = perform(lambda self: returned)
    assert run.status is RunStatus.PAUSED
    assert errors(run)[0] in {
        "pgbus.engine.errors.PayloadError", "pgbus.engine.errors.PayloadTooLarge"
    }  # fmt: skip


def test_a_returned_mapping_whose_keys_are_no_names_is_told_so(perform):
    run = perform(lambda self: {1: "a"})
    assert run.steps[0].error_message == "output: has a key of type int; keys must be str"


def test_an_output_that_cannot_be_stored_raises_where_it_is_made(perform):
    def body(self):
        try:
            self.output(good=1, bad=object())
        except Exception as error:  # noqa: BLE001 (what it is, is what is asked)
            self.output(problem=str(error))

    (output,) = perform(body).outputs.values()
    assert list(output) == ["problem"]
    assert "output.bad" in output["problem"]


def test_an_output_that_became_unstorable_later_goes_to_the_policies(perform):
    def body(self):
        growing = []
        self.output(items=growing)
        growing.append(object())

    run = perform(body)
    assert (run.status, errors(run)) == (RunStatus.PAUSED, ["pgbus.engine.errors.PayloadError"])
    assert run.steps[0].output is None


def test_a_failed_attempt_keeps_its_output_to_itself(bus, driver, perform):
    seen = []

    def body(self):
        self.output(tried=self.attempt)
        if self.attempt == 1:
            raise ValueError

    run = perform(body, lambda self: seen.append(self.output_of("first")))
    assert run.outputs == {}
    run.resume()
    driver.drain()
    assert [attempt.output for attempt in run.steps] == [{"tried": 1}, {"tried": 2}, None]
    assert seen == [{"tried": 2}]


def test_output_of_is_the_latest_completed_attempts(bus, driver, perform):
    seen = []

    def body(self):
        if self.attempt == 3:
            raise ValueError
        self.output(attempt=self.attempt)

    def second(self):
        seen.append((self.output_of("first"), self.output_of("second"), self.output_of("third")))
        if self.attempt < 3:
            self.pause()

    run = perform(body, second)
    run.resume_at("first")
    driver.drain()
    # The third attempt fails, the step is skipped: the second attempt's output is the latest.
    run.resume_at("first")
    driver.drain()
    run.skip()
    driver.drain()
    assert seen == [({"attempt": 1}, None, None), *[({"attempt": 2}, None, None)] * 2]
    assert run.reload().status is RunStatus.FINISHED


def test_the_readers_tell_what_runs(bus, perform):
    seen = []

    def body(self):
        seen.append((self.workflow_id, self.step_name, self.attempt, self.arguments))
        seen.append((self.step_idempotency_key, self.attempt_idempotency_key))
        if self.attempt == 1:
            self.reattempt()

    run = perform(body, plan="pro")
    key = f"pgbus-wf:{run.workflow_id}:first"
    assert seen == [
        (run.workflow_id, "first", 1, {"plan": "pro"}),
        (key, f"{key}:1"),
        (run.workflow_id, "first", 2, {"plan": "pro"}),
        (key, f"{key}:2"),
    ]


def test_numbers_and_keys_of_attempts_go_on_after_a_rerun_of_the_step(bus, driver, perform):
    seen = []

    def body(self):
        seen.append((self.step_idempotency_key, self.attempt))
        self.pause()

    run = perform(body)
    run.resume_at("first")
    driver.drain()
    key = f"pgbus-wf:{run.workflow_id}:first"
    assert seen == [(key, 1), (key, 2)]


READERS = (
    "subject", "arguments", "session", "workflow_id", "step_name", "attempt",
    "step_idempotency_key", "attempt_idempotency_key", "outputs",
)  # fmt: skip
VERBS = ("pause", "cancel", "reattempt", "skip", "finish", "output", "checkpoint")


def asked(workflow):
    for reader in READERS:
        yield lambda reader=reader: getattr(workflow, reader)
    for verb in (*VERBS, "require_subject"):
        yield lambda verb=verb: getattr(workflow, verb)()
    yield lambda: workflow.output_of("first")


def test_outside_a_step_there_is_nothing_to_read_and_no_verb():
    for ask in asked(Scripted()):
        with pytest.raises(NotInStep, match="while a step runs"):
            ask()


def test_an_instance_that_outlives_its_step_is_outside(database, bus, perform):
    kept = []
    perform(kept.append)
    for ask in asked(kept[0]):
        with pytest.raises(NotInStep, match="while a step runs"):
            ask()
    assert database.engine.pool.checkedout() == 0


def test_every_attempt_has_an_instance_of_its_own(perform):
    seen = []

    def body(self):
        seen.append(vars(self).get("mark"))
        self.mark = True
        if self.attempt == 1:
            self.reattempt()

    perform(body, body)
    assert seen == [None] * 4


class Broken(Workflow):
    def __init__(self):
        raise OSError("no instance")

    @step
    def only(self): ...


def test_a_class_that_cannot_be_made_is_an_error_of_the_step(bus, driver):
    run = Broken.start()
    driver.drain()
    assert (run.reload().status, errors(run)) == (RunStatus.PAUSED, ["OSError"])


class TestCheckpoint:
    def test_it_passes_while_the_attempt_is_the_bodys(self, perform):
        assert perform(lambda self: self.checkpoint()).status is RunStatus.FINISHED

    def test_it_passes_while_the_run_is_paused(self, bus, perform):
        def body(self):
            bus.find(self.workflow_id).pause()
            self.checkpoint()
            self.output(passed=True)

        assert perform(body).outputs == {"first": {"passed": True}}

    def test_it_raises_once_the_run_was_cancelled(self, bus, perform):
        after = []

        def body(self):
            bus.find(self.workflow_id).cancel()
            self.output(lost=True)
            self.checkpoint()
            after.append("reached")

        run = perform(body)
        assert after == []
        assert (run.status, run.steps[0].output) == (RunStatus.CANCELLED, None)
        assert told(run)[-1] == (Event.LATE_COMPLETION_IGNORED, None)

    def test_it_raises_once_another_took_the_attempt_for_stalled(self, driver, perform):
        after = []

        def body(self):
            if self.attempt > 1:
                return
            driver.redeliver()
            (again,) = driver.take()
            driver.perform(again)
            self.checkpoint()
            after.append("reached")

        run = perform(body)
        assert after == []
        assert run.status is RunStatus.PAUSED
        assert errors(run) == ["pgbus.engine.errors.StepStalled"]
