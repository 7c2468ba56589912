"""What is said of a signal's name that no step waits for."""

import pytest

from pgbus import SignalMatcher, Workflow, step
from pgbus.engine.insights.signals import unexpected


class Sale(Workflow):
    @step(wait_for="payment_confirmed")
    def capture(self): ...

    @step(wait_for=SignalMatcher("shipped"))
    def ship(self): ...

    @step
    def tell(self): ...


class AnyName:
    def matches(self, _signal):
        return True


class Open(Sale):
    @step(wait_for=AnyName())
    def listen(self): ...


class Deaf(Workflow):
    @step
    def work(self): ...


@pytest.mark.parametrize("name", ["payment_confirmed", "shipped"])
def test_a_name_that_a_step_waits_for_is_expected(name):
    assert unexpected(Sale._definition, name) is None


def test_every_name_is_expected_where_a_matcher_has_none():
    assert unexpected(Open._definition, "whatever") is None


@pytest.mark.parametrize(
    ("name", "mend"),
    [
        ("payment_confirmd", "did you mean 'payment_confirmed'?"),
        ("lost", "there are 'payment_confirmed', 'shipped'"),
    ],
)
def test_a_name_that_no_step_waits_for_is_told_with_those_there_are(name, mend):
    told = unexpected(Sale._definition, name)
    assert told == f"no step of {__name__}.Sale waits for {name!r}; {mend}"


def test_a_class_that_waits_for_nothing_expects_none():
    told = unexpected(Deaf._definition, "paid")
    assert told == f"no step of {__name__}.Deaf waits for 'paid'; none waits for a signal"
