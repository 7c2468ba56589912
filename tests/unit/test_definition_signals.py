"""What a step waits for, and which signals it takes."""

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum

import pytest

from pgbus import SignalMatcher, Workflow, signal_type, step
from pgbus.engine.definition.signal import Signal, expectation
from pgbus.engine.errors import DefinitionError, PayloadError


@dataclass
class Shipment:
    carrier: str


@dataclass
class Parcel:
    carrier: str


class FromEurope:
    def matches(self, signal):
        return signal.payload.get("region")


def signal(name="shipped", **payload):
    return Signal(
        signal_id=1,
        name=name,
        payload=payload,
        idempotency_key=None,
        actor="app",
        reason=None,
        received_at=datetime(2030, 1, 1, tzinfo=UTC),
    )


def waiting_for(*values):
    steps = {
        f"step_{place}": step(lambda _self: None, wait_for=value)
        for place, value in enumerate(values)
    }
    body = type(Workflow).__prepare__("Made", (Workflow,))
    for name, declaration in steps.items():
        body[name] = declaration
    return type(Workflow)("Made", (Workflow,), body)._definition


def test_a_name_takes_signals_of_that_name():
    named = expectation("shipped")
    assert (named.description, named.name) == ("shipped", "shipped")
    assert named.matches(signal()) is True
    assert named.matches(signal("paid")) is False


def test_a_name_is_plain_text_whatever_kind_of_str_it_is():
    class Names(str, Enum):  # noqa: UP042 # whose str() is not its value
        SHIPPED = "shipped"

    named = expectation(Names.SHIPPED)
    assert (type(named.name), named.name) == (str, "shipped")
    assert (type(named.description), named.description) == (str, "shipped")
    for matcher in (SignalMatcher(Names.SHIPPED), signal_type(Names.SHIPPED, Shipment)):
        assert type(expectation(matcher).name) is str


def test_a_matcher_asks_its_predicate_for_signals_of_its_name():
    asked = []
    european = expectation(
        SignalMatcher("shipped", lambda payload: asked.append(payload) or payload["region"])
    )
    assert (european.description, european.name) == ("shipped", "shipped")
    assert european.matches(signal(region="eu")) is True
    assert european.matches(signal(region="")) is False
    assert european.matches(signal("paid", region="eu")) is False
    assert asked == [{"region": "eu"}, {"region": ""}]
    assert european.matcher.matches(signal(region="eu")) is True


def test_what_a_predicate_raises_comes_out():
    with pytest.raises(KeyError):
        expectation(SignalMatcher("shipped", lambda payload: payload["region"])).matches(signal())


def test_any_object_with_matches_may_take_signals_of_any_name():
    custom = expectation(FromEurope())
    assert (custom.description, custom.name) == ("FromEurope", None)
    assert custom.matches(signal("paid", region="eu")) is True
    assert custom.matches(signal()) is False


def test_an_object_with_a_name_is_described_by_it_and_not_bound_to_it():
    class Named(FromEurope):
        name = "from Europe\0"

    custom = expectation(Named())
    assert (custom.description, custom.name) == ("from Europe\u2400", None)


def test_a_name_that_is_no_text_describes_nothing():
    class Numbered(FromEurope):
        name = 7

    assert expectation(Numbered()).description.endswith("Numbered")


def test_a_typed_signal_has_its_value_when_it_is_received():
    typed = expectation(signal_type("shipped", Shipment))
    assert (typed.description, typed.name) == ("shipped", "shipped")
    assert typed.matches(signal()) is True
    assert typed.matches(signal("paid", carrier="dhl")) is False
    received = typed.received(signal(carrier="dhl"))
    assert received.value == Shipment("dhl")
    assert received.payload == {"carrier": "dhl"}


def test_a_signal_without_a_type_is_received_as_it_is():
    sent = signal(carrier="dhl")
    assert sent.value is None
    assert expectation("shipped").received(sent) is sent


def test_a_payload_of_another_type_is_refused_with_its_path():
    shipped = signal_type("shipped", Shipment)
    assert shipped.value_of({"carrier": "dhl"}) == Shipment("dhl")
    for refused in (
        lambda: shipped.value_of({"carrier": 5}),
        lambda: expectation(shipped).received(signal(carrier=5)),
    ):
        with pytest.raises(PayloadError, match=r"^payload\.carrier: is 5, not str"):
            refused()


async def later(payload): ...


class Later:
    async def matches(self, signal): ...


class AsksTooMuch:
    def matches(self, signal, run): ...


class NoMethod:
    matches = True


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("", "'' is no signal's name; give a str of 1 to 255 characters"),
        ("x" * 256, "'x+ is no signal's name; give a str of 1 to 255 characters"),
        ("nul \0", r"'nul \\x00' cannot be a signal's name; leave out NUL and lone surrogates"),
        ("half \ud83d", r"'half \\ud83d' cannot be a signal's name"),
        (None, r"None is neither a signal's name nor an object with matches\(signal\)"),
        (b"shipped", "b'shipped' is neither"),
        (NoMethod(), "<.*NoMethod .*> is neither"),
        (FromEurope, "<class .*FromEurope'> is neither .* or an instance of a class of yours"),
        (SignalMatcher, "<class .*SignalMatcher'> is neither"),
        (Later(), "Later.matches is async and would never run"),
        (AsksTooMuch(), r"AsksTooMuch.matches\(signal, run\) is called with \(signal\)"),
    ],
)
def test_what_matches_nothing_cannot_be_waited_for(value, problem):
    with pytest.raises(DefinitionError, match=f"Made, step 'step_0': wait_for: {problem}"):
        waiting_for(value)


def test_a_name_has_at_most_255_characters():
    assert expectation("x" * 255).name == "x" * 255


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ((5,), r"SignalMatcher\(5\): 5 is no signal's name; give a str"),
        (("",), r"SignalMatcher\(''\): '' is no signal's name"),
        (("shipped", "eu"), r"SignalMatcher\('shipped'\): predicate: 'eu' cannot be called; give"),
        (("shipped", later), r"\('shipped'\): later is async and would never run"),
        (("shipped", lambda: True), r": .*<lambda>\(\) is called with \(payload\)"),
    ],
)
def test_a_matcher_that_could_match_nothing_is_refused_where_it_stands(arguments, problem):
    with pytest.raises(DefinitionError, match=problem):
        SignalMatcher(*arguments)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("", Shipment), "'' is no signal's name"),
        (("shipped", dict), "<class 'dict'> is neither a dataclass nor a pydantic model"),
    ],
)
def test_a_signal_type_that_cannot_work_is_refused_where_it_stands(arguments, problem):
    with pytest.raises(DefinitionError, match=rf"^signal_type\('.*', <class .*>\): {problem}"):
        signal_type(*arguments)


def test_a_class_knows_its_signal_types_by_name():
    shipped, paid = signal_type("shipped", Shipment), signal_type("paid", Parcel)
    made = waiting_for(shipped, "returned", "shipped", paid, signal_type("shipped", Shipment))
    assert made.signal_types == {"shipped": shipped, "paid": paid}
    assert waiting_for("shipped").signal_types == {}


def test_two_types_of_one_signal_in_one_class_are_refused():
    with pytest.raises(
        DefinitionError,
        match=r"Made, step 'step_1': wait_for: .*Parcel.* waits for .*Shipment.*; give the signal",
    ):
        waiting_for(signal_type("shipped", Shipment), signal_type("shipped", Parcel))
