import pytest
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from pgbus import Workflow, register_subject, step
from pgbus.engine import active
from pgbus.engine.active import activated, add_bus, current_bus, remove_bus, running_on
from pgbus.engine.definition.signal import Sending
from pgbus.engine.errors import AmbiguousBus, DefinitionError, NoBus
from pgbus.engine.subjects import is_registered


class RecordingBus:
    """Writes down what it is asked, as (method, arguments)."""

    def __init__(self, name="bus"):
        self.name = name
        self.calls = []

    def __repr__(self):
        return f"<{self.name}>"

    def __getattr__(self, method):
        def record(*arguments, **keywords):
            self.calls.append((method, *arguments, *([keywords] if keywords else [])))
            return f"{method} answered"

        return record


class OrderWorkflow(Workflow):
    @step
    def pay(self): ...


@pytest.fixture(autouse=True)
def no_other_bus(monkeypatch):
    monkeypatch.setattr(active, "_buses", [])


@pytest.fixture
def bus():
    recording = RecordingBus()
    add_bus(recording)
    return recording


def test_a_start_is_handed_to_the_bus_with_its_options(bus):
    assert OrderWorkflow.start("order", plan="pro") == "start_run answered"
    [(method, options, subject, arguments)] = bus.calls
    assert (method, subject, arguments) == ("start_run", "order", {"plan": "pro"})
    assert options == OrderWorkflow.options()
    assert (options.workflow_class, options.session) == (OrderWorkflow, None)
    assert (options.idempotency_key, options.actor, options.reason) == (None, "app", None)


def test_no_name_of_an_argument_is_reserved(bus):
    arguments = {"subject": 1, "session": 2, "self": 3, "cls": 4, "actor": 5}
    OrderWorkflow.start(**arguments)
    OrderWorkflow.options().start("order", **arguments)
    assert [call[2:] for call in bus.calls] == [(None, arguments), ("order", arguments)]


def test_options_go_before_the_start(bus):
    OrderWorkflow.options(
        session="session", idempotency_key="checkout-7", actor="alice", reason="asked"
    ).start("order")
    [(_, options, _, _)] = bus.calls
    assert (options.session, options.idempotency_key) == ("session", "checkout-7")
    assert (options.actor, options.reason) == ("alice", "asked")


@pytest.mark.parametrize("blank", [None, "", "   ", " " * 256])
def test_a_blank_idempotency_key_is_none(blank):
    assert OrderWorkflow.options(idempotency_key=blank).idempotency_key is None


def test_an_idempotency_key_has_at_most_255_characters():
    key = "k" * 255
    assert OrderWorkflow.options(idempotency_key=key).idempotency_key == key
    with pytest.raises(ValueError, match="idempotency_key has 256 characters, at most 255 fit"):
        OrderWorkflow.options(idempotency_key=key + "k")


@pytest.mark.parametrize("key", ["nul \0", "half \ud83d", 7, 0, b"k"])
def test_an_idempotency_key_is_text_that_can_be_stored(key):
    with pytest.raises(ValueError, match=r"idempotency_key is .*; give a str without NUL"):
        OrderWorkflow.options(idempotency_key=key)


def test_many_starts_are_one_call(bus):
    items = [("order", {"plan": "pro"}), (None, {})]
    assert OrderWorkflow.start_many(items) == "start_runs answered"
    assert bus.calls == [("start_runs", OrderWorkflow.options(), items)]


def test_one_key_does_not_stand_for_many_runs(bus):
    with pytest.raises(ValueError, match="one idempotency_key cannot stand for many runs"):
        OrderWorkflow.options(idempotency_key="k").start_many([])
    assert bus.calls == []


def test_a_class_without_steps_cannot_be_started(bus):
    class Abstract(Workflow): ...

    for start in (Abstract.start, lambda: Abstract.start_many([]), Workflow.start):
        with pytest.raises(DefinitionError, match="declares no step; start a subclass that does"):
            start()
    assert bus.calls == []


def test_a_run_is_found_for_the_class_that_asks(bus):
    assert OrderWorkflow.find("w-1") == "find_run answered"
    Workflow.find("w-2")
    assert bus.calls == [("find_run", OrderWorkflow, "w-1"), ("find_run", Workflow, "w-2")]


