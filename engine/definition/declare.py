"""How a class body becomes a definition: the metaclass of `Workflow` and its namespace."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Unpack, cast, get_args, get_origin

from pgbus.engine.definition import registry
from pgbus.engine.definition.definition import Definition
from pgbus.engine.definition.guard import cancel_guards, is_guard
from pgbus.engine.definition.options import OptionError, declared_in
from pgbus.engine.definition.policy import class_policies, is_policy_method
from pgbus.engine.definition.step import (
    PLACEMENT,
    ClassOptions,
    StepDeclaration,
    checked_class_options,
    resolve,
)
from pgbus.engine.errors import DefinitionError
from pgbus.engine.subjects import register_subject

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pgbus.engine.definition.signal import TypedSignal
    from pgbus.engine.definition.step import Step
    from pgbus.engine.definition.workflow import Workflow


class ClassBody(dict[str, Any]):
    """A class body's namespace: it names anonymous steps and refuses to lose a declaration."""

    def __init__(self, class_name: str, anonymous_before: int) -> None:
        super().__init__()
        self._class_name = class_name
        self._anonymous = anonymous_before

    def __setitem__(self, name: str, value: Any) -> None:
        if name == "_" and isinstance(value, StepDeclaration):
            self._anonymous += 1
            name, value = f"step_{self._anonymous}", replace(value, anonymous=True)
        if name in self and (_is_declaration(value) or _is_declaration(self[name])):
            raise DefinitionError(
                f"{self._class_name} declares {name!r} twice; give one of them another name"
            )
        super().__setitem__(name, value)


class WorkflowMeta(type):
    """Makes a class's `_definition` and registers it; every mistake in it is raised here."""

    _definition: Definition
    _own_steps: Mapping[str, StepDeclaration]
    _own_options: Mapping[str, Any]

    @classmethod
    def __prepare__(cls, name: str, bases: tuple[type, ...], /, **_options: object) -> ClassBody:
        """Return the namespace that the class body fills."""
        inherited = {ancestor for base in bases for ancestor in base.__mro__}
        anonymous = sum(
            declaration.anonymous
            for ancestor in inherited
            for declaration in _own_steps(ancestor).values()
        )
        return ClassBody(name, anonymous)

    def __new__(
        metacls,
        name: str,
        bases: tuple[type, ...],
        body: dict[str, Any],
        /,
        **options: Unpack[ClassOptions],
    ) -> WorkflowMeta:
        """Return the class with its definition; `DefinitionError` when it cannot work."""
        own_steps = {key: one for key, one in body.items() if isinstance(one, StepDeclaration)}
        attributes = {key: one for key, one in body.items() if key not in own_steps}
        for step_name, declaration in own_steps.items():
            if not declaration.removed:
                with declared_in(f"{name}, step {step_name!r}"):
                    attributes[step_name] = declaration.method()
        cls = super().__new__(
            metacls, name, bases, attributes | {"_own_steps": own_steps, "_own_options": options}
        )
        cls._definition = _define(cls)
        _register_subject(cls)
        if cls._definition.steps:
            registry.register(cls._definition)
        return cls

    def __init__(
        cls, name: str, bases: tuple[type, ...], body: dict[str, Any], /, **_options: object
    ) -> None:
        super().__init__(name, bases, body)


def _define(cls: WorkflowMeta) -> Definition:
    _refuse_taken_names(cls)
    options: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        options |= vars(base).get("_own_options", {})
    options = checked_class_options(cls, options)
    declared = _ordered_steps(cls)
    steps = tuple(resolve(one, name, cls, options) for name, one in declared.items())
    return Definition(
        name=f"{cls.__module__}.{cls.__qualname__}",
        workflow_class=cast("type[Workflow[Any]]", cls),
        subject_class=_subject_class(cls),
        steps=steps,
        cancel_guards=cancel_guards(cls),
        policies=class_policies(cls, list(_policies_of_steps(cls))),
        signal_types=_signal_types(cls, steps),
    )


