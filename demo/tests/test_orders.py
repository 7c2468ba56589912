"""Orders of every kind, from the click to the door."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sqlalchemy import select

from demo.shop import workflows
from demo.shop.gateway import AWAY_CARD, DECLINED_CARD, DROPPED_CARD
from demo.shop.models import OrderStatus, Product, Session
from demo.shop.receipts import send_receipt
from demo.shop.workflows import RestockWorkflow
from demo.tests.ordering import order_of, place
from pgbus import AlreadyRunning
from pgbus.testing import perform_next_step, run_step_inline, speedrun

if TYPE_CHECKING:
    from flask.testing import FlaskClient

    from pgbus import Pgbus, Run


def stock_of(name: str) -> int:
    with Session() as session:
        return session.scalars(select(Product.stock).where(Product.name == name)).one()


def delivery_of(name: str) -> Run:
    """Return the one delivery that is on its way."""
    with Session() as session:
        product = session.scalars(select(Product).where(Product.name == name)).one()
    with pytest.raises(AlreadyRunning) as ongoing:
        RestockWorkflow.start(product)
    return ongoing.value.run


def performed(run: Run) -> list[tuple[str, str]]:
    return [(step.step_name, step.status) for step in run.steps]


def receipts_sent(bus: Pgbus) -> int:
    """Return how many receipts' jobs are queued."""
    with bus.services.database.engine.connect() as connection:
        statement = "SELECT count(*) FROM pgmq.q_pgbus_mail WHERE message ->> 'job' = %s"
        return connection.exec_driver_sql(statement, (send_receipt.name,)).scalar_one()


def test_an_order_is_accepted_charged_reserved_packed_and_sent(
    customer: FlaskClient, pgbus_bus: Pgbus
) -> None:
    run = speedrun(place(customer, "novel", quantity=2))
    assert run.status == "finished"
    assert order_of(run).status is OrderStatus.SENT
    assert stock_of("novel") == 58
    assert run.outputs["pack"]["carrier"] == "Courier"
    assert receipts_sent(pgbus_bus) == 1


def test_a_review_is_asked_for_two_days_later(customer: FlaskClient) -> None:
    run = speedrun(place(customer, wants_review="yes"))
    assert run.outputs["ask_for_review"] == {"asked": "ada"}
    assert run.status == "finished"


def test_of_a_digital_product_nothing_is_reserved_or_packed(customer: FlaskClient) -> None:
    run = speedrun(place(customer, "e-book"))
    assert performed(run)[2:4] == [("reserve", "skipped"), ("pack", "skipped")]
    assert order_of(run).status is OrderStatus.SENT


def test_an_express_order_has_a_courier_called(customer: FlaskClient) -> None:
    run = speedrun(place(customer, express="yes"))
    assert run.outputs["call_courier"]["courier"] == f"comes for order {order_of(run).id}"


def test_an_order_that_is_called_off_in_time_is_not_charged(customer: FlaskClient) -> None:
    run = place(customer)
    assert customer.post(f"/orders/{order_of(run).id}/cancel").status_code == 200
    assert perform_next_step(run).status == "cancelled"
    assert performed(run) == [("accept", "cancelled")]


def test_an_accepted_order_cannot_be_called_off(customer: FlaskClient) -> None:
    run = run_step_inline(place(customer), "accept")
    assert customer.post(f"/orders/{order_of(run).id}/cancel").status_code == 409
    assert speedrun(run).status == "finished"


def test_a_declined_card_ends_the_order(customer: FlaskClient) -> None:
    run = speedrun(place(customer, card=DECLINED_CARD))
    assert run.status == "finished"
    assert order_of(run).status is OrderStatus.DECLINED
    assert stock_of("novel") == 60


def test_a_charge_whose_answer_was_lost_is_made_once(customer: FlaskClient) -> None:
    run = run_step_inline(place(customer, card=DROPPED_CARD), "accept")
    run_step_inline(run, "charge")
    run_step_inline(run, "charge")
    assert performed(run)[1:3] == [("charge", "failed"), ("charge", "completed")]


def test_a_bank_that_stays_away_pauses_the_order_until_it_is_back(customer: FlaskClient) -> None:
    run = speedrun(place(customer, card=AWAY_CARD))
    assert run.status == "paused"
    assert run.steps[-1].error_message == "the bank does not answer"
    assert order_of(run).status is OrderStatus.ACCEPTED
    assert speedrun(run.resume()).status == "finished"


class TestAnEmptyShelf:
    @pytest.fixture(autouse=True)
    def quick_pallets(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(workflows, "_unload_pallet", lambda: None)

    def test_is_filled_by_one_delivery_for_all_orders(self, customer: FlaskClient) -> None:
        runs = [place(customer, "kettle", quantity=5) for _ in range(3)]
        for run in runs:
            for name in ("accept", "charge", "reserve"):
                run_step_inline(run, name)
        assert stock_of("kettle") == 3
        assert [run.steps[-1].attempt for run in runs] == [1, 2, 2]

        speedrun(delivery_of("kettle"))
        assert stock_of("kettle") == 23
        assert {speedrun(run).status for run in runs} == {"finished"}
        assert stock_of("kettle") == 13

    def test_is_counted_up_in_the_step_that_shelves(self, customer: FlaskClient) -> None:
        run = place(customer, "kettle", quantity=9)
        for name in ("accept", "charge", "reserve"):
            run_step_inline(run, name)
        delivery = delivery_of("kettle")
        run_step_inline(delivery, "order_from_vendor")
        run_step_inline(delivery, "unload")
        assert stock_of("kettle") == 8
        run_step_inline(delivery, "shelve")
        assert stock_of("kettle") == 28


def test_a_receipt_is_noted_on_the_order(customer: FlaskClient) -> None:
    order = order_of(place(customer))
    send_receipt(order)
    assert order.receipt_sent_at is not None
