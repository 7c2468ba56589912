from pgbus import Workflow, step
from pgbus.engine.states import RunStatus


class Three(Workflow):
    @step
    def one(self):
        self.output(n=1)

    @step
    def two(self):
        self.output(n=self.output_of("one")["n"] + 1)

    @step
    def three(self):
        return {"n": self.output_of("two")["n"] + 1}


def test_a_run_goes_through_its_steps_in_order(bus, driver):
    run = Three.start(plan="pro")
    assert driver.drain() == 1
    run.reload()
    assert run.status is RunStatus.FINISHED
    assert run.outputs == {"one": {"n": 1}, "two": {"n": 2}, "three": {"n": 3}}
    assert [str(event.event) for event in run.events] == [
        "started", "step_scheduled", "step_started",
        "step_completed", "step_scheduled", "step_started",
        "step_completed", "step_scheduled", "step_started",
        "step_completed", "finished",
    ]  # fmt: skip