def _own_steps(cls: type) -> Mapping[str, StepDeclaration]:
    own: Mapping[str, StepDeclaration] = vars(cls).get("_own_steps", {})
    return own


def _refuse_taken_names(cls: WorkflowMeta) -> None:
    root = [base for base in cls.__mro__ if isinstance(base, WorkflowMeta)][-1]
    declared = {*cls._own_steps, *(name for name, one in vars(cls).items() if _is_declaration(one))}
    for name in sorted(declared & {*dir(root)} if cls is not root else ()):
        raise DefinitionError(
            f"{cls.__qualname__} declares {name!r}, which every {root.__name__} has as its own; "
            "give it another name"
        )


def _ordered_steps(cls: type) -> dict[str, StepDeclaration]:
    """Return the steps in order: those of the bases, each class's own appended or placed."""
    order: list[str] = []
    declared: dict[str, StepDeclaration] = {}
    for base in reversed(cls.__mro__):
        _refuse_steps_outside(base)
        for name, declaration in _own_steps(base).items():
            with declared_in(f"{cls.__qualname__}, step {name!r}"):
                if declaration.anonymous and name in declared:
                    raise OptionError("an anonymous step takes the name of another; name it")
                _place(order, name, declaration.options)
            declared[name] = declaration
    return {name: declared[name] for name in order}


def _refuse_steps_outside(base: type) -> None:
    for name, attribute in vars(base).items():
        if isinstance(attribute, StepDeclaration):
            raise DefinitionError(
                f"{base.__qualname__} declares the step {name!r} and is no Workflow; "
                "derive it from one"
            )


def _place(order: list[str], name: str, options: Mapping[str, Any]) -> None:
    """Put a step into the order; one that only takes another's name keeps its place."""
    targets = [(option, options[option]) for option in PLACEMENT if option in options]
    if len(targets) > 1:
        raise OptionError("before_step and after_step are both given; keep one")
    if not targets:
        if name not in order:
            order.append(name)
        return
    option, target = targets[0]
    rest = [step for step in order if step != name]
    if target not in rest:
        raise OptionError(
            f"{option}: {target!r} is no other step declared above it or in a base; "
            f"there are {', '.join(rest) or 'none'}"
        )
    rest.insert(rest.index(target) + (option == "after_step"), name)
    order[:] = rest


def _policies_of_steps(cls: type) -> Iterator[object]:
    for base in cls.__mro__:
        for declaration in _own_steps(base).values():
            policies = declaration.options.get("policies", ())
            yield from policies if isinstance(policies, (list, tuple)) else ()


def _signal_types(cls: type, steps: tuple[Step, ...]) -> dict[str, TypedSignal[Any]]:
    """Return the types by signal name; a payload that is checked at delivery has one."""
    types: dict[str, TypedSignal[Any]] = {}
    for step in steps:
        typed = step.wait_for and step.wait_for.typed
        if typed and types.setdefault(typed.name, typed) != typed:
            raise DefinitionError(
                f"{cls.__qualname__}, step {step.name!r}: wait_for: {typed}, and a step above waits "
                f"for {types[typed.name]}; give the signal one payload class, or two names"
            )
    return types


def _is_declaration(value: object) -> bool:
    return isinstance(value, StepDeclaration) or is_guard(value) or is_policy_method(value)


def _register_subject(cls: type) -> None:
    """Register `Order` of `Workflow[Order]` when SQLAlchemy maps it; users register others."""
    subject = _own_subject_class(cls)
    if subject is not None and "__mapper__" in vars(subject):
        register_subject(subject)


def _subject_class(cls: type) -> type | None:
    """Return `Order` of the nearest `Workflow[Order]` among a class's bases."""
    found = (_own_subject_class(base) for base in cls.__mro__)
    return next((subject for subject in found if subject is not None), None)


def _own_subject_class(cls: type) -> type | None:
    for base in vars(cls).get("__orig_bases__", ()):
        if isinstance(get_origin(base), WorkflowMeta):
            for subject in get_args(base)[:1]:
                return subject if isinstance(subject, type) else None
    return None
