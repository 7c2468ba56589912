"""A payment gateway as a shop sees one: another company, behind an unreliable line.

It stands in for the real thing: it keeps its own books, in transactions of its own, and its
test cards say what goes wrong.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import Column, Integer, MetaData, Numeric, Table, Text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.schema import CreateSchema

if TYPE_CHECKING:
    from decimal import Decimal

    from sqlalchemy import Engine

GOOD_CARD = "4242"
DECLINED_CARD = "0002"
#: The line drops once the charge is made, before the shop hears of it.
DROPPED_CARD = "0341"
#: The bank is away for the first tries of a payment.
AWAY_CARD = "0119"

_TRIES_AWAY = 5

_books = MetaData(schema="gateway")
_payments = Table(
    "payments",
    _books,
    Column("id", Integer, primary_key=True),
    Column("key", Text, nullable=False, unique=True),
    Column("amount", Numeric(10, 2), nullable=False),
    Column("tries", Integer, nullable=False),
)


class CardDeclined(Exception):
    """The bank said no; trying again changes nothing."""


class BankAway(ConnectionError):
    """The bank does not answer; it may later."""


class Gateway:
    """Charges cards; one idempotency key is one payment, however often it is sent."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def install(self) -> None:
        """Create the books if they do not exist."""
        with self._engine.begin() as connection:
            connection.execute(CreateSchema("gateway", if_not_exists=True))
            _books.create_all(connection)

    def charge(self, card: str, amount: Decimal, *, key: str) -> str:
        """Return the payment's id; raise `CardDeclined`, `BankAway` or `TimeoutError`."""
        if card == DECLINED_CARD:
            raise CardDeclined("the bank declined the card")
        payment, tries = self._book(amount, key)
        if card == AWAY_CARD and tries <= _TRIES_AWAY:
            raise BankAway("the bank does not answer")
        if card == DROPPED_CARD and tries == 1:
            raise TimeoutError("the line dropped before the gateway answered")
        return f"payment-{payment}"

    def _book(self, amount: Decimal, key: str) -> tuple[int, int]:
        """Return the payment's id, and how often it has been sent."""
        booked = (
            insert(_payments)
            .values(key=key, amount=amount, tries=1)
            .on_conflict_do_update(
                index_elements=[_payments.c.key], set_={"tries": _payments.c.tries + 1}
            )
            .returning(_payments.c.id, _payments.c.tries)
        )
        with self._engine.begin() as connection:
            payment, tries = connection.execute(booked).one()
        return payment, tries
