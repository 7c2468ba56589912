"""One run: what happened, what can be done, where its time went, and all that is known of it."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from pgbus.dashboard.pages.listed import class_href
from pgbus.dashboard.presenters import (
    actions,
    attempts,
    marks,
    sentences,
    subjects,
    timeline,
    trail,
)
from pgbus.dashboard.presenters.documents import Shelf
from pgbus.dashboard.presenters.happening import happening
from pgbus.dashboard.presenters.status import Badge, place, status
from pgbus.dashboard.words import _, code, foreign, pgettext
from pgbus.engine.insights import detail as insights
from pgbus.engine.states import ONGOING, Event, RunStatus, SignalStatus

if TYPE_CHECKING:
    from markupsafe import Markup

    from pgbus.dashboard.console import Viewer
    from pgbus.dashboard.presenters.actions import Actions
    from pgbus.dashboard.presenters.attempts import AttemptTable
    from pgbus.dashboard.presenters.documents import DocumentView
    from pgbus.dashboard.presenters.happening import Happening
    from pgbus.dashboard.presenters.refused_forms import RefusedForm
    from pgbus.dashboard.presenters.timeline import Chart
    from pgbus.dashboard.presenters.trail import TrailLine
    from pgbus.dashboard.words import Words
    from pgbus.engine.insights.detail import (
        AddedStep,
        DefinitionChange,
        RelatedRun,
        RunDetail,
        StepOfRun,
    )
    from pgbus.engine.insights.runs import RunSummary
    from pgbus.engine.insights.signals import StoredSignal
    from pgbus.engine.storage.database import Connection

#: Attempts and events on a page, signals on that of a run; documents of up to so many bytes, and so many
#: together.
LIMIT = 100
_SIGNALS = 25
INLINE = 2048
TOGETHER = 16_000
_DIGEST = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """Which run a page is about, and what it does just now."""

    workflow_id: str
    href: str
    title: str
    badge: Badge
    sentence: Markup
    because: str | None
    place: Markup | str
    class_name: str
    class_href: str
    subject: str | None
    subject_href: str | None


@dataclass(frozen=True, slots=True)
class Fact:
    """A thing to know about the run."""

    label: str
    value: Markup


@dataclass(frozen=True, slots=True)
class StepLine:
    """A step of the class, and what became of it in this run."""

    name: str
    tone: str
    icon: str
    told: str
    here: bool = False


@dataclass(frozen=True, slots=True)
class ChangeLine:
    """One way in which the class is another than when the run began."""

    tone: str
    icon: str
    text: Markup


@dataclass(frozen=True, slots=True)
class Change:
    """What the class does otherwise, and the two versions."""

    lines: tuple[ChangeLine, ...]
    versions: Markup


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalLine:
    """A signal that the run got; `taken` by which attempt, `taken_at` when; None while it is pending."""

    key: int
    name: str
    badge: Badge
    payload: DocumentView
    idempotency_key: str | None
    sender: Markup
    received: Markup
    taken: Markup | None
    taken_at: Markup | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPage:
    """What the page of one run shows; `older_…` lead to what is left out."""

    template: ClassVar[str] = "run.html"

    head: Head
    live: bool
    happening: Happening
    actions: Actions
    timeline: Chart
    timeline_href: str
    attempts: AttemptTable
    attempts_told: str
    older_attempts: str | None
    signals: tuple[SignalLine, ...]
    signals_told: str
    older_signals: str | None
    events: tuple[TrailLine, ...]
    events_told: str
    older_events: str | None
    change: Change | None
    facts: tuple[Fact, ...]
    steps: tuple[StepLine, ...]
    arguments: DocumentView


_SIGNAL_BADGES = {
    SignalStatus.PENDING: Badge(pgettext("signal status", "Pending"), "idle", "signal"),
    SignalStatus.CLAIMED: Badge(pgettext("signal status", "Claimed"), "runs", "performing"),
    SignalStatus.CONSUMED: Badge(pgettext("signal status", "Consumed"), "good", "finished"),
}

_RELATED = {
    RunStatus.FINISHED: _("%(run)s, finished"),
    RunStatus.CANCELLED: _("%(run)s, cancelled"),
    None: _("%(run)s, deleted"),
}


def load(
    connection: Connection,
    viewer: Viewer,
    workflow_id: str,
    *,
    refused: RefusedForm | None = None,
) -> RunPage:
    """Return the page of a run; `refused` is a form that was sent for it and cannot be done."""
    found = insights.detail(connection, viewer.settings, workflow_id, limit=LIMIT, inline=INLINE)
    run, words = found.run, viewer.words
    shelf = Shelf(viewer, TOGETHER)
    arguments = shelf.view(
        found.arguments, "arguments", viewer.url("arguments", workflow_id=workflow_id)
    )
    table = attempts.table(found.attempts, workflow_id, viewer, shelf)
    history = functools.partial(viewer.url, workflow_id=workflow_id)
    received = found.signals[:_SIGNALS]
    return RunPage(
        head=head(run, viewer),
        live=run.status in ONGOING,
        happening=happening(found, viewer, table),
        actions=actions.offered(found, viewer, refused),
        timeline=timeline.chart(found, words),
        timeline_href=viewer.url("timeline", workflow_id=workflow_id),
        attempts=table,
        attempts_told=words.ngettext(
            "%(num)s attempt", "%(num)s attempts, newest first", len(found.attempts)
        ),
        older_attempts=history("attempts", older_than=found.attempts[-1].step_id)
        if found.older_attempts
        else None,
        signals=tuple(signal_line(one, workflow_id, viewer, shelf) for one in received),
        signals_told=words.ngettext(
            "%(num)s signal", "%(num)s signals, newest first", len(received)
        ),
        older_signals=history("signals", older_than=received[-1].signal_id)
        if found.older_signals or len(received) < len(found.signals)
        else None,
        events=trail.trail(
            found.events, words=words, url=viewer.url, longest_reason=trail.SHORT_REASON
        ),
        events_told=words.ngettext(
            "%(num)s entry", "%(num)s entries, newest first", len(found.events)
        ),
        older_events=history("events", older_than=found.events[-1].event_id)
        if found.older_events
        else None,
        change=_change(found.change, found, viewer) if found.change else None,
        facts=tuple(_facts(found, viewer)),
        steps=_steps(found.steps, viewer),
        arguments=arguments,
    )


def head(run: RunSummary, viewer: Viewer) -> Head:
    """Return which run it is, and what it does."""
    told = status(run)
    return Head(
        workflow_id=run.workflow_id,
        href=viewer.url("run", workflow_id=run.workflow_id),
        title=subjects.titled(run),
        badge=told.badge,
        sentence=sentences.rendered(told.sentence, viewer.words, viewer.url),
        because=told.because,
        place=place(run, told.badge.tone, viewer.words),
        class_name=run.workflow_class,
        class_href=class_href(viewer, run.workflow_class),
        subject=subjects.named(run),
        subject_href=subjects.href(run, viewer),
    )


def signal_line(signal: StoredSignal, workflow_id: str, viewer: Viewer, shelf: Shelf) -> SignalLine:
    """Return a signal as a line; its payload is shown as far as the shelf has room."""
    words = viewer.words
    taken = None
    if signal.step_name is not None:
        taken = words.rich(
            _("%(step)s, attempt %(attempt)s"),
            step=code(signal.step_name),
            attempt="?" if signal.attempt is None else words.number(signal.attempt),
        )
    href = viewer.url("signal", workflow_id=workflow_id, number=signal.signal_id)
    return SignalLine(
        key=signal.signal_id,
        name=signal.name,
        badge=_SIGNAL_BADGES[signal.status],
        payload=shelf.view(signal.payload, "payload", href),
        idempotency_key=signal.idempotency_key,
        sender=foreign(signal.actor),
        received=words.ago(signal.received_at),
        taken=taken,
        taken_at=_taken_at(signal, words),
    )


def _taken_at(signal: StoredSignal, words: Words) -> Markup | None:
    if signal.claimed_at is None:
        return None
    claimed = words.ago(signal.claimed_at)
    if signal.consumed_at is None:
        return words.rich(_("claimed %(when)s"), when=claimed)
    return words.rich(
        _("claimed %(when)s, consumed %(then)s"), when=claimed, then=words.ago(signal.consumed_at)
    )


def _facts(found: RunDetail, viewer: Viewer) -> list[Fact]:
    run, words = found.run, viewer.words
    starter = next((one.actor for one in found.events if one.event == Event.STARTED), None)
    started = words.ago(run.created_at)
    if starter is not None:
        started = words.rich(
            _("%(when)s by %(actor)s"), when=words.ago(run.created_at), actor=foreign(starter)
        )
    facts = [Fact(words.pgettext("column: moment", "Started"), started)]
    if run.ended_at is not None:
        facts.append(Fact(words.pgettext("column: moment", "Ended"), words.ago(run.ended_at)))
    facts.append(Fact(words.gettext("Last activity"), words.ago(run.updated_at)))
    if found.idempotency_key is not None:
        facts.append(Fact(words.gettext("Start key"), code(found.idempotency_key)))
    facts.append(Fact(words.gettext("Definition"), _definition(found, words)))
    if found.rerun_of is not None:
        facts.append(Fact(words.gettext("Rerun of"), _related(found.rerun_of, viewer)))
    facts += [Fact(words.gettext("Rerun as"), _related(one, viewer)) for one in found.reruns]
    return facts


def _definition(found: RunDetail, words: Words) -> Markup:
    digest = code(found.definition_digest[:_DIGEST])
    if found.current_digest is None:
        return words.rich(_("%(digest)s, not loaded here"), digest=digest)
    if found.current_digest == found.definition_digest:
        return words.rich(_("%(digest)s, current"), digest=digest)
    return words.rich(_("%(digest)s, changed since"), digest=digest)


def _related(run: RelatedRun, viewer: Viewer) -> Markup:
    href = viewer.url("run", workflow_id=run.workflow_id)
    link = marks.link(href, marks.short_id(run.workflow_id))
    return viewer.words.rich(_RELATED.get(run.status, _("%(run)s, ongoing")), run=link)


def _change(change: DefinitionChange, found: RunDetail, viewer: Viewer) -> Change:
    words = viewer.words
    lines = [ChangeLine("good", "plus", _added(step, words)) for step in change.added]
    lines += [
        ChangeLine("bad", "minus", words.rich(_("%(step)s removed"), step=code(name)))
        for name in change.removed
    ]
    lines += [
        ChangeLine(
            "warn", "info", words.rich(_("The options of %(step)s changed"), step=code(name))
        )
        for name in change.changed
    ]
    if change.reordered:
        lines.append(ChangeLine("warn", "info", words.rich(_("The order of the steps changed"))))
    return Change(
        tuple(lines),
        words.rich(
            _("Began on %(before)s, now %(now)s"),
            before=code(found.definition_digest[:_DIGEST]),
            now=code((found.current_digest or "")[:_DIGEST]),
        ),
    )


def _added(step: AddedStep, words: Words) -> Markup:
    key = _("%(step)s added after %(after)s; this run is past it and will not do it")
    if step.after is None:
        key = _("%(step)s added as the first; this run is past it and will not do it")
    if not step.past:
        key = _("%(step)s added after %(after)s; this run will come to it")
    return words.rich(key, step=code(step.name), after=code(step.after or ""))


def _steps(steps: tuple[StepOfRun, ...], viewer: Viewer) -> tuple[StepLine, ...]:
    following = next((step.name for step in steps if step.to_come), None)
    return tuple(_step(step, viewer, is_next=step.name == following) for step in steps)


def _step(step: StepOfRun, viewer: Viewer, *, is_next: bool) -> StepLine:
    words, became = viewer.words, attempts.became(step)
    if became is not None:
        told = words.gettext(became.word)
        return StepLine(step.name, became.tone, became.icon, told, step.here)
    return StepLine(step.name, "idle", "ready", words.gettext(_ahead(step, is_next=is_next)))


def _ahead(step: StepOfRun, *, is_next: bool) -> str:
    if not step.to_come:
        return pgettext("step", "not in this run")
    if step.fan_out:
        return (
            pgettext("step", "next, fan-out") if is_next else pgettext("step", "to come, fan-out")
        )
    if step.waits_for is not None:
        return (
            pgettext("step", "next, waits for a signal")
            if is_next
            else pgettext("step", "to come, waits for a signal")
        )
    return pgettext("step", "next") if is_next else pgettext("step", "to come")
