from datetime import UTC, datetime, timedelta

import pytest

from pgbus import Workflow, step
from pgbus.engine.definition.options import duration
from pgbus.engine.definition.step import (
    _CLASS_CHECKS,
    _JOB_CHECKS,
    ClassOptions,
    FanOutOptions,
    JobOptions,
    StallAction,
    StepDeclaration,
    StepOptions,
    _checks,
)
from pgbus.engine.errors import DefinitionError
from pgbus.engine.states import OnTimeout

LATER = datetime(2040, 1, 1, tzinfo=UTC)


def make(**options):
    class Made(Workflow):
        @step(**options)
        def pay(self): ...

        def paid(self):
            return "paid"

        async def asks(self): ...

        def due(self):
            return LATER

    return Made._definition.step("pay")


def test_a_step_without_options_has_the_defaults():
    plain = make()
    assert (plain.wait, plain.message_wait) == (timedelta(0), timedelta(0))
    assert (plain.queue, plain.priority, plain.message_wait_until) == (None, 1, None)
    assert (plain.skip_if, plain.timeout, plain.on_stall) == (None, None, None)
    assert (plain.transactional, plain.removed, plain.policies) == (False, False, ())
    assert (plain.wait_for, plain.wait_timeout) == (None, None)
    assert plain.on_timeout is OnTimeout.PAUSE


def test_every_option_reaches_the_step():
    full = make(
        wait=30,
        timeout=timedelta(minutes=1),
        on_stall="reattempt",
        transactional=True,
        job_options={"queue": "mail", "priority": 2, "wait": 1.5, "wait_until": LATER},
        wait_for="paid",
        wait_timeout=timedelta(days=7),
        on_timeout="run",
    )
    assert full.wait == timedelta(seconds=30)
    assert full.timeout == timedelta(minutes=1)
    assert full.on_stall is StallAction.REATTEMPT
    assert full.transactional is True
    assert (full.queue, full.priority) == ("mail", 2)
    assert (full.message_wait, full.message_wait_until) == (timedelta(seconds=1.5), LATER)
    assert full.wait_for.name == "paid"
    assert full.wait_timeout == timedelta(days=7)
    assert full.on_timeout is OnTimeout.RUN


def test_priority_0_is_not_taken_for_none():
    assert make(job_options={"priority": 0}).priority == 0


def test_skip_if_takes_a_callable_or_the_name_of_a_method():
    class Paid:
        def paid(self):
            return "yes"

    assert make(skip_if=lambda self: self.paid()).skip_if(Paid()) == "yes"
    assert make(skip_if="paid").skip_if(Paid()) == "yes"


def test_wait_timeout_takes_seconds_a_callable_or_the_name_of_a_method():
    class Due:
        def due(self):
            return "due"

    assert make(wait_for="paid", wait_timeout=1.5).wait_timeout == timedelta(seconds=1.5)
    assert make(wait_for="paid", wait_timeout="due").wait_timeout(Due()) == "due"
    asked = make(wait_for="paid", wait_timeout=lambda self: self.due(), on_timeout="notify")
    assert asked.wait_timeout(Due()) == "due"
    assert asked.on_timeout is OnTimeout.NOTIFY