def test_a_signal_by_subject_is_handed_to_the_bus_for_this_class(bus):
    assert OrderWorkflow.signal("order", "shipped") == "signal_subject answered"
    told = {
        "payload": {"carrier": "dhl"},
        "idempotency_key": "event-7",
        "actor": "webhook",
        "reason": "carrier callback",
        "session": "session",
    }
    OrderWorkflow.signal("order", "shipped", missing="ignore", **told)
    plain, full = Sending("shipped"), Sending("shipped", **told)
    assert bus.calls == [
        ("signal_subject", OrderWorkflow, "order", plain, {"missing": "raise"}),
        ("signal_subject", OrderWorkflow, "order", full, {"missing": "ignore"}),
    ]


@pytest.mark.parametrize(
    ("subject", "missing", "problem"),
    [
        (
            None,
            "ignore",
            r"signal\(None, ...\) is about nothing; give the record, or use Run.signal",
        ),
        ("order", "retry", "missing='retry' is unknown; choose 'raise' or 'ignore'"),
        ("order", None, "missing=None is unknown"),
        ("order", ["raise"], r"missing=\['raise'\] is unknown"),
    ],
)
def test_a_signal_about_nothing_or_of_unknown_manners_is_refused(bus, subject, missing, problem):
    with pytest.raises(ValueError, match=problem):
        OrderWorkflow.signal(subject, "shipped", missing=missing)
    assert bus.calls == []


def test_removed_steps_in_flight_are_asked_for_the_definition(bus):
    assert OrderWorkflow.removed_steps_in_flight() == "removed_steps_in_flight answered"
    assert bus.calls == [("removed_steps_in_flight", OrderWorkflow._definition)]


def test_without_a_bus_a_call_says_how_to_make_one():
    with pytest.raises(NoBus, match="has no bus; create one"):
        current_bus()


def test_the_only_bus_is_the_current_one(bus):
    assert current_bus() is bus


def test_of_several_buses_none_is_guessed(bus):
    add_bus(RecordingBus("other"))
    with pytest.raises(AmbiguousBus, match=r"2 open buses \(<bus>, <other>\).*bus.active\(\)"):
        current_bus()


def test_a_forgotten_bus_does_not_count(bus):
    other = RecordingBus("other")
    add_bus(other)
    remove_bus(bus)
    remove_bus(bus)
    assert current_bus() is other


def test_the_innermost_active_bus_goes_before_the_only_one(bus):
    outer, inner = RecordingBus("outer"), RecordingBus("inner")
    with activated(outer):
        with activated(inner):
            assert current_bus() is inner
        assert current_bus() is outer
    assert current_bus() is bus


def test_the_bus_whose_attempt_runs_here_goes_before_any_active_one(bus):
    running, active_one = RecordingBus("running"), RecordingBus("active")
    with running_on(running):
        with activated(active_one):
            assert current_bus() is running
        assert current_bus() is running
    assert current_bus() is bus


def test_an_error_inside_leaves_no_bus_active(bus):
    for mark in (activated, running_on):
        with pytest.raises(KeyError), mark(RecordingBus("other")):
            raise KeyError
        assert current_bus() is bus


class Base(DeclarativeBase): ...


class Mapped1(Base):
    __tablename__ = "mapped1"
    id: Mapped[int] = mapped_column(primary_key=True)


class Mapped2(Base):
    __tablename__ = "mapped2"
    id: Mapped[int] = mapped_column(primary_key=True)


class Plain: ...


def test_the_mapped_class_of_a_typed_workflow_is_a_registered_subject():
    class Typed(Workflow[Mapped1]): ...

    assert is_registered(Mapped1(id=1))


def test_the_subject_of_a_typed_workflow_base_is_registered_with_its_subclass():
    class Generic(Workflow[Mapped1]): ...

    class Sub(Generic): ...

    assert not is_registered(Mapped2(id=1))

    class Other(Workflow[Mapped2]): ...

    assert is_registered(Mapped2(id=1))


def test_any_other_subject_class_is_registered_by_hand():
    class Typed(Workflow[Plain]): ...

    assert not is_registered(Plain())
    register_subject(Plain, id_of=lambda _plain: "1", load=lambda _id, _session: Plain())
    assert is_registered(Plain())
