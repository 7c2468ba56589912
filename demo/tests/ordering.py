"""What a customer of the shop does, and what becomes of the order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import select

from demo.shop.gateway import GOOD_CARD
from demo.shop.models import Order, Session
from pgbus import Run, Workflow

if TYPE_CHECKING:
    from flask.testing import FlaskClient


def place(customer: FlaskClient, product: str = "novel", **wishes: Any) -> Run:
    """Place an order over HTTP and return its run."""
    basket = {"customer": "ada", "product": product, "card": GOOD_CARD} | wishes
    answer = customer.post("/orders", data=basket)
    assert answer.status_code == 201
    run = Workflow.find(answer.get_json()["workflow_id"])
    assert run is not None
    return run


def order_of(run: Run) -> Order:
    with Session() as session:
        return session.scalars(select(Order).where(Order.workflow_id == run.workflow_id)).one()
