import functools

import pytest

from pgbus import Workflow, on_exception, removed_step, step
from pgbus.engine.definition import registry
from pgbus.engine.errors import DefinitionError, StepNotDefined


def names(workflow_class):
    return [one.name for one in workflow_class._definition.steps]


def run(workflow_class, name):
    return workflow_class._definition.step(name).body(workflow_class())


def test_steps_stand_in_the_order_of_their_declaration():
    class Ordered(Workflow):
        @step
        def second_by_name(self): ...

        @step(wait=1)
        def a_first_by_name(self): ...

    assert names(Ordered) == ["second_by_name", "a_first_by_name"]


def test_a_decorated_method_stays_a_method():
    class Plain(Workflow):
        @step
        def reserve(self):
            """Reserve."""
            return {"held": True}

    assert Plain().reserve() == {"held": True}
    assert Plain.reserve.__doc__ == "Reserve."
    assert run(Plain, "reserve") == {"held": True}


def test_a_function_defined_elsewhere_gets_the_instance():
    def send_receipt(workflow):
        return {"from": type(workflow).__name__}

    class Mails(Workflow):
        receipt = step(send_receipt)

    assert run(Mails, "receipt") == {"from": "Mails"}


@pytest.mark.parametrize(
    "function",
    [
        functools.partial(lambda flag, workflow: (flag, type(workflow).__name__), "x"),
        staticmethod(lambda workflow: ("x", type(workflow).__name__)),
    ],
)
def test_a_callable_that_is_no_function_gets_the_instance_too(function):
    class Called(Workflow):
        receipt = step(function)

    assert run(Called, "receipt") == ("x", "Called")
    assert Called().receipt() == ("x", "Called")


def test_a_method_given_by_name_runs_under_the_steps_name():
    class Named(Workflow):
        receipt = step("send")

        def send(self):
            return "sent"

    assert names(Named) == ["receipt"]
    assert run(Named, "receipt") == "sent"


def test_a_method_given_by_an_unknown_name_is_refused():
    with pytest.raises(
        DefinitionError, match=r"Unknown, step 'receipt': .* no method 'send'; define it"
    ):

        class Unknown(Workflow):
            receipt = step("send")


def test_anonymous_steps_are_counted_among_themselves():
    class Anonymous(Workflow):
        @step
        def _(self):
            return 1

        @step
        def named(self): ...

        @step(wait=3)
        def _(self):
            return 2

    assert names(Anonymous) == ["step_1", "named", "step_2"]
    assert [run(Anonymous, name) for name in ("step_1", "step_2")] == [1, 2]


def test_a_subclass_goes_on_counting_anonymous_steps():
    class Base(Workflow):
        @step
        def _(self): ...

    class Further(Base):
        @step
        def _(self): ...

    class Furthest(Further):
        @step(before_step="step_1")
        def _(self): ...

    assert names(Furthest) == ["step_3", "step_1", "step_2"]


def test_an_anonymous_step_never_takes_the_name_of_another():
    with pytest.raises(DefinitionError, match="declares 'step_1' twice"):

        class Same(Workflow):
            @step
            def step_1(self): ...

            @step
            def _(self): ...

    class Base(Workflow):
        @step
        def step_1(self): ...

    with pytest.raises(DefinitionError, match=r"Inherited, step 'step_1': .*anonymous.*name it"):

        class Inherited(Base):
            @step
            def _(self): ...


def test_the_same_step_twice_in_one_class_is_refused():
    with pytest.raises(DefinitionError, match="Twice declares 'pay' twice; give one of them"):

        class Twice(Workflow):
            @step
            def pay(self): ...

            @step
            def pay(self): ...  # noqa: F811 # the mistake


@pytest.mark.parametrize("second", [lambda self: None, 5])
def test_nothing_else_may_take_a_steps_name_in_its_class(second):
    declaration = step(lambda _self: None)
    for first, last in ((declaration, second), (second, declaration)):
        body = body_of(pay=first)
        with pytest.raises(DefinitionError, match="Bad declares 'pay' twice"):
            body["pay"] = last


def test_a_plain_name_may_be_assigned_twice():
    class Plain(Workflow):
        count = 1
        count = count + 1

    assert Plain.count == 2


@pytest.mark.parametrize(
    "name",
    [
        "start",
        "signal",
        "output",
        "finish",
        "subject",
        "received_signal",
        "timed_out",
        "policies",
        "_scope",
        "__init__",
    ],
)
def test_a_step_named_like_something_every_workflow_has_is_refused(name):
    with pytest.raises(DefinitionError, match=f"Bad declares '{name}', which every Workflow has"):
        type(Workflow)("Bad", (Workflow,), body_of(**{name: step(lambda _self: None)}))


