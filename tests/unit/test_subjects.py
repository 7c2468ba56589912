from datetime import UTC, date, datetime
from decimal import Decimal
from uuid import UUID

import pytest
from sqlalchemy import LargeBinary, create_engine, event, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from pgbus.engine import subjects
from pgbus.engine.errors import DefinitionError, InvalidSetting, UnknownSubject
from pgbus.engine.subjects import (
    SubjectReference,
    is_registered,
    load_subject,
    reference_of,
    register_subject,
)


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[str] = mapped_column(default="order")
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "order"}  # noqa: RUF012


class RushOrder(Order):
    __mapper_args__ = {"polymorphic_identity": "rush"}  # noqa: RUF012


class Price(Base):
    __tablename__ = "prices"
    region: Mapped[str] = mapped_column(primary_key=True)
    valid_from: Mapped[date] = mapped_column(primary_key=True)


class Thumbprint(Base):
    __tablename__ = "thumbprints"
    digest: Mapped[bytes] = mapped_column(LargeBinary, primary_key=True)


class Text(Base):
    __tablename__ = "texts"
    key: Mapped[str] = mapped_column(primary_key=True)


class Token(Base):
    __tablename__ = "tokens"
    key: Mapped[UUID] = mapped_column(primary_key=True)


class Amount(Base):
    __tablename__ = "amounts"
    key: Mapped[Decimal] = mapped_column(primary_key=True)


class Tick(Base):
    __tablename__ = "ticks"
    key: Mapped[datetime] = mapped_column(primary_key=True)


class Ship:
    def __init__(self, name):
        self.name = name


@pytest.fixture(autouse=True)
def _empty_registry(monkeypatch):
    monkeypatch.setattr(subjects, "_by_name", {})
    monkeypatch.setattr(subjects, "_by_class", {})


@pytest.fixture
def session():
    engine = create_engine("sqlite://")
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        yield session
    engine.dispose()


def saved(session, record):
    session.add(record)
    session.flush()
    return record


@pytest.mark.parametrize(
    ("record", "identifier"),
    [
        (Order(id=1042), "1042"),
        (Text(key="a b"), "a b"),
        (
            Token(key=UUID("11111111-2222-3333-4444-555555555555")),
            "11111111-2222-3333-4444-555555555555",
        ),
        (Tick(key=datetime(2026, 1, 2, 3, 4, 5, 6)), "2026-01-02T03:04:05.000006"),  # noqa: DTZ001 # SQLite's have no zone
        (Price(region="eu", valid_from=date(2026, 1, 2)), '["eu", "2026-01-02"]'),
    ],
)
def test_a_mapped_record_is_its_key_as_text_and_back(session, record, identifier):
    register_subject(type(record))
    saved(session, record)
    reference = reference_of(record)
    assert reference == SubjectReference(type(record).__name__, identifier)
    session.expunge_all()
    found = load_subject(reference, session)
    assert type(found) is type(record)
    assert found is session.scalars(select(type(record))).one()


def test_a_decimal_key_keeps_its_digits():
    register_subject(Amount)
    assert reference_of(Amount(key=Decimal("1.10"))).id == "1.10"


def test_a_record_that_is_gone_is_none(session):
    register_subject(Order)
    assert load_subject(SubjectReference("Order", "7"), session) is None


def test_a_record_without_a_key_is_told_to_be_flushed():
    register_subject(Order)
    with pytest.raises(UnknownSubject, match=r"Order has no primary key yet.*flush\(\) first"):
        reference_of(Order())


def test_half_a_composite_key_is_no_key():
    register_subject(Price)
    with pytest.raises(UnknownSubject, match="no primary key yet"):
        reference_of(Price(region="eu"))


def test_an_expired_record_is_referred_to_without_a_query(session):
    register_subject(Order)
    order = saved(session, Order(id=5))
    session.commit()
    statements = []
    event.listen(session.get_bind(), "before_cursor_execute", lambda *call: statements.append(call))
    assert reference_of(order).id == "5"
    assert statements == []


def test_an_instance_of_a_subclass_is_its_registered_base(session):
    register_subject(Order)
    rush = saved(session, RushOrder(id=6))
    assert is_registered(rush)
    assert reference_of(rush) == SubjectReference("Order", "6")
    session.expunge_all()
    assert isinstance(load_subject(SubjectReference("Order", "6"), session), RushOrder)


