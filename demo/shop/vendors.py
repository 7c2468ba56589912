"""What vendors are asked for, each by a job: one who cannot be reached holds up no other."""

from __future__ import annotations

from demo.shop import mailboxes
from demo.shop.models import Vendor
from pgbus import job, register_subject

# No workflow is about a vendor, so nothing else says that one can be an argument.
register_subject(Vendor)


@job(queue="vendors", max_retries=2)
def request_part(vendor: Vendor, *, box: str, key: str) -> None:
    """Ask the vendor for its part of a box; by the key it knows a request that comes again."""
    mailboxes.send(vendor.address, f"One part for a {box}, please. Our reference: {key}")
