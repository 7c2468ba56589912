"""User code that both type checkers accept; the test beside it runs them over this file."""

# pyright: strict

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn, assert_type

from sqlalchemy.orm import Session

from pgbus import (
    StepContext,
    Workflow,
    cancel_if,
    current_delivery,
    job,
    on_exception,
    removed_step,
    step,
)
from pgbus.engine.definition.start import StartOptions
from pgbus.engine.jobs.delivery import JobDelivery


@dataclass
class Order:
    id: int
    paid: bool


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
    assert_type(notify_vendor.enqueue(7, copy=True), int)
    assert_type(send_mail.options(wait=60, session=session).enqueue(to="ann"), int)
    notify_vendor.options(
        queue="slow", priority=0, wait=timedelta(days=1), wait_until=datetime.now(UTC)
    ).enqueue(7)
    assert_type(await send_mail("ann"), None)