def test_a_subclass_registered_itself_is_its_own_type():
    register_subject(Order)
    register_subject(RushOrder)
    assert reference_of(RushOrder(id=6)).type == "RushOrder"


def test_a_key_of_another_type_than_the_column_declares_is_refused():
    register_subject(Order)
    with pytest.raises(UnknownSubject, match="'7' is not the int"):
        reference_of(Order(id="7"))


@pytest.mark.parametrize(
    ("cls", "identifier"),
    [(Order, "seven"), (Token, "7"), (Price, "eu"), (Price, '["eu"]'), (Amount, "x"), (Price, "7")],
)
def test_text_that_is_no_key_of_the_class_is_refused(session, cls, identifier):
    register_subject(cls)
    with pytest.raises(UnknownSubject, match=f"no primary key of {cls.__name__}"):
        load_subject(SubjectReference(cls.__name__, identifier), session)


def test_a_mapped_record_needs_a_session_to_be_loaded():
    register_subject(Order)
    with pytest.raises(InvalidSetting, match="session_factory: is needed to load Order"):
        load_subject(SubjectReference("Order", "7"), None)


def test_a_key_that_has_no_text_form_asks_for_an_adapter():
    with pytest.raises(DefinitionError, match=r"Thumbprint\.digest.*both id_of= and load="):
        register_subject(Thumbprint)


def test_another_class_needs_both_halves_of_an_adapter():
    for halves in ({}, {"id_of": str}, {"load": Ship}):
        with pytest.raises(DefinitionError, match=r"Ship is no SQLAlchemy mapped class.*both"):
            register_subject(Ship, **halves)
    assert not is_registered(Ship("Argo"))


def test_an_adapter_refers_and_loads():
    fleet = {"Argo": Ship("Argo")}
    register_subject(
        Ship,
        type_name="vessel",
        id_of=lambda ship: ship.name,
        load=lambda name, session: (fleet.get(name), session),
    )
    assert reference_of(fleet["Argo"]) == SubjectReference("vessel", "Argo")
    assert load_subject(SubjectReference("vessel", "Argo"), "s") == (fleet["Argo"], "s")


def test_a_mapped_class_may_bring_half_an_adapter(session):
    register_subject(Order, load=lambda name, _session: name)
    assert reference_of(Order(id=7)).id == "7"
    assert load_subject(SubjectReference("Order", "7"), session) == "7"


def test_an_adapter_whose_id_is_no_text_is_told_so():
    register_subject(Ship, id_of=lambda _ship: 5, load=lambda *_: None)
    with pytest.raises(UnknownSubject, match="id_of of Ship returned 5"):
        reference_of(Ship("Argo"))


def test_an_unregistered_object_is_refused_with_the_mend():
    assert not is_registered(Ship("Argo"))
    with pytest.raises(UnknownSubject, match=r"call register_subject\(Ship\)"):
        reference_of(Ship("Argo"))


def test_an_unknown_type_is_refused_with_the_mend():
    with pytest.raises(UnknownSubject, match="'Ship' is not registered in this process"):
        load_subject(SubjectReference("Ship", "Argo"), None)


def test_registering_again_without_options_keeps_the_adapter():
    register_subject(Order, type_name="purchase")
    register_subject(Order)
    assert reference_of(Order(id=7)).type == "purchase"


def test_a_class_under_a_new_name_is_still_loaded_by_its_earlier_one(session):
    register_subject(Order)
    register_subject(Order, type_name="purchase")
    order = saved(session, Order(id=7))
    assert reference_of(order).type == "purchase"
    assert load_subject(SubjectReference("Order", "7"), session) is order


def test_two_classes_cannot_share_a_type_name():
    register_subject(Order)
    with pytest.raises(DefinitionError, match=r"'Order' is already .*\.Order; give .*\.Price"):
        register_subject(Price, type_name="Order")
    assert not is_registered(Price())


def test_a_class_made_anew_replaces_its_earlier_self():
    first, second = (type("Ship", (), {"__module__": "fleet"}) for _ in range(2))
    for cls in (first, second):
        register_subject(cls, id_of=lambda _ship: "x", load=lambda *_, cls=cls: cls)
    assert load_subject(SubjectReference("Ship", "x"), None) is second
    assert is_registered(second())
    assert not is_registered(first())


def test_an_aware_datetime_key_keeps_its_offset():
    register_subject(Tick)
    moment = datetime(2026, 1, 2, tzinfo=UTC)
    assert reference_of(Tick(key=moment)).id == "2026-01-02T00:00:00+00:00"
