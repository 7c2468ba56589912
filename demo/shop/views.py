"""What customers see, and the two calls they make."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flask import Blueprint, abort, redirect, render_template, request, url_for
from sqlalchemy import select

from demo.shop.models import Order, OrderStatus, Product, Session
from demo.shop.workflows import ExpressOrderWorkflow, OrderWorkflow
from pgbus import Workflow

if TYPE_CHECKING:
    from werkzeug.wrappers import Response

shop = Blueprint("shop", __name__)

_NEWEST = 50


@shop.get("/")
def home() -> Response:
    """Lead to the list of orders."""
    return redirect(url_for(".orders"))


@shop.get("/orders")
def orders() -> str:
    """Show the newest orders."""
    with Session() as session:
        newest = session.scalars(select(Order).order_by(Order.id.desc()).limit(_NEWEST)).all()
        return render_template("orders.html", orders=newest)


@shop.get("/orders/<int:order_id>")
def order(order_id: int) -> str:
    """Show one order, and what its run has done for it."""
    with Session() as session:
        found = session.get(Order, order_id) or abort(404)
        run = Workflow.find(found.workflow_id) if found.workflow_id else None
        return render_template("order.html", order=found, run=run)


@shop.post("/orders")
def place_order() -> tuple[dict[str, Any], int]:
    """Take an order and start its run, both in one transaction.

    A request that is sent twice with one Idempotency-Key is one order.
    """
    wanted = request.form
    workflow = ExpressOrderWorkflow if "express" in wanted else OrderWorkflow
    key = request.headers.get("Idempotency-Key")
    with Session() as session:
        product = session.scalar(select(Product).where(Product.name == wanted["product"]))
        placed = Order(
            customer=wanted["customer"],
            product=product or abort(422, f"There is no product {wanted['product']}."),
            quantity=wanted.get("quantity", 1, type=int),
            card=wanted["card"],
            wants_review="wants_review" in wanted,
        )
        session.add(placed)
        session.flush()
        run = workflow.options(
            session=session,
            idempotency_key=key,
            actor="web",
            reason=f"{placed.quantity} x {placed.product.name} for {placed.customer}",
        ).start(placed)
        if run.duplicate_start:
            session.rollback()
            first = select(Order).where(Order.workflow_id == run.workflow_id)
            return _summary(session.scalars(first).one()), 200
        placed.workflow_id = run.workflow_id
        session.commit()
        return _summary(placed), 201


@shop.post("/orders/<int:order_id>/cancel")
def cancel_order(order_id: int) -> dict[str, Any]:
    """Call an order off while it is not accepted; its run finds out before its next step."""
    with Session.begin() as session:
        found = session.get(Order, order_id, with_for_update=True) or abort(404)
        if found.status is not OrderStatus.PLACED:
            abort(409, f"Order {order_id} is {found.status}; it cannot be called off any more.")
        found.status = OrderStatus.CANCELLED
        return _summary(found)


def _summary(order: Order) -> dict[str, Any]:
    return {"order": order.id, "status": order.status, "workflow_id": order.workflow_id}
