"""What happens to an order, and to a shelf that runs empty."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from threading import Event

from flask import current_app

from demo.shop.gateway import CardDeclined, Gateway
from demo.shop.models import Order, OrderStatus, Product
from demo.shop.receipts import send_receipt
from demo.shop.vendors import request_part
from pgbus import (
    AlreadyRunning,
    FanOut,
    Workflow,
    cancel_if,
    fan_out,
    on_exception,
    signal_type,
    step,
)

_CARRIERS = {"Courier": 4.90, "Post": 5.20, "Bicycle": 6.10}
_DELIVERY = 20
_PALLETS = 8
#: From this sum on a customer who pays by transfer has weeks, below it the demo's short days.
_BIG_SUM = 50
_WEEKS, _DAYS = timedelta(weeks=2), timedelta(seconds=20)


@dataclass(frozen=True)
class Collection:
    """What a forwarder tells us: which of its vehicles has an order now."""

    vehicle: str


class OutOfStock(Exception):
    """The shelf holds less than was ordered."""


class OrderWorkflow(Workflow[Order], queue="orders"):
    """An order, from the click to the customer's door."""

    policies = (
        on_exception(
            ConnectionError,
            TimeoutError,
            action="reattempt",
            wait=lambda attempt: 2**attempt,
            max_reattempts=2,
        ),
    )

    @cancel_if
    def called_off(self) -> bool:
        """Tell, before every step, whether the order is called off."""
        order = self.subject
        return order is None or order.status is OrderStatus.CANCELLED

    @step(wait=timedelta(seconds=3), transactional=True)
    def accept(self) -> None:
        """Accept the order.

        The customer may call it off until here; the row lock makes it one or the other.
        """
        order = self.require_subject()
        self.session.refresh(order, with_for_update=True)
        if order.status is OrderStatus.CANCELLED:
            self.cancel(reason="called off at the last moment")
        order.status = OrderStatus.ACCEPTED

    @step
    def charge(self) -> None:
        """Charge the card once: the key is the same on every attempt."""
        order = self.require_subject()
        gateway: Gateway = current_app.extensions["gateway"]
        try:
            payment = gateway.charge(order.card, order.total, key=self.step_idempotency_key)
        except CardDeclined as refusal:
            order.status = OrderStatus.DECLINED
            self.finish(reason=str(refusal))
        order.status = OrderStatus.PAID
        self.output(payment=payment, amount=order.total)

    @step(transactional=True, skip_if="is_digital")
    def reserve(self) -> None:
        """Count the stock down in the transaction that completes the step: exactly once."""
        order = self.require_subject()
        product = order.product
        self.session.refresh(product, with_for_update=True)
        if product.stock < order.quantity:
            raise OutOfStock(f"{order.quantity} x {product.name} ordered, {product.stock} there")
        product.stock -= order.quantity
        order.status = OrderStatus.RESERVED

    @on_exception(OutOfStock)
    def restock(self, _error: OutOfStock) -> None:
        """Have one delivery at a time: a product has at most one ongoing run of a class."""
        with suppress(AlreadyRunning):
            RestockWorkflow.options(reason=f"order {self.require_subject().id} waits").start(
                self.require_subject().product
            )
        self.reattempt(wait=timedelta(seconds=4), reason="waits for a delivery")

    @step(skip_if="is_digital")
    async def pack(self) -> None:
        """Ask all carriers at once and take the cheapest."""
        quotes = await asyncio.gather(*(_quote(carrier) for carrier in _CARRIERS))
        price, carrier = min(quotes)
        self.output(carrier=carrier, price=price)

    @step(transactional=True)
    def ship(self) -> None:
        """Send the receipt's job with this step's completion, or not at all."""
        order = self.require_subject()
        order.status = OrderStatus.SENT
        send_receipt.options(session=self.session).enqueue(order)
        if not order.wants_review:
            self.finish()

    @step(wait=timedelta(days=2), job_options={"queue": "mail", "priority": 2})
    def ask_for_review(self) -> None:
        """Ask after a wait of days, which costs nothing: until it is over there is only a row."""
        self.output(asked=self.require_subject().customer)

    def is_digital(self) -> bool:
        """Tell whether there is nothing to reserve and nothing to pack."""
        return self.require_subject().product.digital


class ExpressOrderWorkflow(OrderWorkflow, queue="orders", priority=0):
    """An order that overtakes the others and goes out by hand."""

    @step(after_step="pack")
    def call_courier(self) -> None:
        """Call a courier: the one step that this class adds; it inherits the others."""
        self.output(courier=f"comes for order {self.require_subject().id}")


class TransferOrderWorkflow(OrderWorkflow, queue="orders"):
    """An order that is paid by transfer: the payment provider tells us when the money is there."""

    @step(wait_for="payment_confirmed", wait_timeout="patience", on_timeout="run")
    def charge(self) -> None:
        """Note the payment, or call the order off: the deadline runs the body, too."""
        order = self.require_subject()
        if self.timed_out:
            order.status = OrderStatus.CANCELLED
            self.finish(reason="not paid in time")
        order.status = OrderStatus.PAID
        self.output(amount=self.require_signal().payload["amount"])

    def patience(self) -> timedelta:
        """Tell how long this order's payment may take, from when the step begins to wait."""
        return _WEEKS if self.require_subject().total >= _BIG_SUM else _DAYS


class FreightOrderWorkflow(OrderWorkflow, queue="orders"):
    """An order that no parcel holds: a forwarder collects it, as a rule later than agreed."""

    @step(
        after_step="pack",
        wait_for=signal_type("collected", Collection),
        wait_timeout=timedelta(seconds=8),
        on_timeout="notify",
    )
    def collect(self) -> None:
        """Go on when it is collected, however late; each deadline that passes leaves a notice."""
        collection: Collection = self.require_signal().value
        self.output(vehicle=collection.vehicle)


class BoxOrderWorkflow(OrderWorkflow, queue="orders"):
    """A box that several vendors fill."""

    @fan_out(after_step="reserve")
    def notify_vendors(self, batch: FanOut) -> None:
        """Ask all of them at once, and go on when each has its request."""
        box = self.require_subject().product
        for vendor in box.contributors:
            key = f"{self.step_idempotency_key}:{vendor.id}"
            batch.add(request_part, vendor, box=box.name, key=key)


class RestockWorkflow(Workflow[Product], queue="warehouse"):
    """A delivery from the product's vendor."""

    @step
    def order_from_vendor(self) -> None:
        """Order, and output what was ordered: it is there for the steps after this one."""
        product = self.require_subject()
        self.output(vendor=product.vendor.name, quantity=_DELIVERY)

    @step(wait=timedelta(seconds=2), timeout=timedelta(minutes=1))
    def unload(self) -> None:
        """Unload in a long body, and ask between two pallets whether it is still wanted."""
        for _ in range(_PALLETS):
            self.checkpoint()
            _unload_pallet()

    @step(transactional=True)
    def shelve(self) -> None:
        """Count the stock up exactly once, too."""
        product = self.require_subject()
        ordered = self.output_of("order_from_vendor") or {}
        self.session.refresh(product, with_for_update=True)
        product.stock += ordered["quantity"]


async def _quote(carrier: str) -> tuple[float, str]:
    await asyncio.sleep(0.1)
    return _CARRIERS[carrier], carrier


def _unload_pallet() -> None:
    Event().wait(1)
