"""Builders of batches: what is added, what is refused, what `collecting()` catches."""

import contextvars
import json
import re
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from pgbus import job
from pgbus.engine import active
from pgbus.engine.definition.members import FanOut, JobCall, Members, collector
from pgbus.engine.errors import AlreadyFinished, PayloadError, PayloadTooLarge
from pgbus.engine.jobs import envelope
from pgbus.engine.storage.batches import BatchPlan, MemberMessage, NewBatch

LATER = datetime(2040, 1, 1, tzinfo=UTC)


@pytest.fixture(autouse=True)
def bus(monkeypatch):
    """A bus that would send; none of these tests lets it."""
    bus = SimpleNamespace(settings=SimpleNamespace(workflow_max_payload_size=1000), sent=[])
    bus.enqueue_job = lambda *call: bus.sent.append(call)
    monkeypatch.setattr(active, "_buses", [bus])
    return bus


@job(queue="mail", priority=2)
def notify(vendor_id, *, copy=False): ...


@job
def free(*args, **kwargs): ...


NOTIFY = f"{__name__}.notify"


def arguments(call):
    return envelope.arguments(call.body, load=lambda _: None)


def test_a_member_is_encoded_when_it_is_added_and_nothing_is_sent(bus):
    members = Members()
    vendors = [7]
    members.add(notify, vendors, copy=True)
    vendors.append(8)
    [call] = members.calls
    assert (call.job, call.queue, call.priority) == (NOTIFY, "mail", 2)
    assert (call.wait, call.wait_until) == (timedelta(), None)
    assert json.loads(call.body)["job"] == NOTIFY
    assert arguments(call) == ([[7]], {"copy": True})
    assert bus.sent == []


def test_a_member_has_the_options_of_its_call():
    members = Members()
    members.add(notify.options(queue="slow", priority=0, wait=1.5, wait_until=LATER), 7)
    assert members.calls == (
        JobCall(NOTIFY, "slow", 0, timedelta(seconds=1.5), LATER, members.calls[0].body),
    )


def test_a_members_arguments_may_have_any_name():
    members = Members()
    members.add(free, self=1, job=2)
    assert arguments(members.calls[0]) == ([], {"self": 1, "job": 2})


def test_many_members_keep_their_order():
    members = Members()
    members.add(notify, 0)
    members.add_many(notify.options(queue="slow"), ((n,) for n in range(1, 4)))
    assert [arguments(call)[0] for call in members.calls] == [[0], [1], [2], [3]]
    assert [call.queue for call in members.calls] == ["mail", "slow", "slow", "slow"]


def test_of_many_members_one_that_is_refused_keeps_all_out():
    members = Members()
    with pytest.raises(PayloadError, match=r"arguments\.args\[0\]"):
        members.add_many(notify, [(1,), (float("nan"),)])
    assert members.calls == ()


@pytest.mark.parametrize("one", [7, "7", [7], {7}])
def test_what_is_no_tuple_of_arguments_is_refused_and_named(one):
    with pytest.raises(TypeError, match=re.escape(f"not {one!r}; write (7,)")):
        Members().add_many(notify, [one])


def test_arguments_that_do_not_fit_the_function_are_refused():
    with pytest.raises(TypeError, match=re.escape(f"{NOTIFY}(vendor_id, *, copy=False)")):
        Members().add(notify)


def test_arguments_above_the_buss_limit_are_refused():
    with pytest.raises(PayloadTooLarge, match="allows 1000"):
        Members().add(notify, "x" * 1000)


@pytest.mark.parametrize("what", [print, len, None, "shop.notify"])
def test_what_is_no_job_is_refused_and_named(what):
    with pytest.raises(TypeError, match=re.escape(f"{what!r} is no job")):
        Members().add(what)


def test_a_members_own_session_is_refused():
    with pytest.raises(ValueError, match="leave session= out of its options"):
        Members().add(notify.options(session=object()), 7)


def test_after_its_block_a_builder_takes_nothing():
    members = Members()
    members.add(notify, 1)
    members.close()
    for add in (
        lambda: members.add(notify, 2),
        lambda: members.add_many(notify, [(2,)]),
    ):
        with pytest.raises(AlreadyFinished, match=r"Batch\.find\(batch_id\)\.adding\(\)"):
            add()
    assert len(members.calls) == 1


def test_what_is_enqueued_while_collecting_joins_instead_of_being_sent(bus):
    def hosts_own_function():
        return notify.enqueue(1), notify.options(wait=5, session=object()).enqueue(2)

    members = Members()
    with members.collecting():
        assert hosts_own_function() == (None, None)
    assert [(arguments(call)[0], call.wait) for call in members.calls] == [
        ([1], timedelta()),
        ([2], timedelta(seconds=5)),
    ]
    assert bus.sent == []
    notify.enqueue(3)
    assert len(bus.sent) == 1


def test_the_innermost_collecting_builder_takes_it_and_an_error_ends_it():
    outer, inner = Members(), Members()

    def fails():
        with inner.collecting():
            notify.enqueue(1)
            raise KeyError

    with outer.collecting():
        with pytest.raises(KeyError):
            fails()
        notify.enqueue(2)
    assert [arguments(call)[0] for call in inner.calls] == [[1]]
    assert [arguments(call)[0] for call in outer.calls] == [[2]]
    assert collector() is None


def test_a_context_that_outlives_its_builder_does_not_lose_jobs_silently(bus):
    members = Members()
    with members.collecting():
        context = contextvars.copy_context()
    members.close()
    with pytest.raises(AlreadyFinished, match="has ended"):
        context.run(notify.enqueue, 1)
    assert bus.sent == []


@pytest.mark.parametrize("name", ["on_complete", "on_success", "on_failure"])
def test_a_fan_outs_callbacks_are_the_workflows(name):
    with pytest.raises(AttributeError, match=rf"^{name} of a fan-out is the workflow's own"):
        setattr(FanOut(), name, notify)


def test_a_plan_survives_its_document():
    new = NewBatch(
        batch_id="01890a5d-ac96-774b-bcce-b302099a8057",
        description="é",
        properties='{"a":1}',
        on_failure=MemberMessage("job", "pgbus_default", "{}", 0.0, None).encode(),
        workflow_id="01890a5d-ac96-774b-bcce-b302099a8058",
        step_id=7,
        step_queue="pgbus_workflows",
    )
    members = (
        MemberMessage("job", "pgbus_mail", '{"job":"job"}', 1.5, LATER),
        MemberMessage("job", "pgbus_mail_p0", '{"job":"é"}', 0.0, None),
    )
    for plan in (BatchPlan(new, members), BatchPlan(new, ())):
        assert BatchPlan.decode(plan.encode()) == plan
