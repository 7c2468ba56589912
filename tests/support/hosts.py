"""A host application's side: its records, its sessions, and what pgbus stored beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from psycopg import sql
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from pgbus import register_subject

if TYPE_CHECKING:
    from support.database import Database


class HostModel(DeclarativeBase):
    pass


class Purchase(HostModel):
    __tablename__ = "purchases"
    id: Mapped[int] = mapped_column(primary_key=True)
    state: Mapped[str] = mapped_column(default="new")


register_subject(Purchase)


def make_purchases(database: Database, count: int) -> None:
    """The host's table, with purchases 1 to `count` in it."""
    HostModel.metadata.create_all(database.engine)
    database.rows(
        "INSERT INTO purchases (id, state) SELECT n, 'new' FROM generate_series(1, %s) n", count
    )


def messages(database: Database) -> list[tuple[Any, ...]]:
    """Every queued message as (queue, id, visible at, body), in the order sent."""
    queues = [queue for (queue,) in database.rows("SELECT queue_name FROM pgmq.meta ORDER BY 1")]
    return [
        row
        for queue in queues
        for row in database.rows(
            sql.SQL("SELECT {}, msg_id, vt, message FROM pgmq.{} ORDER BY msg_id").format(
                sql.Literal(queue), sql.Identifier(f"q_{queue}")
            )
        )
    ]


def stored(database: Database) -> dict[str, int]:
    """How many runs, attempts, events and messages there are."""
    counts = {
        table: database.value(f"SELECT count(*) FROM pgbus.{table}")
        for table in ("workflows", "workflow_steps", "workflow_events")
    }
    return counts | {"messages": len(messages(database))}


NOTHING = {"workflows": 0, "workflow_steps": 0, "workflow_events": 0, "messages": 0}
ONE_RUN = {"workflows": 1, "workflow_steps": 1, "workflow_events": 2, "messages": 1}
