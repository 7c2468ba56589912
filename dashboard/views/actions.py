"""What is asked of one run: each verb by its form, and what came of it on the page after."""

from __future__ import annotations

import functools
import logging
from http import HTTPStatus
from typing import TYPE_CHECKING

from flask import g, redirect, request

from pgbus.dashboard import forms, toasts
from pgbus.dashboard.forms import FormProblem
from pgbus.dashboard.pages import run
from pgbus.dashboard.parameters import BadParameter
from pgbus.dashboard.presenters import outcomes
from pgbus.dashboard.presenters.actions import OF_A_PLACE, Seen
from pgbus.dashboard.presenters.refused_forms import RefusedForm
from pgbus.dashboard.views.refusals import ASKED, Refusal
from pgbus.dashboard.views.run import identifier
from pgbus.dashboard.words import _
from pgbus.engine.definition import registry
from pgbus.engine.definition.signal import Signal
from pgbus.engine.errors import (
    AlreadyRunning,
    DatabaseAway,
    InvalidTransition,
    PayloadError,
    ReadTimeout,
    RunLocked,
    RunMoved,
    RunNotFound,
    SchemaOutdated,
    SignalKeyReused,
    StepNotDefined,
)
from pgbus.engine.insights import events, reading, resume, runs, signals
from pgbus.engine.runner.error_record import record_error
from pgbus.engine.states import NEEDS_CLASS, Verb

if TYPE_CHECKING:
    from collections.abc import Callable

    from flask import Response
    from werkzeug.wrappers import Response as Redirect

    from pgbus.dashboard.console import Console, Viewer
    from pgbus.dashboard.toasts import Toast
    from pgbus.engine.insights.resume import ResumePlan
    from pgbus.engine.insights.runs import RunSummary
    from pgbus.engine.runner.run import Run

_log = logging.getLogger("pgbus.dashboard")

#: Who was first is looked for among as many of the newest entries of the trail.
_LATELY = 50
#: Refusals of the engine that a toast tells of; any other error is a failure.
_REFUSALS = (InvalidTransition, RunLocked, SignalKeyReused, AlreadyRunning, StepNotDefined)


def act(console: Console, workflow_id: str, verb: str) -> Response | Redirect | None:
    """Ask the verb of the run, and go to the page that tells what came of it."""
    known_id = identifier(workflow_id)
    if known_id is None or verb not in tuple(Verb):
        return None
    asked = Verb(verb)
    if not console.host.allows(request, asked):
        return _forbidden(console, known_id)
    seen = _seen(asked)
    try:
        with reading.answered():
            before, answer = _ask(console, known_id, asked, seen)
    except FormProblem as problem:
        refused = RefusedForm(asked, problem.field, str(problem), request.form.to_dict())
        return _again(console, known_id, refused)
    except RunNotFound:
        toasts.add(request.blueprint or "", outcomes.gone(console.viewer()))
        return redirect(console.url("workflows"), 303)
    except _REFUSALS as error:
        refusal = _told(console, _refused, known_id, error, seen, done=False)
        return _to_run(console, known_id, refusal)
    except (BadParameter, DatabaseAway, ReadTimeout, SchemaOutdated):
        raise
    except Exception as error:  # noqa: BLE001 (a matcher is the host's own code, and may raise anything)
        _log.exception("The dashboard failed at %s of run %s.", asked, known_id)
        return _to_run(console, known_id, _failed(console, asked, error))
    if isinstance(answer, Signal):
        return _to_run(console, known_id, _told(console, _sent, known_id, answer))
    return _to_run(console, answer.workflow_id, _told(console, _done, asked, before, answer))


def too_late(console: Console, workflow_id: str, verb: str) -> Response | None:
    """Show the run with what was typed for a form that was open for too long, to be sent once more."""
    known_id = identifier(workflow_id)
    if known_id is None or verb not in tuple(Verb):
        return None
    problem = console.viewer().words.gettext(
        "The page was open too long. What you typed is kept: look it over and press again."
    )
    return _again(console, known_id, RefusedForm(Verb(verb), "", problem, request.form.to_dict()))


def back(console: Console, workflow_id: str, verb: str) -> Redirect:  # noqa: ARG001 (the address has it)
    """Go to the run's page: a browser that asks again for what it had sent comes here."""
    return redirect(console.url("run", workflow_id=workflow_id), 303)


def _again(console: Console, workflow_id: str, refused: RefusedForm) -> Response:
    """Show the run with the form as it was filled in, and what is wrong with it."""
    load = functools.partial(run.load, workflow_id=workflow_id, refused=refused)
    return console.show(load, status=HTTPStatus.UNPROCESSABLE_ENTITY)


