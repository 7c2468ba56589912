"""A customer who never stops: places orders of every kind, over HTTP as anybody would."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, urlopen
from uuid import uuid4

from demo.shop.gateway import AWAY_CARD, DECLINED_CARD, DROPPED_CARD, GOOD_CARD

if TYPE_CHECKING:
    from demo.partners import Partners

_PATIENCE = 10


@dataclass(frozen=True, slots=True)
class Basket:
    """An order, and what its customer and the forwarder do about it, in seconds after it."""

    customer: str
    product: str
    quantity: int = 1
    card: str | None = GOOD_CARD
    wishes: dict[str, Any] = field(default_factory=dict)
    called_off: bool = False
    paid_after: int | None = None
    collected_after: int | None = None

    @property
    def form(self) -> dict[str, Any]:
        """What the shop is sent."""
        card = {"card": self.card} if self.card else {}
        return {
            "customer": self.customer,
            "product": self.product,
            "quantity": self.quantity,
            **card,
            **self.wishes,
        }


#: One of each kind: what becomes of an order depends on its basket alone.
BASKETS = (
    Basket("ada", "novel"),
    Basket("elif", "kettle", quantity=5),
    Basket("kofi", "lamp", card=None, paid_after=8, wishes={"wants_review": "yes"}),
    Basket("vera", "harvest box"),
    Basket("fumio", "lamp", card=AWAY_CARD),
    Basket("otto", "lamp", wishes={"freight": "yes"}, collected_after=90),
    Basket("brook", "lamp", wishes={"wants_review": "yes"}),
    Basket("tomo", "breakfast box"),
    Basket("lena", "novel", card=None, paid_after=120),  # after the deadline
    Basket("wanda", "kettle", quantity=5),
    Basket("dana", "novel", card=DROPPED_CARD),
    Basket("mats", "lamp", card=None),  # does not pay
    Basket("gita", "novel", card=DECLINED_CARD),
    Basket("hugo", "lamp", wishes={"express": "yes"}),
    Basket("pia", "novel", wishes={"in_days": 5}),
    Basket("ines", "novel", called_off=True),
    Basket("chidi", "e-book"),
)


class Customer:
    """Orders one of each kind at once, then `rate` times a second; `orders` in all (None: no end)."""

    def __init__(
        self, shop_url: str, partners: Partners, *, rate: float, orders: int | None
    ) -> None:
        self._shop_url = shop_url
        self._partners = partners
        self._pause = 1 / rate
        self._orders = orders
        self._placed = 0
        self._next_at = time.monotonic()

    @property
    def done(self) -> bool:
        """Whether the last order is placed."""
        return self._placed == self._orders

    def shop(self) -> None:
        """Place the orders that are due."""
        while not self.done and time.monotonic() >= self._next_at:
            self._place(BASKETS[self._placed % len(BASKETS)])
            self._placed += 1
            if self._placed >= len(BASKETS):
                self._next_at += self._pause

    def _place(self, basket: Basket) -> None:
        placed = self._post("/orders", basket.form)
        order = placed["order"]
        if basket.called_off:
            with suppress(HTTPError):  # too late on a slow day: the order is accepted
                self._post(f"/orders/{order}/cancel", {})
        if basket.paid_after is not None:
            paid = {"order": order, "amount": placed["total"]}
            self._partners.plan(
                "/webhooks/payments", paid, after=timedelta(seconds=basket.paid_after)
            )
        if basket.collected_after is not None:
            collected = {"order": order, "vehicle": f"truck {order % 5 + 1}"}
            self._partners.plan(
                "/webhooks/collections", collected, after=timedelta(seconds=basket.collected_after)
            )

    def _post(self, path: str, form: dict[str, Any]) -> dict[str, Any]:
        request = Request(  # noqa: S310 (the shop's own address)
            self._shop_url + path,
            data=urlencode(form).encode(),
            headers={"Idempotency-Key": str(uuid4())},
        )
        with urlopen(request, timeout=_PATIENCE) as response:  # noqa: S310 (as above)
            answer: dict[str, Any] = json.load(response)
            return answer
