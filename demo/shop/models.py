"""The shop's tables, in a schema of their own beside that of pgbus."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from enum import StrEnum

from sqlalchemy import DateTime, Enum, ForeignKey, MetaData, Numeric, func, select
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship, sessionmaker
from sqlalchemy.schema import CreateSchema

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
    """Who delivers products to the shop."""

    __tablename__ = "vendors"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)


class Product(Base):
    """What the shop sells; of a digital one there is always enough."""

    __tablename__ = "products"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    price: Mapped[Decimal]
    stock: Mapped[int]
    digital: Mapped[bool] = mapped_column(default=False)
    vendor_id: Mapped[int] = mapped_column(ForeignKey(Vendor.id))

    vendor: Mapped[Vendor] = relationship()


class Order(Base):
    """One product, some of it, for one customer; `workflow_id` is the run that sees to it."""

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

    @property
    def total(self) -> Decimal:
        """What the customer pays."""
        return self.product.price * self.quantity


def install() -> None:
    """Create the tables that do not exist, and fill the shelves of a new shop."""
    with Session.begin() as session:
        connection = session.connection()
        connection.execute(CreateSchema("shop", if_not_exists=True))
        Base.metadata.create_all(connection)
        if session.scalar(select(Product.id).limit(1)) is None:
            session.add_all(_first_products())


def _first_products() -> list[Product]:
    workshop, publisher = Vendor(name="Holm & Daughters"), Vendor(name="Margin Press")
    return [
        Product(name="lamp", price=Decimal("89.00"), stock=40, vendor=workshop),
        Product(name="kettle", price=Decimal("39.50"), stock=8, vendor=workshop),
        Product(name="novel", price=Decimal("18.00"), stock=60, vendor=publisher),
        Product(name="e-book", price=Decimal("9.90"), stock=0, digital=True, vendor=publisher),
    ]