def _ask(
    console: Console, workflow_id: str, verb: Verb, seen: Seen | None
) -> tuple[RunSummary, Run | Signal]:
    """Return the run as it was before, and what the verb gave."""
    console.bus.check_schema()
    found = console.bus.find(workflow_id)
    if found is None:
        raise RunNotFound(f"There is no run {workflow_id}.")
    with reading.reading(console.bus.services) as connection:
        before = runs.summary(connection, console.bus.settings, workflow_id)
        plan = resume.plan(connection, before)
    words = console.viewer().words
    arguments = forms.arguments(verb, request.form, words, before.scheduled_at)
    if verb in OF_A_PLACE:
        # What moves the run from here on is noticed by the verb itself: it goes by `found`.
        _expect_unmoved(verb, before, plan, seen)
        arguments["if_unmoved"] = True
    actor, reason = console.host.actor(request), forms.reason(request.form)
    setattr(g, ASKED, True)
    try:
        return before, getattr(found, verb)(**arguments, actor=actor, reason=reason)
    except PayloadError as error:
        raise forms.payload_problem(error, console.bus.settings, words) from error


def _seen(verb: Verb) -> Seen | None:
    """Return where the page showed the run; a verb that is meant for that place must come with it."""
    text = request.form.get("seen", "")
    try:
        return Seen.parse(text)
    except ValueError:
        if verb not in OF_A_PLACE:
            return None
        raise BadParameter("seen", text, _("what a page of this console put there")) from None


def _expect_unmoved(
    verb: Verb, run: RunSummary, plan: ResumePlan | None, seen: Seen | None
) -> None:
    if verb in NEEDS_CLASS and not run.class_loaded:
        raise StepNotDefined(f"{run.workflow_class} is not loaded here; import its module.")
    if seen is None or Seen.of(run, plan, seen.at) != seen:
        raise RunMoved(f"Run {run.workflow_id} is not where the page showed it.", status=run.status)


def _looked(console: Console, workflow_id: str) -> tuple[RunSummary, Viewer]:
    """Return the run as it is now, and who looks as of that moment."""
    with reading.reading(console.bus.services) as connection:
        run = runs.summary(connection, console.bus.settings, workflow_id)
        return run, console.viewer(reading.now(connection))


def _told(
    console: Console, tell: Callable[..., Toast], *outcome: object, done: bool = True
) -> Toast:
    """Return what came of it; where PostgreSQL went away since, as much as is known without it."""
    try:
        return tell(console, *outcome)
    except (DatabaseAway, ReadTimeout):
        return outcomes.untold(console.viewer(), done=done)


def _done(console: Console, verb: Verb, before: RunSummary, answer: Run) -> Toast:
    now, viewer = _looked(console, answer.workflow_id)
    if verb is Verb.RERUN and answer.duplicate_start:
        return outcomes.started_before(now, viewer)
    return outcomes.done(verb, before, now, viewer)


def _sent(console: Console, workflow_id: str, signal: Signal) -> Toast:
    now, viewer = _looked(console, workflow_id)
    if signal.duplicate_delivery:
        return outcomes.sent_before(signal, viewer)
    definition = registry.find(now.workflow_class)
    awaited = definition is None or signals.unexpected(definition, signal.name) is None
    return outcomes.sent(signal.name, now, viewer, awaited=awaited)


def _refused(console: Console, workflow_id: str, error: Exception, seen: Seen | None) -> Toast:
    now, viewer = _looked(console, workflow_id)
    match error:
        case RunLocked():
            return outcomes.locked(viewer)
        case SignalKeyReused():
            return outcomes.key_reused(viewer)
        case AlreadyRunning(run=other):
            return outcomes.already_running(now, other.workflow_id, viewer)
        case StepNotDefined() if not now.class_loaded:
            return outcomes.not_loaded(now, viewer)
        case StepNotDefined():
            step = request.form.get("step") or now.current_step
            return outcomes.not_declared(now, step, viewer)
    with reading.reading(console.bus.services) as connection:
        lately = events.newest(connection, workflow_id, _LATELY)
    return outcomes.moved(now, lately.entries, seen.at if seen else None, viewer)


def _failed(console: Console, verb: Verb, error: Exception) -> Toast:
    entry = record_error(error, backtrace_lines=0)
    return outcomes.failed(verb, entry.error_class, entry.message, console.viewer())


def _to_run(console: Console, workflow_id: str, toast: Toast) -> Redirect:
    toasts.add(request.blueprint or "", toast)
    return redirect(console.url("run", workflow_id=workflow_id), 303)


def _forbidden(console: Console, workflow_id: str) -> Response:
    viewer = console.viewer()
    page = Refusal(
        status=403,
        icon="shield",
        title=viewer.words.gettext("You may not do this"),
        text=viewer.words.gettext(
            "Nothing was done: the application does not allow this action to you."
        ),
        href=console.url("run", workflow_id=workflow_id),
        link=viewer.words.gettext("Back to the run"),
    )
    return console.rendered(page, viewer, status=page.status)
