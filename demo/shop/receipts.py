"""The receipt, sent by a job: a mail server that is down must not hold up the order."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pgbus import job

if TYPE_CHECKING:
    from demo.shop.models import Order


@job(queue="mail", max_retries=3)
def send_receipt(order: Order) -> None:
    """Send the customer a receipt; what it writes commits when it returns."""
    order.receipt_sent_at = datetime.now(UTC)  # noqa: TID251 (the shop's own moment)
