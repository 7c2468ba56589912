"""User code whose marked lines both type checkers refuse."""

# pyright: strict

from pgbus import (
    FanOut,
    SignalMatcher,
    Workflow,
    cancel_if,
    fan_out,
    job,
    on_exception,
    signal_type,
    step,
)
from pgbus.engine.definition.start import StartOptions


class Order:
    paid = False


class NoMatcher:
    def takes(self) -> bool:
        return True


class Refused(Workflow[Order]):
    policies = (
        on_exception(ValueError, action="explode"),  # refused
    )

    @step(wait="soon")  # refused
    def unclear_wait(self) -> None: ...

    @step(wiat=3)  # refused
    def misspelt(self) -> None: ...

    @step(on_stall="explode")  # refused
    def unknown_choice(self) -> None: ...

    @step(job_options={"colour": "red"})  # refused
    def unknown_job_option(self) -> None: ...

    @step  # refused
    def asks_too_much(self, order: Order) -> None: ...

    @cancel_if  # refused
    def guard_asks_too_much(self, order: Order) -> bool:
        return order.paid

    @step
    def reads(self) -> bool:
        self.output(1)  # refused
        self.require_subject().colour()  # refused
        return self.subject.paid  # refused

    @step
    def pauses(self) -> None:
        self.pause("no keyword")  # refused

    @step
    def waits(self) -> None:
        self.reattempt(wait="soon")  # refused

    @step(wait_for=NoMatcher())  # refused
    def matches_nothing(self) -> None: ...

    @step(wait_for="paid", wait_timeout=lambda self: "soon")  # refused
    def never_due(self) -> None: ...

    @step(wait_for="paid", on_timeout="explode")  # refused
    def explodes(self) -> None: ...

    @step  # refused
    def wants_a_batch(self, batch: FanOut) -> None: ...

    @fan_out  # refused
    def takes_no_batch(self) -> None: ...

    @fan_out(wait_for="paid")  # refused
    def waits_for_both(self, batch: FanOut) -> None: ...

    @fan_out(on_batch_failure="reattempt")  # refused
    def tries_again(self, batch: FanOut) -> None: ...

    @fan_out
    def spreads(self, batch: FanOut) -> None:
        batch.add(notify_vendor, "7")  # refused
        batch.add(notify_vendor)  # refused
        self.output(told=self.received_signal.payload)  # refused


SignalMatcher("paid", "eu")  # refused
signal_type("paid", "Payment")  # refused


def signals(order: Order) -> None:
    Refused.signal("not an order", "paid")  # refused
    Refused.signal(order)  # refused
    Refused.signal(order, "paid", missing="retry")  # refused


def starts(order: Order, options: StartOptions[Order]) -> None:
    Refused.start("not an order")  # refused
    Refused.options(colour="red")  # refused
    options.start("not an order")  # refused
    Refused.start_many([("not an order", {})])  # refused


@job
def notify_vendor(vendor_id: int) -> str:
    return str(vendor_id)


job(retries=3)  # refused
job(priority=3)  # refused


def jobs() -> None:
    notify_vendor("7")  # refused
    notify_vendor.enqueue("7")  # refused
    notify_vendor.enqueue()  # refused
    notify_vendor.options(wait=60).enqueue(7, copy=True)  # refused
    notify_vendor.options(wait="soon")  # refused
    notify_vendor.options(max_retries=1)  # refused
