"""The host's sessions in a step: one per phase, committed or rolled back, always closed."""

import threading
import uuid
from datetime import timedelta

import pytest
import sqlalchemy
from sqlalchemy import ForeignKey
from sqlalchemy.orm import Mapped, Session, mapped_column, scoped_session, sessionmaker
from support.driving import Driver
from support.hosts import HostModel, Purchase, make_purchases
from support.scripts import Transactional, script

from pgbus import Pgbus, Workflow, cancel_if, on_exception, register_subject, step
from pgbus.engine.errors import InvalidSetting, SubjectGone, UnknownSubject

told = []
helpers = {}


class Voucher(HostModel):
    __tablename__ = "vouchers"
    code: Mapped[str] = mapped_column(primary_key=True)


class Shipment(HostModel):
    __tablename__ = "shipments"
    id: Mapped[uuid.UUID] = mapped_column(primary_key=True)


class PurchaseLine(HostModel):
    __tablename__ = "purchase_lines"
    purchase_id: Mapped[int] = mapped_column(ForeignKey("purchases.id"), primary_key=True)
    article: Mapped[str] = mapped_column(primary_key=True)


class Dinghy:
    def __init__(self, name):
        self.name = name


for cls in (Voucher, Shipment, PurchaseLine):
    register_subject(cls)
register_subject(
    Dinghy,
    id_of=lambda boat: boat.name,
    load=lambda name, session: told.append(session) or (None if name == "sunk" else Dinghy(name)),
)


class Tell(Workflow):
    @step
    def tell(self):
        told.append((self.subject, self.arguments))


class TwicePerPhase(Workflow[Purchase]):
    @cancel_if
    def look(self):
        told.append(("guard", self.session, self.subject))
        return False

    @step
    def act(self):
        told.append(("body", self.session, self.subject))
        assert self.subject is self.session.get(Purchase, 1)
        raise ConnectionError

    @on_exception(ConnectionError)
    def handle(self, error):
        told.append(("policy", self.session, self.subject))
        return self.skip()


class Ending(Workflow[Purchase]):
    """Writes, and ends as its argument says."""

    @step
    def act(self):
        self.require_subject().state = "written"
        match self.arguments["how"]:
            case "return":
                return
            case "raise":
                raise LookupError
            case "reattempt":
                self.reattempt(wait=timedelta(hours=1))
            case verb:
                getattr(self, verb)()


class WritingGuard(Workflow[Purchase]):
    @cancel_if
    def write(self):
        self.require_subject().state = "written"
        self.session.flush()
        return False

    @step
    def act(self): ...


class WritingPolicy(Workflow[Purchase]):
    @step
    def act(self):
        raise LookupError

    @on_exception(LookupError)
    def handle(self, error):
        self.require_subject().state = "written"
        self.session.flush()
        return self.cancel()


class PastTheSession(Workflow):
    """Uses the host's own scoped_session and never asks for `self.session`."""

    @step
    def act(self):
        helpers["write"]()
        if self.arguments["fail"]:
            raise LookupError


class NeedsSubject(Workflow[Purchase]):
    @step
    def act(self):
        self.require_subject()


class NeedsSession(Workflow):
    @step
    def act(self):
        self.session.connection()


@pytest.fixture(autouse=True)
def clean():
    told.clear()
    helpers.clear()


@pytest.fixture(params=["sessionmaker", "scoped_session"])
def factory(request, database):
    """The host's session factory; at the end none of its connections is in use."""
    make_purchases(database, 2)
    made = sessionmaker(database.engine)
    if request.param == "scoped_session":
        made = scoped_session(made)
    yield made
    assert database.engine.pool.checkedout() == 0
    if request.param == "scoped_session":
        assert not made.registry.has()


@pytest.fixture
def bus(database, factory):
    bus = Pgbus(database_url=database.url, session_factory=factory)
    yield bus
    bus.close()


def end_of_request(factory):
    """What a host does to the scoped session that a handle's `subject` was loaded through."""
    if isinstance(factory, scoped_session):
        factory.remove()


def state(database):
    return database.value("SELECT state FROM purchases WHERE id = 1")


@pytest.mark.parametrize(
    ("model", "key", "stored"),
    [
        (Purchase, {"id": 77}, "77"),
        (Voucher, {"code": "a, \"b\" 'c' ü"}, "a, \"b\" 'c' ü"),
        (Shipment, {"id": uuid.UUID(int=7)}, "00000000-0000-0000-0000-000000000007"),
        (PurchaseLine, {"purchase_id": 1, "article": 'x"y'}, '["1", "x\\"y"]'),
    ],
)
def test_a_record_comes_back_by_its_key(bus, driver, database, factory, model, key, stored):
    record = model(**key)
    with Session(database.engine) as session:
        session.add(record)
        session.commit()
        run = Tell.start(record, also=[record])
    driver.drain()
    [(subject, arguments)] = told
    for found in (subject, arguments["also"][0], run.subject):
        assert isinstance(found, model)
        assert sqlalchemy.inspect(found).identity == tuple(key.values())
    assert database.rows("SELECT subject_type, subject_id FROM pgbus.workflows") == [
        (model.__name__, stored)
    ]
    end_of_request(factory)


def test_a_record_that_is_gone_is_none(bus, driver, database, factory):
    run = Tell.start(Purchase(id=1), also=Purchase(id=2))
    database.rows("DELETE FROM purchases")
    driver.drain()
    assert told == [(None, {"also": None})]
    assert run.subject is None
    end_of_request(factory)


