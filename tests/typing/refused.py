"""User code whose marked lines both type checkers refuse."""

# pyright: strict

from pgbus import Workflow, cancel_if, job, on_exception, step
from pgbus.engine.definition.start import StartOptions


class Order:
    paid = False


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
