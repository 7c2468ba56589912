"""Orders that wait: for money, for a forwarder, for several vendors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from demo.shop.models import OrderStatus
from demo.tests.ordering import order_of, place
from pgbus import StepWaiting
from pgbus.testing import (
    complete_fan_out,
    deliver_signal,
    expire_wait,
    perform_next_step,
    run_step_inline,
    speedrun,
)

if TYPE_CHECKING:
    from typing import Any

    from flask.testing import FlaskClient

    from pgbus import Run


def until_it_waits(run: Run) -> Run:
    with pytest.raises(StepWaiting):
        speedrun(run)
    return run


class TestATransfer:
    @pytest.fixture
    def run(self, customer: FlaskClient) -> Run:
        return until_it_waits(place(customer, card=""))

    def call(self, customer: FlaskClient, run: Run) -> dict[str, Any]:
        """Call as the payment provider does, about one and the same payment."""
        form = {"event": "payment 1", "order": order_of(run).id, "amount": "18.00"}
        answer: dict[str, Any] = customer.post("/webhooks/payments", data=form).get_json()
        return answer

    def test_waits_for_the_money(self, run: Run) -> None:
        assert run.current_step == "charge"
        assert order_of(run).status is OrderStatus.ACCEPTED

    def test_goes_on_when_the_provider_calls(self, customer: FlaskClient, run: Run) -> None:
        assert self.call(customer, run) == {"taken": True}
        run_step_inline(run, "charge")
        assert order_of(run).status is OrderStatus.PAID
        assert speedrun(run).status == "finished"

    def test_is_paid_once_when_the_provider_calls_twice(
        self, customer: FlaskClient, run: Run
    ) -> None:
        assert [self.call(customer, run)["taken"] for _ in range(2)] == [True, False]
        speedrun(run)
        assert [step.step_name for step in run.steps].count("charge") == 1

    def test_is_called_off_when_nobody_pays(self, run: Run) -> None:
        expire_wait(run)
        assert run.status == "finished"
        assert order_of(run).status is OrderStatus.CANCELLED


class TestFreight:
    @pytest.fixture
    def run(self, customer: FlaskClient) -> Run:
        return until_it_waits(place(customer, freight="yes"))

    def test_that_is_collected_late_is_noticed_and_waited_for(self, run: Run) -> None:
        expire_wait(run)
        assert (run.status, run.current_step) == ("waiting", "collect")
        deliver_signal(run, "collected", {"vehicle": "van 3"})
        assert run.outputs["collect"] == {"vehicle": "van 3"}
        assert speedrun(run).status == "finished"


class TestABox:
    @pytest.fixture
    def run(self, customer: FlaskClient) -> Run:
        return until_it_waits(place(customer, "harvest box"))

    def test_is_packed_when_all_vendors_are_asked(self, run: Run) -> None:
        assert run.current_step == "notify_vendors"
        complete_fan_out(run)
        assert run.current_step == "pack"
        assert perform_next_step(run).outputs["pack"]["carrier"] == "Courier"
