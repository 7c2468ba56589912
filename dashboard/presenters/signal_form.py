"""The form that sends a run a signal."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from uuid import uuid4

from pgbus.dashboard.presenters.refused_forms import Field
from pgbus.dashboard.words import code
from pgbus.engine.definition import registry
from pgbus.engine.states import RunStatus, Verb

if TYPE_CHECKING:
    from markupsafe import Markup

    from pgbus.dashboard.presenters.refused_forms import RefusedForm
    from pgbus.dashboard.words import Words
    from pgbus.engine.insights.runs import RunSummary


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalForm:
    """The form that sends a signal; `then` says what follows, None where that depends on the name.

    It is `shown` at once while the run waits for a signal, or with a `refusal`, which says why nothing was sent.
    """

    names: tuple[str, ...]
    name: Field
    payload: Field
    reason: Field
    idempotency_key: str
    limit: int
    then: Markup | None
    shown: bool
    refusal: str


def _names(workflow_class: str) -> tuple[str, ...]:
    """Return the names of the signals that steps of the loaded class wait for, in their order."""
    definition = registry.find(workflow_class)
    steps = definition.steps if definition else ()
    names = (step.wait_for.name for step in steps if step.wait_for)
    return tuple(dict.fromkeys(name for name in names if name is not None))


def awaits_signal(run: RunSummary) -> bool:
    """Tell whether the run waits for a signal, and not for a batch."""
    return run.status is RunStatus.WAITING and run.batch_id is None


def signal_form(
    run: RunSummary, words: Words, refused: RefusedForm | None, limit: int
) -> SignalForm:
    """Return the form, empty or as it was refused; `limit` is how many bytes a payload may have."""
    names = _names(run.workflow_class)
    awaited = run.waiting_for if awaits_signal(run) and run.waiting_for in names else None
    only = names[0] if len(names) == 1 else ""
    form = SignalForm(
        names=names,
        name=Field(awaited or only),
        payload=Field(),
        reason=Field(),
        idempotency_key=str(uuid4()),
        limit=limit,
        then=_then(run, words) if awaited else None,
        shown=awaits_signal(run),
        refusal="",
    )
    if refused is None or refused.verb is not Verb.SIGNAL:
        return form
    return replace(
        form,
        name=refused.kept("name"),
        payload=refused.kept("payload"),
        reason=refused.kept("reason"),
        # Nothing was stored under it, so it still tells a second press from the first.
        idempotency_key=refused.typed.get("idempotency_key", ""),
        shown=True,
        refusal=refused.told(words),
    )


def _then(run: RunSummary, words: Words) -> Markup:
    step = code(run.current_step)
    if run.place is None or run.place.following is None:
        return words.rich("Then %(step)s runs, and ends the run.", step=step)
    following = code(run.place.following)
    return words.rich("Then %(step)s runs, and after it %(next)s.", step=step, next=following)
