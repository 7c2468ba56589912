"""The shop's tables, in a schema of their own beside that of pgbus."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from enum import StrEnum

from sqlalchemy import DateTime, Enum, ForeignKey, MetaData, Numeric, func, select, text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship, sessionmaker
from sqlalchemy.orm import Session as SessionType
from sqlalchemy.schema import CreateSchema

from demo.shop.mailboxes import BUSY_MAILBOX, MISSPELT_MAILBOX

#: Bound to a database by `create_app`.
Session = sessionmaker()


class OrderStatus(StrEnum):
    """How far an order has come, in the customer's eyes."""

    PLACED = "placed"
    CANCELLED = "cancelled"
    ACCEPTED = "accepted"
    DECLINED = "declined"
    PAID = "paid"
    RESERVED = "reserved"
    SENT = "sent"


class Base(DeclarativeBase):
    """The root of the shop's models."""

    metadata = MetaData(schema="shop")
    type_annotation_map = {  # noqa: RUF012 (SQLAlchemy declares it without ClassVar)
        datetime: DateTime(timezone=True),
        Decimal: Numeric(10, 2),
        OrderStatus: Enum(
            OrderStatus, native_enum=False, values_callable=lambda statuses: [*statuses]
        ),
    }


class Vendor(Base):
    """Who delivers products to the shop, or a part of them."""

    __tablename__ = "vendors"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    address: Mapped[str]


class Product(Base):
    """What the shop sells; of a digital one there is always enough.

    A box has `contributors`: each puts a part into it.
    """

    __tablename__ = "products"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    price: Mapped[Decimal]
    stock: Mapped[int]
    digital: Mapped[bool] = mapped_column(default=False)
    vendor_id: Mapped[int] = mapped_column(ForeignKey(Vendor.id))

    vendor: Mapped[Vendor] = relationship()
    contributors: Mapped[list[Vendor]] = relationship(
        secondary=lambda: Contribution.__table__, order_by=Vendor.name
    )


class Contribution(Base):
    """That a vendor puts a part into a box."""

    __tablename__ = "contributions"

    product_id: Mapped[int] = mapped_column(ForeignKey(Product.id), primary_key=True)
    vendor_id: Mapped[int] = mapped_column(ForeignKey(Vendor.id), primary_key=True)


class Order(Base):
    """One product, some of it, for one customer; `workflow_id` is the run that sees to it.

    Without a `card` the customer pays by transfer.
    """

    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[str]
    product_id: Mapped[int] = mapped_column(ForeignKey(Product.id))
    quantity: Mapped[int]
    card: Mapped[str]
    wants_review: Mapped[bool]
    status: Mapped[OrderStatus] = mapped_column(default=OrderStatus.PLACED)
    workflow_id: Mapped[str | None] = mapped_column(unique=True)
    placed_at: Mapped[datetime] = mapped_column(server_default=func.now())
    receipt_sent_at: Mapped[datetime | None]

    product: Mapped[Product] = relationship()
    payments: Mapped[list[Payment]] = relationship(order_by=lambda: Payment.received_at)

    @property
    def total(self) -> Decimal:
        """What the customer pays."""
        return self.product.price * self.quantity


class Payment(Base):
    """What the payment provider told us once, however often it called."""

    __tablename__ = "payments"

    event_id: Mapped[str] = mapped_column(primary_key=True)
    order_id: Mapped[int] = mapped_column(ForeignKey(Order.id))
    amount: Mapped[Decimal]
    received_at: Mapped[datetime] = mapped_column(server_default=func.now())


#: The first version of the shop had no addresses.
_ADD_ADDRESS = text(
    "ALTER TABLE shop.vendors ADD COLUMN IF NOT EXISTS address text NOT NULL DEFAULT ''"
)

_VENDORS = (
    {"name": "Holm & Daughters", "address": "orders@holm.example"},
    {"name": "Margin Press", "address": "orders@margin-press.example"},
    {"name": "Crumb Bakery", "address": "orders@crumb.example"},
    {"name": "Hill Dairy", "address": BUSY_MAILBOX},
    {"name": "Vale Orchard", "address": MISSPELT_MAILBOX},
)
_PRODUCTS = (
    ("lamp", Decimal("89.00"), 40, "Holm & Daughters"),
    ("kettle", Decimal("39.50"), 8, "Holm & Daughters"),
    ("novel", Decimal("18.00"), 60, "Margin Press"),
    ("e-book", Decimal("9.90"), None, "Margin Press"),
    ("breakfast box", Decimal("24.00"), 30, "Holm & Daughters"),
    ("harvest box", Decimal("32.00"), 30, "Holm & Daughters"),
)
_CONTRIBUTORS = {
    "breakfast box": ("Crumb Bakery", "Hill Dairy", "Margin Press"),
    "harvest box": ("Crumb Bakery", "Holm & Daughters", "Vale Orchard"),
}


def install() -> None:
    """Create the tables that do not exist, and put on the shelves what is not there yet."""
    with Session.begin() as session:
        connection = session.connection()
        connection.execute(CreateSchema("shop", if_not_exists=True))
        Base.metadata.create_all(connection)
        connection.execute(_ADD_ADDRESS)
        _fill_shelves(session)


def _fill_shelves(session: SessionType) -> None:
    _add_vendors(session)
    vendors = {vendor.name: vendor for vendor in session.scalars(select(Vendor))}
    known = set(session.scalars(select(Product.name)))
    for name, price, stock, vendor in _PRODUCTS:
        if name in known:
            continue
        product = Product(
            name=name, price=price, stock=stock or 0, digital=stock is None, vendor=vendors[vendor]
        )
        product.contributors = [vendors[one] for one in _CONTRIBUTORS.get(name, ())]
        session.add(product)


def _add_vendors(session: SessionType) -> None:
    """Add those who are missing, and the addresses of those who have none; mended ones stay."""
    new = insert(Vendor).values(_VENDORS)
    session.execute(
        new.on_conflict_do_update(
            index_elements=[Vendor.name],
            set_={"address": new.excluded.address},
            where=Vendor.address == "",
        )
    )