def test_require_subject_says_that_the_record_is_gone(bus, driver, database):
    run = NeedsSubject.start(Purchase(id=1))
    database.rows("DELETE FROM purchases")
    driver.drain()
    assert run.steps[0].error_class.endswith(SubjectGone.__name__)


def test_each_phase_has_a_session_of_its_own(bus, driver, database):
    TwicePerPhase.start(Purchase(id=1))
    driver.drain()
    assert [phase for phase, _, _ in told] == ["guard", "body", "policy"]
    subjects = [subject for _, _, subject in told]
    assert len(set(map(id, subjects))) == 3
    assert all(sqlalchemy.inspect(subject).detached for subject in subjects)


@pytest.mark.parametrize(
    ("how", "kept"),
    [
        ("return", True), ("pause", True), ("finish", True),
        ("skip", False), ("cancel", False), ("reattempt", False), ("raise", False),
    ],
)  # fmt: skip
def test_a_body_commits_exactly_when_its_attempt_completes(bus, driver, database, how, kept):
    run = Ending.start(Purchase(id=1), how=how)
    driver.drain()
    assert (run.steps[0].status == "completed") is kept
    assert state(database) == ("written" if kept else "new")


@pytest.mark.parametrize("workflow", [WritingGuard, WritingPolicy])
def test_what_a_guard_or_a_policy_writes_is_rolled_back(bus, driver, database, workflow):
    run = workflow.start(Purchase(id=1))
    driver.drain()
    assert run.reload().ended_at is not None
    assert state(database) == "new"


@pytest.mark.parametrize("factory", ["scoped_session"], indirect=True)
@pytest.mark.parametrize("fail", [False, True])
def test_a_scoped_session_used_by_a_helper_ends_with_the_phase(
    bus, driver, database, factory, fail
):
    def write():
        factory.get(Purchase, 1).state = "written"
        factory.flush()

    helpers["write"] = write
    PastTheSession.start(fail=fail)
    driver.drain()
    assert state(database) == ("new" if fail else "written")


def test_a_scope_that_cannot_be_asked_holds_no_session(database):
    def outside():
        raise RuntimeError("no application context")

    bus = Pgbus(
        database_url=database.url,
        session_factory=scoped_session(sessionmaker(database.engine), scopefunc=outside),
    )
    helpers["write"] = lambda: None
    run = bus.start(PastTheSession, fail=False)
    Driver(bus).drain()
    status = run.reload().status
    bus.close()
    assert status == "finished"


def test_the_host_sees_a_scoped_session_untouched_in_another_thread(database):
    make_purchases(database, 1)
    factory = scoped_session(sessionmaker(database.engine))
    bus = Pgbus(database_url=database.url, session_factory=factory)
    mine = factory.get(Purchase, 1)
    Ending.start(mine, how="return")
    factory.commit()
    worker = threading.Thread(target=Driver(bus).drain)
    worker.start()
    worker.join(20)
    assert mine in factory
    factory.remove()
    bus.close()
    assert state(database) == "written"


def test_a_transactional_step_is_told_of_a_factory_that_makes_no_session(database):
    bus = Pgbus(database_url=database.url, session_factory=database.engine.connect)
    script()
    run = Transactional.start()
    Driver(bus).drain()
    [attempt] = run.steps
    bus.close()
    assert attempt.error_class.endswith(InvalidSetting.__name__)
    assert "Setting session_factory: gave a Connection;" in attempt.error_message


def test_without_a_session_factory_a_step_is_told_to_give_one(database):
    bus = Pgbus(database_url=database.url)
    run = NeedsSession.start()
    Driver(bus).drain()
    [attempt] = run.steps
    bus.close()
    assert attempt.error_class.endswith(InvalidSetting.__name__)
    assert "Pgbus(session_factory=...)" in attempt.error_message


def test_without_a_session_factory_a_mapped_subject_names_the_setting(database):
    bus = Pgbus(database_url=database.url)
    run = Tell.start(Purchase(id=1))
    Driver(bus).drain()
    [attempt] = run.steps
    bus.close()
    assert "session_factory" in attempt.error_message


def test_an_adapter_loads_without_a_session_factory(database):
    bus = Pgbus(database_url=database.url)
    run = Tell.start(Dinghy("Argo"), fleet=[Dinghy("sunk"), Dinghy("Pequod")])
    Driver(bus).drain()
    bus.close()
    told[:] = [one for one in told if one is not None]
    [(subject, arguments)] = told
    assert subject.name == "Argo"
    assert arguments["fleet"][0] is None
    assert arguments["fleet"][1].name == "Pequod"
    assert run.subject.name == "Argo"


def test_an_adapter_is_given_the_session_of_the_phase(bus, driver, factory):
    Tell.start(Dinghy("Argo"))
    driver.drain()
    session, _ = told
    assert (
        session is factory if isinstance(factory, scoped_session) else isinstance(session, Session)
    )


def test_a_subject_of_an_unknown_type_pauses_its_run_and_says_so(bus, driver, database):
    run = Tell.start(Dinghy("Argo"))
    database.rows("UPDATE pgbus.workflows SET subject_type = 'Balloon'")
    driver.drain()
    assert run.reload().status == "paused"
    assert run.steps[0].error_class.endswith(UnknownSubject.__name__)
    assert "'Balloon'" in run.steps[0].error_message


def test_a_handles_subject_is_detached_from_the_session_that_loaded_it(database):
    make_purchases(database, 1)
    bus = Pgbus(database_url=database.url, session_factory=sessionmaker(database.engine))
    subject = Tell.start(Purchase(id=1)).subject
    bus.close()
    assert sqlalchemy.inspect(subject).detached
    assert subject.state == "new"
    assert database.engine.pool.checkedout() == 0
