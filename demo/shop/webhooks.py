"""What other companies call when something happened; they call again until they are answered."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from flask import Blueprint, abort, request
from sqlalchemy.dialects.postgresql import insert

from demo.shop.models import Order, Payment, Session
from demo.shop.workflows import FreightOrderWorkflow, TransferOrderWorkflow

webhooks = Blueprint("webhooks", __name__, url_prefix="/webhooks")


@webhooks.post("/payments")
def payment_came() -> dict[str, Any]:
    """Note a payment and tell the order's run, both in one transaction.

    A call that comes again notes nothing, and is told to the run as what it is.
    """
    event, order_id = request.form["event"], request.form["order"]
    amount = Decimal(request.form["amount"])
    with Session.begin() as session:
        paid = session.get(Order, int(order_id)) or abort(404, f"There is no order {order_id}.")
        noted = insert(Payment).values(event_id=event, order_id=paid.id, amount=amount)
        session.execute(noted.on_conflict_do_nothing())
        signal = TransferOrderWorkflow.signal(
            paid,
            "payment_confirmed",
            payload={"amount": amount},
            idempotency_key=event,
            actor="payment provider",
            reason=f"event {event}",
            session=session,
            missing="ignore",
        )
    return {"taken": signal is not None and not signal.duplicate_delivery}


@webhooks.post("/collections")
def order_collected() -> dict[str, Any]:
    """Tell the order's run which vehicle has it."""
    event, order_id = request.form["event"], request.form["order"]
    with Session.begin() as session:
        collected = session.get(Order, int(order_id)) or abort(
            404, f"There is no order {order_id}."
        )
        signal = FreightOrderWorkflow.signal(
            collected,
            "collected",
            payload={"vehicle": request.form["vehicle"]},
            idempotency_key=event,
            actor="forwarder",
            reason=f"event {event}",
            session=session,
            missing="ignore",
        )
    return {"taken": signal is not None and not signal.duplicate_delivery}
