"""How far an order is, in the words for its customer; no word of steps and runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from demo.shop.models import OrderStatus

if TYPE_CHECKING:
    from datetime import datetime

    from demo.shop.models import Order
    from pgbus import Run

_ON_THE_WAY = {
    OrderStatus.PLACED: "We have your order.",
    OrderStatus.ACCEPTED: "We see to your payment.",
    OrderStatus.PAID: "We look for it on our shelves.",
    OrderStatus.RESERVED: "We pack it.",
}
_AT_THE_END = {
    OrderStatus.DECLINED: "Your bank declined the card.",
    OrderStatus.SENT: "It is on its way to you.",
}


def progress(order: Order, run: Run | None) -> str:
    """Tell the customer what becomes of the order."""
    if order.status is OrderStatus.CANCELLED:
        money = " Your payment came too late; we send it back." if order.payments else ""
        return f"The order is called off.{money}"
    if order.status in _AT_THE_END:
        return _AT_THE_END[order.status]
    return _of_run(run) or _ON_THE_WAY[order.status]


def _of_run(run: Run | None) -> str | None:
    """Tell what the order's run waits for, if it is something that a customer should know."""
    if run is None:
        return None
    match run.status, run.current_step:
        case "paused", _:
            return "Something is in the way. Somebody of us sees to it."
        case "waiting", "charge":
            return f"We wait for your payment{_until(run.steps[-1].timeout_at)}."
        case "waiting", "collect":
            late = run.steps[-1].late_since is not None
            return "The forwarder is late; sorry." if late else "The forwarder comes for it."
        case "waiting", "notify_vendors":
            return "Our vendors are asked for their parts of it."
        case "ready", "accept":
            return f"We see to it from {_moment(run.steps[-1].scheduled_at)} on."
    return None


def _until(deadline: datetime | None) -> str:
    return f" until {_moment(deadline)}" if deadline else ""


def _moment(moment: datetime) -> str:
    return f"{moment.astimezone():%d %b at %H:%M:%S}"
