"""What customers see, the two calls they make, and the page for the shop's own people."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from flask import Blueprint, abort, redirect, render_template, request, url_for
from sqlalchemy import select

from demo.shop.models import Order, OrderStatus, Product, Session, Vendor
from demo.shop.progress import progress
from demo.shop.workflows import (
    BoxOrderWorkflow,
    ExpressOrderWorkflow,
    FreightOrderWorkflow,
    OrderWorkflow,
    TransferOrderWorkflow,
)
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
        return render_template("order.html", order=found, run=run, progress=progress(found, run))


@shop.post("/orders")
def place_order() -> tuple[dict[str, Any], int]:
    """Take an order and start its run, both in one transaction.

    A request that is sent twice with one Idempotency-Key is one order.
    """
    wanted = request.form
    key = request.headers.get("Idempotency-Key")
    with Session() as session:
        product = session.scalar(select(Product).where(Product.name == wanted["product"]))
        placed = Order(
            customer=wanted["customer"],
            product=product or abort(422, f"There is no product {wanted['product']}."),
            quantity=wanted.get("quantity", 1, type=int),
            card=wanted.get("card", ""),
            wants_review="wants_review" in wanted,
        )
        session.add(placed)
        session.flush()
        run = (
            _workflow_for(placed)
            .options(
                session=session,
                idempotency_key=key,
                actor="web",
                reason=f"{placed.quantity} x {placed.product.name} for {placed.customer}",
            )
            .start(placed)
        )
        if run.duplicate_start:
            session.rollback()
            first = select(Order).where(Order.workflow_id == run.workflow_id)
            return _summary(session.scalars(first).one()), 200
        placed.workflow_id = run.workflow_id
        if days := wanted.get("in_days", type=int):
            later = datetime.now(UTC) + timedelta(days=days)  # noqa: TID251 (the customer's wish)
            run.reschedule(later, actor="web", reason=f"wanted in {days} days", session=session)
        session.commit()
        return _summary(placed), 201


def _workflow_for(order: Order) -> type[OrderWorkflow]:
    """Return what is to happen to an order of this kind."""
    if order.product.contributors:
        return BoxOrderWorkflow
    if "express" in request.form:
        return ExpressOrderWorkflow
    if "freight" in request.form:
        return FreightOrderWorkflow
    return OrderWorkflow if order.card else TransferOrderWorkflow


@shop.post("/orders/<int:order_id>/cancel")
def cancel_order(order_id: int) -> dict[str, Any]:
    """Call an order off while it is not accepted; its run finds out before its next step."""
    with Session.begin() as session:
        found = session.get(Order, order_id, with_for_update=True) or abort(404)
        if found.status is not OrderStatus.PLACED:
            abort(409, f"Order {order_id} is {found.status}; it cannot be called off any more.")
        found.status = OrderStatus.CANCELLED
        return _summary(found)


@shop.get("/vendors")
def vendors() -> str:
    """Show the vendors, and where their mail goes."""
    with Session() as session:
        known = session.scalars(select(Vendor).order_by(Vendor.name)).all()
        return render_template("vendors.html", vendors=known)


@shop.post("/vendors/<int:vendor_id>")
def mend_address(vendor_id: int) -> Response:
    """Send a vendor's mail elsewhere from now on."""
    with Session.begin() as session:
        found = session.get(Vendor, vendor_id) or abort(404)
        found.address = request.form["address"].strip()
    return redirect(url_for(".vendors"))


def _summary(order: Order) -> dict[str, Any]:
    return {
        "order": order.id,
        "status": order.status,
        "total": str(order.total),
        "workflow_id": order.workflow_id,
    }