def body_of(**attributes):
    body = type(Workflow).__prepare__("Bad", (Workflow,))
    for name, value in attributes.items():
        body[name] = value
    return body


def test_a_step_may_have_a_name_that_only_the_metaclass_knows():
    class Fine(Workflow):
        @step
        def mro(self): ...

    assert names(Fine) == ["mro"]


@pytest.mark.parametrize(
    ("declaration", "problem"),
    [
        (step(wait=3), "None is no body; decorate a method"),
        (step(5), "5 is no body"),
        (step(step(lambda _self: None)), "is no body"),
        (step(classmethod(lambda _cls: None)), "is no body"),
        (step(lambda: None), r"called with \(self\)"),
        (step(lambda _self, _other: None), "missing a required argument: '_other'"),
    ],
)
def test_what_cannot_be_a_body_is_refused(declaration, problem):
    with pytest.raises(DefinitionError, match=f"Bad, step 'broken': .*{problem}"):
        type(Workflow)("Bad", (Workflow,), body_of(broken=declaration))


def test_a_body_may_be_async_and_have_defaults():
    class Fine(Workflow):
        @step
        async def waits(self, seconds=1): ...

    assert names(Fine) == ["waits"]


def test_a_generator_is_no_body():
    async def stream(self):
        yield self

    def generate(self):
        yield self

    for body in (stream, generate):
        with pytest.raises(DefinitionError, match="is a generator and would never run"):
            type(Workflow)("Bad", (Workflow,), body_of(broken=step(body)))


def test_a_builtin_that_hides_its_signature_is_taken_at_its_word():
    class Fine(Workflow):
        receipt = step(vars)

    assert names(Fine) == ["receipt"]


def test_a_gravestone_keeps_its_place_without_a_body():
    class Retired(Workflow):
        @step
        def first(self): ...

        export = removed_step()

        @step
        def last(self): ...

    definition = Retired._definition
    assert definition.step("export").removed
    assert definition.step("export").body is None
    assert definition.removed == ("export",)
    assert definition.step_after("first").name == "export"
    assert definition.step_after("export").name == "last"
    assert definition.step_after("last") is None
    assert not hasattr(Retired, "export")


def test_a_gravestone_takes_no_options_but_its_place():
    with pytest.raises(DefinitionError, match="unknown option 'wait'; there are before_step"):
        type(Workflow)("Bad", (Workflow,), body_of(gone=removed_step(wait=3)))


def test_an_unknown_step_is_named_with_the_ones_there_are():
    class Small(Workflow):
        @step
        def only(self): ...

    for ask in (Small._definition.step, Small._definition.step_after):
        with pytest.raises(StepNotDefined, match=r"Small declares no step 'other' \(it has only\)"):
            ask("other")


def test_a_class_without_steps_is_only_a_base():
    class Abstract(Workflow):
        def helper(self): ...

    assert registry.find(Abstract._definition.name) is None
    with pytest.raises(DefinitionError, match="Abstract declares no step; start a subclass"):
        Abstract._definition.check_startable()


def test_a_class_is_known_by_its_dotted_name():
    class Known(Workflow):
        @step
        def only(self): ...

    name = f"{__name__}.test_a_class_is_known_by_its_dotted_name.<locals>.Known"
    assert registry.find(name) is Known._definition
    assert Known._definition.name == name
    assert Known._definition.workflow_class is Known
    assert Known._definition in registry.definitions()


def test_definitions_come_by_name():
    listed = [one.name for one in registry.definitions()]
    assert listed == sorted(listed)


def test_a_class_created_again_takes_the_place_of_the_old():
    def create():
        class Reloaded(Workflow):
            @step
            def only(self): ...

        return Reloaded

    old, new = create(), create()
    assert old is not new
    assert registry.find(old._definition.name) is new._definition


def test_a_class_that_is_refused_stays_unknown():
    with pytest.raises(DefinitionError):
        type(Workflow)("Bad", (Workflow,), body_of(broken=step(lambda _self: None, wait=-1)))
    assert not [one for one in registry.definitions() if one.name.endswith(".Bad")]


def test_a_policy_method_is_no_step():
    with pytest.raises(DefinitionError, match="step 'both'"):

        class Bad(Workflow):
            @step
            @on_exception(ValueError)
            def both(self, error): ...
