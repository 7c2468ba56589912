"""`async def` bodies: run on a loop of the worker's, in the context of their attempt."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy
from sqlalchemy.orm import sessionmaker
from support.driving import Driver
from support.scripts import Scripted, Transactional, script
from support.waiting import eventually

from pgbus import Pgbus, StepContext
from pgbus.engine.states import RunStatus


@pytest.fixture
def bus_options(database):
    return {"session_factory": sessionmaker(database.engine)}


@pytest.fixture
def perform(bus, driver):
    def perform(first, second=None, workflow=Scripted):
        script(first=first, second=second or (lambda self: None))
        run = workflow.start()
        driver.drain()
        return run.reload()

    return perform


def error_of(run):
    return run.steps[0].error_class


def test_an_async_body_outputs_returns_and_reads_like_any_other(perform):
    async def body(self):
        await asyncio.sleep(0)
        self.output(a=1)
        return {"step": StepContext.current().step}

    run = perform(body)
    assert (run.status, run.outputs) == (RunStatus.FINISHED, {"first": {"a": 1, "step": "first"}})


def test_an_async_transactional_body_commits_with_its_step(database, perform):
    database.rows("CREATE TABLE effects (what text)")

    async def body(self):
        await asyncio.sleep(0)
        self.session.execute(sqlalchemy.text("INSERT INTO effects VALUES ('one')"))

    assert perform(body, workflow=Transactional).status is RunStatus.FINISHED
    assert database.value("SELECT count(*) FROM effects") == 1


def test_a_verb_in_an_async_body_ends_it(perform):
    async def body(self):
        await asyncio.sleep(0)
        self.finish(reason="enough")

    run = perform(body)
    assert (run.status, len(run.steps)) == (RunStatus.FINISHED, 1)


def test_a_verb_beside_another_error_in_a_task_group_is_the_bodys_decision(perform):
    async def ask(self):
        self.skip()

    async def fail():
        raise ValueError

    async def body(self):
        async with asyncio.TaskGroup() as group:
            group.create_task(ask(self))
            group.create_task(fail())

    assert perform(body).status is RunStatus.FINISHED


@pytest.mark.parametrize("nested", [False, True])
def test_an_error_in_an_async_body_is_recorded(perform, nested):
    async def fail():
        raise LookupError("why")

    async def body(self):
        if not nested:
            await fail()
        async with asyncio.TaskGroup() as group:
            group.create_task(fail())

    run = perform(body)
    assert run.status is RunStatus.PAUSED
    assert error_of(run) == ("ExceptionGroup" if nested else "LookupError")
    if nested:
        (cause,) = run.steps[0].error["causes"]
        assert (cause["class"], cause["message"]) == ("LookupError", "why")


def test_a_cancelled_task_is_an_error_of_the_step(perform):
    async def body(self):
        asyncio.current_task().cancel()
        await asyncio.sleep(0)

    run = perform(body)
    assert (run.status, error_of(run)) == (RunStatus.PAUSED, "asyncio.exceptions.CancelledError")


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_what_ends_a_process_passes_through_and_the_loop_lives_on(perform, error):
    async def body(self):
        raise error

    with pytest.raises(error):
        perform(body)

    async def after(self):
        await asyncio.sleep(0)

    assert perform(after).status is RunStatus.FINISHED


def test_bodies_of_several_threads_share_one_loop_and_wait_side_by_side(bus, driver):
    """Each of the two waits for the other: one loop and no thread blocked, or neither ends."""
    both = threading.Barrier(2)
    met = asyncio.Event()
    loops = []

    async def body(self):
        loops.append(asyncio.get_running_loop())
        if len(loops) == 2:
            met.set()
        await met.wait()

    script(first=body)
    runs = [Scripted.start(), Scripted.start()]
    deliveries = [driver.take()[0], driver.take()[0]]

    def perform(delivery):
        both.wait(10)
        driver.perform(delivery)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(perform, deliveries, timeout=20))
    assert {run.reload().status for run in runs} == {RunStatus.FINISHED}
    assert loops[0] is loops[1]
    assert driver.drain() == 0


def test_a_closed_bus_ends_its_loops_thread(database):
    async def body(self):
        self.output(thread=threading.current_thread().name)

    bus = Pgbus(database_url=database.url)
    script(first=body)
    run = bus.start(Scripted)
    Driver(bus).drain()
    name = run.outputs["first"]["thread"]
    bus.close()
    eventually(lambda: name not in {thread.name for thread in threading.enumerate()})
