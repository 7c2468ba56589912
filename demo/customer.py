"""A customer who never stops: places orders of every kind, over HTTP as anybody would."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from itertools import cycle
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, urlopen
from uuid import uuid4

from demo.shop.gateway import AWAY_CARD, DECLINED_CARD, DROPPED_CARD, GOOD_CARD

if TYPE_CHECKING:
    from collections.abc import Iterator

_PATIENCE = 10


def _basket(customer: str, product: str, quantity: int = 1, **wishes: Any) -> dict[str, Any]:
    usual = {"customer": customer, "product": product, "quantity": quantity, "card": GOOD_CARD}
    return usual | wishes


#: One of each kind: what becomes of an order depends on its basket alone.
BASKETS = (
    _basket("ada", "novel"),
    _basket("brook", "lamp", wants_review="yes"),
    _basket("chidi", "e-book"),
    _basket("dana", "novel", card=DROPPED_CARD),
    _basket("elif", "kettle", quantity=5),
    _basket("fumio", "lamp", card=AWAY_CARD),
    _basket("gita", "novel", card=DECLINED_CARD),
    _basket("hugo", "lamp", express="yes"),
    _basket("ines", "novel"),
)
#: Calls every order off at once.
_WAVERER = "ines"


class Customer:
    """Orders `rate` times a second, `orders` times in all (None: without end)."""

    def __init__(self, shop_url: str, *, rate: float, orders: int | None) -> None:
        self._shop_url = shop_url
        self._pause = 1 / rate
        self._left = orders
        self._baskets: Iterator[dict[str, Any]] = cycle(BASKETS)
        self._next_at = time.monotonic()

    @property
    def done(self) -> bool:
        """Whether the last order is placed."""
        return self._left == 0

    def shop(self) -> None:
        """Place the orders that are due."""
        while not self.done and time.monotonic() >= self._next_at:
            self._next_at += self._pause
            self._place(next(self._baskets))
            if self._left is not None:
                self._left -= 1

    def _place(self, basket: dict[str, Any]) -> None:
        placed = self._post("/orders", basket)
        if basket["customer"] == _WAVERER:
            with suppress(HTTPError):  # too late on a slow day: the order is accepted
                self._post(f"/orders/{placed['order']}/cancel", {})

    def _post(self, path: str, form: dict[str, Any]) -> dict[str, Any]:
        request = Request(  # noqa: S310 (the shop's own address)
            self._shop_url + path,
            data=urlencode(form).encode(),
            headers={"Idempotency-Key": str(uuid4())},
        )
        with urlopen(request, timeout=_PATIENCE) as response:  # noqa: S310 (as above)
            answer: dict[str, Any] = json.load(response)
            return answer
