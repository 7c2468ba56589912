import functools

import pytest

from pgbus import Workflow, cancel_if, removed_step, step
from pgbus.engine.errors import DefinitionError


class Guarded(Workflow):
    @cancel_if
    def gone(self):
        return "gone"

    @step
    def pay(self): ...


def answers(workflow_class):
    return [guard(workflow_class()) for guard in workflow_class._definition.cancel_guards]


def test_guards_are_asked_with_the_instance_and_stay_methods():
    assert answers(Guarded) == ["gone"]
    assert Guarded().gone() == "gone"


def test_a_bases_guards_come_first():
    class Sub(Guarded):
        @cancel_if
        def stopped(self):
            return "stopped"

        @cancel_if
        def aborted(self):
            return "aborted"

    assert answers(Sub) == ["gone", "stopped", "aborted"]
    assert answers(Guarded) == ["gone"]


@pytest.mark.parametrize("decorate", [cancel_if, lambda method: method])
def test_an_overridden_guard_is_asked_once_and_in_its_place(decorate):
    class Sub(Guarded):
        @cancel_if
        def stopped(self):
            return "stopped"

        @decorate
        def gone(self):
            return "still gone"

    assert answers(Sub) == ["still gone", "stopped"]


def test_a_guard_of_a_plain_mixin_counts():
    class Mixin:
        @cancel_if
        def closed(self):
            return "closed"

    class Sub(Mixin, Guarded): ...

    assert answers(Sub) == ["gone", "closed"]


async def later(self): ...


def nothing(): ...


def generates(self):
    yield self


@pytest.mark.parametrize(
    ("guard", "problem"),
    [
        (later, "later is async and would never run; write a plain def"),
        (nothing, r"nothing\(\) is called with \(self\)"),
        (generates, "generates is a generator and would never run"),
    ],
)
def test_a_guard_that_could_not_answer_is_refused(guard, problem):
    with pytest.raises(DefinitionError, match=f"Bad, cancel_if 'guard': {problem}"):

        class Bad(Workflow):
            locals()["guard"] = cancel_if(guard)


@pytest.mark.parametrize("thing", [5, functools.partial(print), property(print)])
def test_only_a_method_is_a_guard(thing):
    with pytest.raises(
        DefinitionError, match=r"cancel_if takes a method, not .*; write @cancel_if"
    ):
        cancel_if(thing)


def test_an_inherited_guard_may_not_be_overridden_by_a_value():
    with pytest.raises(DefinitionError, match=r"Sub, cancel_if 'gone': .* no method 'gone'"):

        class Sub(Guarded):
            gone = None


def test_a_guard_named_like_something_every_workflow_has_is_refused():
    with pytest.raises(DefinitionError, match="Bad declares 'cancel', which every Workflow has"):

        class Bad(Workflow):
            @cancel_if
            def cancel(self): ...


def test_two_guards_of_one_name_are_refused():
    with pytest.raises(DefinitionError, match="Bad declares 'gone' twice"):

        class Bad(Workflow):
            @cancel_if
            def gone(self): ...

            def gone(self): ...  # noqa: F811 # the mistake


def test_a_step_is_guarded_by_a_guard_a_skip_if_a_wait_or_its_grave():
    class Free(Workflow):
        @step
        def plain(self): ...

        @step(skip_if="plain")
        def skippable(self): ...

        @step(wait_for="paid")
        def waiting(self): ...

        gone = removed_step()

    free = Free._definition
    assert [free.guarded(one) for one in free.steps] == [False, True, True, True]
    assert Guarded._definition.guarded(Guarded._definition.step("pay"))
