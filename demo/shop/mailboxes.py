"""The vendors' mailboxes as a shop sees them: on the machines of other companies.

They stand in for the real thing: an address says what goes wrong.
"""

from __future__ import annotations

from pgbus import current_delivery

#: Takes mail at the third try.
BUSY_MAILBOX = "orders@hill-dairy.example"
#: Nobody's: "orchrad" should be "orchard".
MISSPELT_MAILBOX = "orders@vale-orchrad.example"

_TRIES_BUSY = 2


class NoSuchMailbox(Exception):
    """Nobody has this address."""


class MailboxBusy(ConnectionError):
    """The other machine takes no mail for the moment."""


def send(address: str, _text: str) -> None:
    """Send a mail; raise `NoSuchMailbox` or `MailboxBusy`."""
    if address == MISSPELT_MAILBOX:
        raise NoSuchMailbox(f"nobody has the address {address}")
    delivery = current_delivery()
    if address == BUSY_MAILBOX and delivery and delivery.read_count <= _TRIES_BUSY:
        raise MailboxBusy(f"{address} takes no mail for the moment")
