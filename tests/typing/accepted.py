"""User code that both type checkers accept; the test beside it runs them over this file."""

# pyright: strict

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn, assert_type

from sqlalchemy.orm import Session

from pgbus import (
    FanOut,
    SignalMatcher,
    StepContext,
    Workflow,
    cancel_if,
    current_delivery,
    fan_out,
    job,
    on_exception,
    removed_step,
    signal_type,
    step,
)
from pgbus.engine.definition.delivery import JobDelivery
from pgbus.engine.definition.signal import Signal
from pgbus.engine.definition.start import StartOptions


@dataclass
class Order:
    id: int
    paid: bool


@dataclass
class Payment:
    amount: int


class FromBank:
    def matches(self, signal: Signal) -> bool:
        return signal.actor == "bank"


PAID = signal_type("paid", Payment)


class PaymentDeclinedError(Exception):
    code = "declined"


def send_receipt(workflow: "OrderWorkflow") -> Mapping[str, Any]:
    return {"to": workflow.require_subject().id}


class OrderWorkflow(Workflow[Order], queue="orders", priority=0, wait=1.5):
    policies = (
        on_exception(ConnectionError, action="reattempt", wait=timedelta(seconds=15)),
        on_exception("stripe.error.CardError", action="pause", report="never"),
        on_exception(TimeoutError, action="reattempt", wait=lambda attempt: 2**attempt),
    )

    @cancel_if
    def order_gone(self) -> bool:
        return self.subject is None

    @on_exception(PaymentDeclinedError)
    def declined(self, error: PaymentDeclinedError) -> None:
        self.cancel(reason=error.code)

    @step
    def reserve(self) -> None:
        assert_type(self.subject, Order | None)
        assert_type(self.require_subject(), Order)
        assert_type(self.session, Session)
        assert_type(self.arguments["plan"], Any)
        assert_type(self.output_of("reserve"), Mapping[str, Any] | None)
        self.output(self="a value may have any name", subject=1)

    @step(wait=timedelta(days=2), skip_if=lambda self: self.require_subject().paid)
    def remind(self) -> None:
        if self.attempt > 3:
            self.pause(reason="enough")
        if self.subject is None:
            self.reattempt(wait=30)
        assert_type(self.attempt, int)

    @step(skip_if="order_gone", policies=[declined, on_exception(action="skip")])
    def capture(self) -> dict[str, int] | None:
        if self.attempt > 3:
            return self.skip()
        return {"charge": 7}

    @step(timeout=60, on_stall="reattempt", transactional=True)
    async def notify(self) -> None:
        self.finish()

    @step
    def _(self) -> None: ...

    @step(wait=1)
    def _(self) -> None: ...

    legacy_export = removed_step()
    receipt = step(
        send_receipt,
        job_options={"queue": "mail", "priority": 2, "wait_until": datetime.now(UTC)},
    )
    again = step("reserve", after_step="remind")


def notify_elsewhere(workflow: OrderWorkflow, batch: FanOut) -> None:
    batch.add(notify_vendor, workflow.attempt)


class Waiting(Workflow[Order]):
    def due(self) -> datetime | None:
        return None

    @step(wait_for="paid", wait_timeout=timedelta(days=7), on_timeout="run")
    def capture(self) -> None:
        assert_type(self.received_signal, Signal | None)
        assert_type(self.require_signal().payload["amount"], Any)
        assert_type(PAID.value_of(self.require_signal().payload), Payment)
        assert_type((self.timed_out, self.signal_ready, self.woken), tuple[bool, bool, bool])

    @step(wait_for=PAID, wait_timeout="due")
    def typed(self) -> None: ...

    @step(
        wait_for=SignalMatcher("shipped", lambda payload: payload["region"] == "eu"),
        wait_timeout=lambda self: self.attempt * 60,
        skip_if=lambda self: not self.signal_ready,
    )
    async def matched(self) -> None: ...

    @step(wait_for=FromBank(), wait_timeout=due, on_timeout="notify")
    def custom(self) -> None: ...

    @fan_out
    def notify(self, batch: FanOut) -> None:
        batch.add(notify_vendor, 7, copy=True)
        batch.add(notify_vendor.options(wait=60), 7)
        batch.add_many(notify_vendor, [(7,), (8,)])
        with batch.collecting():
            notify_vendor.enqueue(7)

    @fan_out(on_batch_failure="skip", wait=5)
    async def later(self, batch: FanOut) -> None: ...

    @fan_out
    def _(self, batch: FanOut) -> None: ...

    elsewhere = fan_out(notify_elsewhere, job_options={"queue": "mail"})
    again = fan_out("notify", after_step="notify")


class Rush(OrderWorkflow):
    @step(before_step="reserve")
    def hurry(self) -> None: ...


class Untyped(Workflow):
    @step
    def only(self) -> None:
        assert_type(self.require_subject(), Any)


def typed_as_written(workflow: OrderWorkflow) -> None:
    assert_type(workflow.reserve(), None)
    assert_type(workflow.capture(), dict[str, int] | None)
    assert_type(workflow.order_gone(), bool)
    assert_type(OrderWorkflow.options(actor="alice"), StartOptions[Order])
    assert_type(StepContext.current(), StepContext | None)


def starts(order: Order) -> None:
    OrderWorkflow.start(order, plan="pro", subject=1, session=2)
    OrderWorkflow.start()
    Rush.options(idempotency_key="checkout-7").start(order)
    OrderWorkflow.start_many([(order, {"plan": "pro"}), (None, {})])
    Untyped.start(order)


def signals(order: Order, session: Session) -> None:
    assert_type(Waiting.signal(order, "paid"), Signal | None)
    Waiting.signal(
        order,
        "paid",
        payload={"amount": 5},
        idempotency_key="event-7",
        actor="bank",
        reason="paid",
        session=session,
        missing="ignore",
    )


def fan_outs_stay_methods(workflow: Waiting, batch: FanOut) -> None:
    assert_type(workflow.notify(batch), None)


def never_returns(workflow: OrderWorkflow) -> NoReturn:
    workflow.skip()


@job
def notify_vendor(vendor_id: int, *, copy: bool = False) -> str:
    assert_type(current_delivery(), JobDelivery | None)
    return f"{vendor_id} {copy}"


@job(queue="mail", max_retries=0, priority=2)
async def send_mail(to: str) -> None: ...


async def jobs(session: Session) -> None:
    assert_type(notify_vendor(7, copy=True), str)
    assert_type(notify_vendor.enqueue(7, copy=True), int | None)
    assert_type(send_mail.options(wait=60, session=session).enqueue(to="ann"), int | None)
    notify_vendor.options(
        queue="slow", priority=0, wait=timedelta(days=1), wait_until=datetime.now(UTC)
    ).enqueue(7)
    assert_type(await send_mail("ann"), None)
