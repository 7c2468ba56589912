import pytest

from pgbus import Workflow, removed_step, step
from pgbus.engine.errors import DefinitionError


class Base(Workflow):
    @step
    def reserve(self):
        return "base"

    @step
    def capture(self): ...


def names(workflow_class):
    return [one.name for one in workflow_class._definition.steps]


def test_a_subclass_appends_its_steps():
    class Sub(Base):
        @step
        def ship(self): ...

    assert names(Sub) == ["reserve", "capture", "ship"]
    assert names(Base) == ["reserve", "capture"]


def test_a_step_is_placed_directly_before_or_after_another():
    class Sub(Base):
        @step(before_step="reserve")
        def check(self): ...

        @step(after_step="reserve")
        def hold(self): ...

        @step(before_step="hold")
        def count(self): ...

        @step
        def ship(self): ...

    assert names(Sub) == ["check", "reserve", "count", "hold", "capture", "ship"]


def test_a_step_is_placed_in_its_own_class_too():
    class Own(Workflow):
        @step
        def second(self): ...

        @step(before_step="second")
        def first(self): ...

    assert names(Own) == ["first", "second"]


def test_a_place_is_one_side_of_another_step():
    with pytest.raises(
        DefinitionError, match="Sub, step 'ship': before_step and after_step are both given"
    ):

        class Sub(Base):
            @step(before_step="reserve", after_step="capture")
            def ship(self): ...


@pytest.mark.parametrize("target", ["missing", "ship", "later"])
def test_a_place_names_another_step_that_is_there_already(target):
    with pytest.raises(
        DefinitionError,
        match=f"step 'ship': after_step: '{target}' is no other .*; there are reserve, capture",
    ):

        class Sub(Base):
            @step(after_step=target)
            def ship(self): ...

            @step
            def later(self): ...


def test_a_step_declared_again_replaces_its_bases_in_place():
    class Sub(Base):
        @step(wait=7)
        def reserve(self):
            return "sub"

    assert names(Sub) == ["reserve", "capture"]
    replaced = Sub._definition.step("reserve")
    assert replaced.wait.total_seconds() == 7
    assert replaced.body(Sub()) == "sub"
    assert Base._definition.step("reserve").wait.total_seconds() == 0


def test_a_step_declared_again_moves_when_it_is_placed():
    class Sub(Base):
        @step(after_step="capture")
        def reserve(self): ...

    assert names(Sub) == ["capture", "reserve"]


def test_a_plain_method_overrides_the_body_of_its_bases_step():
    class Sub(Base):
        def reserve(self):
            return "sub"

    assert Sub._definition.step("reserve").body(Sub()) == "sub"


@pytest.mark.parametrize("override", [None, 5, lambda: None])
def test_an_override_that_cannot_be_a_body_is_refused(override):
    with pytest.raises(DefinitionError, match="Sub, step 'reserve'"):

        class Sub(Base):
            reserve = override


def test_a_subclass_retires_a_step_in_place():
    class Sub(Base):
        reserve = removed_step()
        audit = removed_step(before_step="capture")

    assert names(Sub) == ["reserve", "audit", "capture"]
    assert Sub._definition.removed == ("reserve", "audit")


def test_two_bases_follow_the_method_resolution_order():
    class Left(Base):
        @step
        def left(self): ...

    class Right(Base):
        @step(before_step="reserve")
        def right(self): ...

    class Both(Left, Right): ...

    assert names(Both) == ["right", "reserve", "capture", "left"]


def test_a_step_in_a_class_that_is_no_workflow_is_refused():
    class Mixin:
        @step
        def audit(self): ...

    with pytest.raises(DefinitionError, match="Mixin declares the step 'audit' and is no Workflow"):

        class Sub(Mixin, Base): ...


def test_super_works_in_a_body():
    class Sub(Base):
        @step
        def reserve(self):
            return super().reserve() + "+"

    assert Sub().reserve() == "base+"
