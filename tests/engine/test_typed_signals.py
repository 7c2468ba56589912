"""Typed payloads: checked when they are sent, an instance in the body."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

import pytest
from sqlalchemy.orm import sessionmaker
from support.hosts import Purchase, make_purchases
from support.replay import told
from support.scripts import play, script

from pgbus import Workflow, on_exception, signal_type, step
from pgbus.engine.definition import registry
from pgbus.engine.errors import PayloadError
from pgbus.engine.states import AttemptStatus, RunStatus


@dataclass
class Weight:
    grams: int


@dataclass
class Shipment:
    carrier: str
    weight: Weight
    at: datetime | None = None

    def __post_init__(self):
        if not self.carrier:
            raise ValueError("a shipment has a carrier")


@dataclass
class Pickup:
    order: Purchase | None = None


class Refund:
    """What a pydantic model looks like."""

    def __init__(self, amount):
        self.amount = amount

    @classmethod
    def model_validate(cls, payload):
        if set(payload) != {"amount"}:
            raise ValueError("1 validation error for Refund: amount")
        return cls(int(payload["amount"]))


class Parcel(Workflow):
    @step
    def pack(self): ...

    @step(
        wait_for=signal_type("shipped", Shipment),
        policies=[on_exception(PayloadError, action="skip")],
    )
    def bill(self):
        return play(self)

    @step(wait_for=signal_type("refunded", Refund))
    def pay_back(self):
        return play(self)

    @step(wait_for=signal_type("picked_up", Pickup))
    def close(self):
        return play(self)


@pytest.fixture
def bus_options(database):
    return {"session_factory": sessionmaker(database.engine)}


@pytest.fixture
def got():
    got = []

    def note(workflow):
        got.append(workflow.require_signal())

    script(bill=note, pay_back=note, close=note)
    yield got
    script()


@pytest.fixture
def run(bus, driver, got):
    """A run that waits for its shipment."""
    run = Parcel.start()
    driver.drain()
    return run.reload()


SHIPPED = {"carrier": "dhl", "weight": {"grams": 5}, "at": datetime(2030, 1, 1, tzinfo=UTC)}


def test_the_body_gets_an_instance_beside_the_payload(driver, run, got):
    assert run.signal("shipped", SHIPPED).value is None
    driver.drain()
    assert got[0].value == Shipment("dhl", Weight(5), SHIPPED["at"])
    assert got[0].payload == SHIPPED


def test_a_model_makes_its_own_instance(driver, run, got):
    run.signal("shipped", SHIPPED)
    run.signal("refunded", {"amount": "7"})
    driver.drain()
    assert (type(got[1].value), got[1].value.amount) == (Refund, 7)


def test_a_subject_in_a_typed_payload_is_the_record_itself(database, driver, run, got):
    make_purchases(database, 1)
    run.signal("shipped", SHIPPED)
    run.signal("refunded", {"amount": 7})
    states = []
    script(close=lambda self: states.append(self.require_signal().value.order.state))
    run.signal("picked_up", {"order": Purchase(id=1)})
    driver.drain()
    assert (states, run.reload().status) == (["new"], RunStatus.FINISHED)


@pytest.mark.parametrize(
    ("name", "payload", "problem"),
    [
        ("shipped", None, "^payload: has no 'carrier', which Shipment needs"),
        (
            "shipped",
            SHIPPED | {"weight": {"grams": "5"}},
            r"^payload\.weight\.grams: is '5', not int",
        ),
        ("shipped", SHIPPED | {"size": 1}, "^payload: has 'size', which Shipment has not"),
        (
            "shipped",
            SHIPPED | {"carrier": ""},
            "^payload: is no Shipment: a shipment has a carrier",
        ),
        ("refunded", {"sum": 7}, "^payload: is no Refund: 1 validation error"),
        ("picked_up", {"order": 1}, r"^payload\.order: is 1, not"),
    ],
)
def test_a_payload_of_another_shape_is_the_senders_error_and_stores_nothing(
    run, name, payload, problem
):
    trail = told(run)
    with pytest.raises(PayloadError, match=problem):
        run.signal(name, payload, "key")
    assert (run.reload().status, run.signals, told(run)) == (RunStatus.WAITING, [], trail)


def test_a_type_is_checked_also_before_its_step_waits(bus, got):
    run = Parcel.start()
    with pytest.raises(PayloadError):
        run.signal("refunded", {"sum": 7})
    assert run.signals == []


def test_a_signal_that_no_step_types_may_have_any_payload(run):
    run.signal("lost", {"where": "at sea"})
    assert [signal.name for signal in run.signals] == ["lost"]


def test_a_redelivery_is_not_checked_again(driver, run):
    first = run.signal("shipped", SHIPPED, "key")
    again = run.signal("shipped", {"size": 1}, "key")
    assert (again.signal_id, again.payload) == (first.signal_id, SHIPPED)


def test_what_a_process_without_the_class_sent_is_checked_in_the_body(
    driver, run, got, monkeypatch
):
    with monkeypatch.context() as without:
        without.delitem(registry._definitions, Parcel._definition.name)
        run.signal("shipped", {"size": 1})
    driver.drain()
    bill = run.steps[1]
    assert (bill.status, bill.error_class) == (
        AttemptStatus.SKIPPED, "pgbus.engine.errors.PayloadError"
    )  # fmt: skip
    assert bill.error_message.startswith("payload: has 'size'")
    assert got == []