async def asks_later(self): ...


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"wiat": 3}, r"unknown option 'wiat'; there are wait, timeout.*; did you mean wait\?"),
        ({"waitfor": 3}, r"unknown option 'waitfor'; there are .*; did you mean wait_for\?$"),
        ({"wait_timeout": 5}, "wait_timeout: it bounds .* no wait_for; add one, or .* timeout"),
        ({"on_timeout": "skip"}, "on_timeout: without a wait_timeout no wait times out; add one$"),
        ({"timeout": 5, "on_timeout": "skip"}, r"on_timeout: .* one \(timeout is another thing:"),
        ({"wait_for": "paid", "on_timeout": "pause"}, "on_timeout: without a wait_timeout"),
        ({"wait_for": "paid", "wait_timeout": 5, "on_timeout": 5}, "on_timeout: 5 is unknown; ch"),
        ({"wait_for": "paid", "wait_timeout": 0}, "wait_timeout: 0 is no time at all; give more"),
        ({"wait_for": "paid", "wait_timeout": -1}, "wait_timeout: -1 is no duration"),
        ({"wait_for": "paid", "wait_timeout": LATER}, "wait_timeout: .* give a callable that ret"),
        ({"wait_for": "paid", "wait_timeout": "7 days"}, "wait_timeout: '7 days' names no method"),
        ({"wait_for": "paid", "wait_timeout": "gone"}, "wait_timeout: .* no method 'gone'; define"),
        ({"wait_for": "paid", "wait_timeout": "asks"}, "wait_timeout: .* is async and would never"),
        ({"wait_for": "paid", "wait_timeout": lambda: 5}, r"wait_timeout: .*called with \(self\)"),
        ({"wait": -1}, "wait: -1 is no duration; give seconds or a timedelta"),
        ({"wait": timedelta(seconds=-1)}, "wait: datetime.timedelta.* is no duration"),
        ({"wait": "3"}, "wait: '3' is no duration"),
        ({"wait": True}, "wait: True is no duration"),
        ({"wait": None}, "wait: None is no duration"),
        ({"wait": float("nan")}, "wait: nan is no duration"),
        ({"wait": float("inf")}, "wait: inf is no duration"),
        ({"wait": timedelta(days=36_526)}, "wait: .* is no duration.* to 100 years"),
        ({"timeout": 0}, "timeout: 0 is no time at all; give more than 0"),
        ({"timeout": -1}, "timeout: -1 is no duration"),
        ({"on_stall": "explode"}, "on_stall: 'explode' is unknown; choose from 'pause', 'reatt"),
        ({"on_stall": ["pause"]}, r"on_stall: \['pause'\] is unknown"),
        ({"transactional": 1}, "transactional: 1 is no bool; give True or False"),
        ({"skip_if": 5}, "skip_if: 5 is neither a callable nor the name of a method"),
        ({"skip_if": "missing"}, "skip_if: .* has no method 'missing'; define it"),
        ({"skip_if": lambda: True}, r"skip_if: .*called with \(self\)"),
        ({"skip_if": "asks"}, "skip_if: .*asks is async and would never run"),
        ({"skip_if": asks_later}, "skip_if: asks_later is async and would never run"),
        ({"policies": "pause"}, "policies: 'pause' is no list or tuple of policies"),
        ({"policies": [ValueError]}, "policies: <class 'ValueError'> is no policy; give on_exc"),
        ({"before_step": 5}, "before_step: 5 is no other step"),
        ({"after_step": "missing"}, "after_step: 'missing' is no other step"),
        ({"job_options": 5}, "job_options: 5 is no mapping; there are the options queue"),
        ({"job_options": {"colour": 1}}, "job_options: unknown option 'colour'; there are queue"),
        ({"job_options": {"queue": "Mail"}}, "job_options: queue: queue 'Mail': .*'mail'"),
        ({"job_options": {"queue": 5}}, "job_options: queue: queue 5"),
        ({"job_options": {"priority": 3}}, "job_options: priority: priority 3: use 0"),
        ({"job_options": {"priority": True}}, "job_options: priority: priority True"),
        ({"job_options": {"wait": -1}}, "job_options: wait: -1 is no duration"),
        ({"job_options": {"wait_until": 5}}, "job_options: wait_until: 5 is no moment"),
        (
            {"job_options": {"wait_until": LATER.replace(tzinfo=None)}},
            "job_options: wait_until: .* is no moment; give a datetime with a time zone",
        ),
    ],
)
def test_a_bad_option_is_named_with_its_class_its_step_and_the_mend(options, problem):
    with pytest.raises(DefinitionError, match=f"Made, step 'pay': {problem}"):
        make(**options)


@pytest.mark.parametrize(
    ("value", "seconds"), [(0, 0), (1.5, 1.5), (timedelta(days=36_525), 36_525 * 86_400)]
)
def test_a_duration_is_seconds_or_a_timedelta(value, seconds):
    assert duration(value) == timedelta(seconds=seconds)


def test_class_keywords_hold_for_all_steps_and_a_steps_own_win():
    class Keyed(Workflow, queue="orders", priority=0, wait=5):
        @step
        def plain(self): ...

        @step(wait=1, job_options={"queue": "mail", "priority": 2, "wait": 0})
        def own(self): ...

    plain, own = Keyed._definition.steps
    assert (plain.queue, plain.priority, plain.message_wait) == ("orders", 0, timedelta(seconds=5))
    assert plain.wait == timedelta(0)
    assert (own.queue, own.priority, own.message_wait) == ("mail", 2, timedelta(0))
    assert own.wait == timedelta(seconds=1)


def test_a_subclass_inherits_class_keywords_and_sets_its_own_for_every_step():
    class Base(Workflow, queue="orders", priority=0):
        @step
        def first(self): ...

    class Sub(Base, queue="rush"):
        @step
        def second(self): ...

    assert [(one.queue, one.priority) for one in Sub._definition.steps] == [("rush", 0)] * 2
    assert Base._definition.step("first").queue == "orders"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"colour": 1}, "unknown option 'colour'; there are queue, priority, wait"),
        ({"wait_until": LATER}, "unknown option 'wait_until'"),
        ({"queue": "Orders"}, "queue: queue 'Orders': .*'orders'"),
        ({"priority": 7}, "priority: priority 7"),
        ({"wait": -1}, "wait: -1 is no duration"),
    ],
)
def test_a_bad_class_keyword_is_named_with_its_class(options, problem):
    with pytest.raises(DefinitionError, match=f"Keyed: {problem}"):

        class Keyed(Workflow, **options):
            pass


def test_the_typed_options_are_the_ones_that_are_checked():
    assert set(StepOptions.__annotations__) == set(_checks(StepDeclaration(), object))
    fan_out = StepDeclaration(fan_out=True)
    assert set(FanOutOptions.__annotations__) == set(_checks(fan_out, object))
    assert set(JobOptions.__annotations__) == set(_JOB_CHECKS)
    assert set(ClassOptions.__annotations__) == set(_CLASS_CHECKS)
