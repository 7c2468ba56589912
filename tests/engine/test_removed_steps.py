"""Steps and classes that are gone while runs are on them."""

import pytest
from support.driving import Driver
from support.sweeps import turn

from pgbus import Workflow, removed_step, step
from pgbus.engine.definition import registry
from pgbus.engine.states import AttemptStatus, Event, RunStatus, SignalStatus
from pgbus.engine.sweep import removed_steps


def version(**steps):
    """A version of the class `Changing`: the one loaded from now on."""
    return type(Workflow)(
        "Changing",
        (Workflow,),
        {**type(Workflow).__prepare__("Changing", (Workflow,)), "__module__": __name__,
         "__qualname__": "Changing"} | steps,
    )  # fmt: skip


def nothing(self):
    return None


@pytest.fixture
def on_second(bus):
    """A run of a version with three steps that waits on its second."""

    def on_second():
        changing = version(one=step(nothing), two=step(nothing), three=step(nothing))
        return changing.start().pause().resume_at("two")

    yield on_second
    registry._definitions.pop(f"{__name__}.Changing", None)


@pytest.fixture
def drain(bus):
    # A worker's list of what it need not ask guards about is that of its own code.
    return lambda: Driver(bus).drain()


def newest(run):
    return run.reload().steps[-1]


def test_a_run_on_a_gravestone_moves_on(on_second, drain):
    run = on_second()
    version(one=step(nothing), two=removed_step(), three=step(nothing))
    drain()
    two, three = run.reload().steps[-2:]
    assert (two.step_name, two.status) == ("two", AttemptStatus.SKIPPED)
    assert (three.step_name, three.status) == ("three", AttemptStatus.COMPLETED)
    assert run.status is RunStatus.FINISHED
    skipped = next(event for event in run.events if event.event is Event.STEP_SKIPPED)
    assert skipped.reason == "the step was removed"


def test_a_run_on_a_last_gravestone_finishes(on_second, drain):
    run = on_second()
    version(one=step(nothing), two=removed_step(), three=removed_step())
    drain()
    assert run.reload().status is RunStatus.FINISHED
    assert newest(run).step_name == "two"


def test_a_run_passes_over_the_gravestones_before_it(bus, on_second, drain):
    on_second()
    changing = version(one=step(nothing), two=removed_step(), three=step(nothing))
    run = changing.start()
    drain()
    assert [attempt.step_name for attempt in run.reload().steps] == ["one", "three"]


def test_a_run_begins_on_a_leading_gravestone_and_moves_on(on_second, drain):
    on_second()
    run = version(one=removed_step(), two=step(nothing)).start()
    drain()
    assert run.reload().status is RunStatus.FINISHED


def test_a_run_on_a_step_that_is_no_longer_declared_pauses(on_second, drain):
    run = on_second()
    version(one=step(nothing), three=step(nothing))
    drain()
    attempt = newest(run)
    assert (run.status, attempt.status) == (RunStatus.PAUSED, AttemptStatus.FAILED)
    assert attempt.error_class == "pgbus.engine.errors.StepNotDefined"
    assert "'two'" in attempt.error_message
    assert "removed_step()" in attempt.error_message


def test_a_run_paused_so_goes_on_once_its_step_is_back(on_second, drain):
    run = on_second()
    version(one=step(nothing))
    drain()
    version(one=step(nothing), two=step(nothing))
    run.resume()
    drain()
    assert run.reload().status is RunStatus.FINISHED


def test_a_run_whose_class_is_not_loaded_pauses(on_second, drain):
    run = on_second()
    definition = registry._definitions.pop(f"{__name__}.Changing")
    drain()
    attempt = newest(run)
    assert (run.status, attempt.error_class) == (
        RunStatus.PAUSED,
        "pgbus.engine.errors.StepNotDefined",
    )
    assert "--app" in attempt.error_message
    registry.register(definition)
    run.resume()
    drain()
    assert run.reload().status is RunStatus.FINISHED


def test_a_stalled_run_whose_class_is_not_loaded_pauses(bus, on_second, drain):
    run = on_second()
    dead = Driver(bus, name="dead:1")
    next(taken for taken in iter(dead.take, None) if taken)
    registry._definitions.pop(f"{__name__}.Changing")
    dead.redeliver()
    drain()
    assert newest(run).error_class == "pgbus.engine.errors.StepStalled"
    assert run.status is RunStatus.PAUSED


class TestARunThatWaits:
    @pytest.fixture
    def waiting(self, on_second, drain):
        """A run that waits for a signal on a step of the first version."""
        changing = version(one=step(nothing), two=step(nothing, wait_for="go"), three=step(nothing))
        run = changing.start()
        drain()
        assert run.reload().status is RunStatus.WAITING
        return run

    def test_on_a_gravestone_is_moved_on_by_the_sweep(self, waiting, bus, drain):
        assert removed_steps.sweep(turn(bus)) == 0
        version(one=step(nothing), two=removed_step(), three=step(nothing))
        assert [removed_steps.sweep(turn(bus)) for _ in range(2)] == [1, 0]
        drain()
        assert waiting.reload().status is RunStatus.FINISHED
        assert waiting.steps[-2].status is AttemptStatus.SKIPPED

    def test_on_a_gravestone_is_moved_on_by_a_signal_which_stays(self, waiting, drain):
        version(one=step(nothing), two=removed_step(), three=step(nothing))
        waiting.signal("go")
        drain()
        assert waiting.reload().status is RunStatus.FINISHED
        assert waiting.signals[0].status is SignalStatus.PENDING

    def test_on_a_step_that_waits_no_more_runs_it_at_the_next_signal(self, waiting, drain):
        version(one=step(nothing), two=step(nothing), three=step(nothing))
        waiting.signal("anything")
        drain()
        assert waiting.reload().status is RunStatus.FINISHED

    def test_is_left_alone_by_the_sweep_while_it_is_paused(self, waiting, bus):
        version(one=step(nothing), two=removed_step(), three=step(nothing))
        waiting.pause()
        assert removed_steps.sweep(turn(bus)) == 0
