"""What can be done with a run just now: each action with what it will do, and what it will not."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Self
from uuid import uuid4

from pgbus.dashboard.forms import moment_text
from pgbus.dashboard.presenters import subjects
from pgbus.dashboard.presenters.attempts import became
from pgbus.dashboard.words import _, code
from pgbus.engine.definition import registry
from pgbus.engine.definition.policy import qualified_name
from pgbus.engine.errors import FanOutFailed
from pgbus.engine.insights.resume import ResumeKind
from pgbus.engine.states import AttemptStatus, RunStatus, Verb

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from markupsafe import Markup

    from pgbus.dashboard.console import Viewer
    from pgbus.dashboard.words import Words
    from pgbus.engine.insights.detail import RunDetail, StepOfRun
    from pgbus.engine.insights.resume import ResumePlan
    from pgbus.engine.insights.runs import RunSummary

#: Verbs whose button names a step or a moment: they are meant for the run as the page showed it.
OF_A_PLACE = frozenset({Verb.RESUME, Verb.RESUME_AT, Verb.SKIP, Verb.RUN_NOW, Verb.RESCHEDULE})


@dataclass(frozen=True, slots=True)
class Seen:
    """Where a page showed a run, and the database's moment at which it was read; as text in its forms."""

    place: str
    at: datetime

    @classmethod
    def of(cls, run: RunSummary, plan: ResumePlan | None, at: datetime) -> Self:
        """Return where the run is, and what its class has a resume do: a verb's effect depends on all of it."""
        parts = (
            run.status,
            run.step_id,
            run.attempt_status,
            run.scheduled_at.isoformat(),
            run.paused_at.isoformat() if run.paused_at else "",
            f"{plan.kind}:{plan.step_name}" if plan else "",
        )
        return cls("|".join(map(str, parts)), at)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return what the text of a form says; `ValueError` for any other text."""
        place, _separator, at = text.rpartition("|")
        moment = datetime.fromisoformat(at)
        if moment.utcoffset() is None:
            raise ValueError(f"{at!r} has no time zone.")
        return cls(place, moment)

    def __str__(self) -> str:
        return f"{self.place}|{self.at.isoformat()}"


@dataclass(frozen=True, slots=True)
class RefusedForm:
    """A form that was sent and not done: which of its fields is wrong, how, and all that was typed.

    "" as the field: none is, and the form can be sent again as it is.
    """

    verb: Verb
    field: str
    problem: str
    typed: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Effect:
    """One thing that an action does, or leaves alone."""

    icon: str
    text: Markup
    tone: str = ""


@dataclass(frozen=True, slots=True)
class Field:
    """What stands in a field of a form, and what is wrong with it; "" for nothing."""

    value: str = ""
    problem: str = ""


@dataclass(frozen=True, slots=True)
class StepChoice:
    """A step to resume at, and what became of it so far."""

    name: str
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """An action that is possible: its button, its line, and what its dialog says and asks for.

    Without a `title` it has no dialog, and leads to the form on the page. A `refusal` has its dialog open:
    it says why what was sent with it was not done. `idempotency_key` makes two presses one.
    """

    verb: Verb
    label: str
    icon: str
    line: Markup
    title: str = ""
    effects: tuple[Effect, ...] = ()
    button: str = ""
    steps: tuple[StepChoice, ...] = ()
    step: Field | None = None
    at: Field | None = None
    reason: Field = Field()
    idempotency_key: str | None = None
    refusal: str = ""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Actions:
    """What can be done with a run; `primary` is the likeliest.

    `refusal` says what is wrong with a form that was sent for an action which is not possible any more.
    """

    workflow_id: str
    about: str
    seen: str
    offers: tuple[Offer, ...]
    primary: Verb | None
    signal: SignalForm | None
    refusal: str


def offered(detail: RunDetail, viewer: Viewer, refused: RefusedForm | None = None) -> Actions:
    """Return what can be done with the run and is allowed to who looks, the likeliest first."""
    words, run = viewer.words, detail.run
    offers = [
        _with_form(offer, refused, words)
        for verb, write in _OFFERS.items()
        if verb in detail.available_actions and viewer.may(verb)
        if (offer := write(detail, words)) is not None
    ]
    possible = [offer.verb for offer in offers]
    primary = _primary(run, possible)
    limit = viewer.settings.workflow_max_payload_size
    return Actions(
        workflow_id=run.workflow_id,
        about=subjects.titled(run),
        seen=str(Seen.of(run, detail.resume, words.now)),
        offers=tuple(sorted(offers, key=lambda offer: offer.verb is not primary)),
        primary=primary,
        signal=_signal_form(run, words, refused, limit) if Verb.SIGNAL in possible else None,
        refusal=_gone(refused, words) if refused and refused.verb not in possible else "",
    )


def signal_names(workflow_class: str) -> tuple[str, ...]:
    """Return the names of signals that steps of the loaded class wait for, in their order."""
    definition = registry.find(workflow_class)
    steps = definition.steps if definition else ()
    names = (step.wait_for.name for step in steps if step.wait_for)
    return tuple(dict.fromkeys(name for name in names if name is not None))


def _with_form(offer: Offer, refused: RefusedForm | None, words: Words) -> Offer:
    if refused is None or refused.verb is not offer.verb:
        return offer
    return replace(
        offer,
        step=offer.step and _field("step", refused),
        at=offer.at and _field("at", refused),
        reason=_field("reason", refused),
        refusal=_refusal(refused, words),
    )


def _gone(refused: RefusedForm, words: Words) -> str:
    if refused.field:
        return refused.problem
    return words.gettext("Nothing was done: that is not possible any more.")


def _refusal(refused: RefusedForm, words: Words) -> str:
    if not refused.field:
        return refused.problem
    return words.gettext("What you typed is kept: mend what is marked and press again.")


def _field(name: str, refused: RefusedForm) -> Field:
    return Field(refused.typed.get(name, ""), refused.problem if refused.field == name else "")


def _primary(run: RunSummary, possible: list[Verb]) -> Verb | None:
    wanted = [Verb.RESUME, Verb.RESUME_AT, Verb.RERUN]
    if _awaits_signal(run):
        wanted.append(Verb.SIGNAL)
    elif not run.due or run.stuck:
        wanted.append(Verb.RUN_NOW)
    return next((verb for verb in wanted if verb in possible), None)


def _awaits_signal(run: RunSummary) -> bool:
    return run.status is RunStatus.WAITING and run.batch_id is None


@dataclass(frozen=True, slots=True)
class _Resume:
    """How one kind of resume is called, and what it does: at once, or at a later time."""

    icon: str
    label: str
    title: str
    now: str
    later: str = ""


_RESUMES = {
    ResumeKind.RETRY: _Resume(
        "redo",
        _("Retry %(step)s"),
        _("Retry %(step)s?"),
        _("Attempt %(attempt)s of %(step)s starts as soon as a worker is free."),
        _("Attempt %(attempt)s of %(step)s starts at %(time)s."),
    ),
    ResumeKind.CONTINUE: _Resume(
        "play1",
        _("Continue with %(step)s"),
        _("Continue with %(step)s?"),
        _("%(step)s starts as soon as a worker is free."),
        _("%(step)s starts at %(time)s."),
    ),
    ResumeKind.FINISH: _Resume(
        "finished",
        _("Finish the run"),
        _("Finish the run?"),
        _("No step is left: the run ends as finished."),
    ),
    ResumeKind.CANCEL: _Resume(
        "cancelled",
        _("Let the run end as cancelled"),
        _("Let the run end as cancelled?"),
        _("%(here)s asked for that while the run was paused."),
    ),
    ResumeKind.RUN_AT_TIME: _Resume(
        "scheduled",
        _("Run %(step)s at its time"),
        _("Run %(step)s at its time?"),
        _("That time has come: %(step)s starts as soon as a worker is free."),
        _("%(step)s starts at %(time)s."),
    ),
    ResumeKind.LET_STEP_END: _Resume(
        "performing",
        _("Let %(step)s end"),
        _("Let %(step)s end?"),
        _("%(step)s still runs; what follows it starts again."),
    ),
    ResumeKind.OPEN_FAN_OUT: _Resume(
        "fanout",
        _("Send the jobs of %(step)s"),
        _("Send the jobs of %(step)s?"),
        _("Its jobs are sent now, and the run waits for them."),
    ),
}
#: What a new attempt of a step does first that waits for a signal.
_AWAITS = {
    "now": _("%(step)s waits for signal %(signal)s first."),
    "later": _("%(step)s waits for signal %(signal)s from %(time)s on."),
}
_STARTS_ATTEMPT = frozenset({ResumeKind.RETRY, ResumeKind.CONTINUE, ResumeKind.RUN_AT_TIME})
_KEEP_WAITING = {
    "batch": _("The run waits on for the jobs of its batch."),
    "deadline": _("The run waits on for signal %(signal)s, %(left)s until its deadline."),
    "signal": _("The run waits on for signal %(signal)s, without a deadline."),
}


def _resume(detail: RunDetail, words: Words) -> Offer | None:
    plan, run = detail.resume, detail.run
    if plan is None or plan.kind is ResumeKind.REFUSED:
        return None
    unless_moved = Effect(
        "info", words.rich(_("If the run has moved on by then, nothing is changed."))
    )
    if plan.kind is ResumeKind.KEEP_WAITING:
        said = _Resume("waiting", _("Keep waiting"), _("Keep waiting?"), _keep_waiting(plan, run))
    else:
        said = _RESUMES[plan.kind]
    step, begins, awaited = plan.step_name or "", _begins(plan, words), _awaited(detail, plan)
    if awaited is not None:
        said = replace(said, **_AWAITS)
    line = words.rich(
        said.later if begins and said.later else said.now,
        step=code(step),
        here=code(run.current_step),
        attempt=words.number(run.attempt + 1),
        time=words.clock(begins or words.now),
        signal=code(awaited or run.waiting_for or ""),
        left=words.duration(plan.wait_seconds),
    )
    effects = [Effect(said.icon, line), unless_moved]
    if plan.kind is ResumeKind.RETRY and run.error_class == qualified_name(FanOutFailed):
        effects.insert(1, jobs_again(words))
    label = words.gettext(said.label, step=step)
    return Offer(
        verb=Verb.RESUME,
        label=label,
        icon=said.icon,
        line=line,
        title=words.gettext(said.title, step=step),
        effects=tuple(effects),
        button=label,
    )


def jobs_again(words: Words) -> Effect:
    """Return what a new attempt of a failed fan-out does that nobody would expect."""
    text = words.rich("All its jobs are sent again, those that completed too.")
    return Effect("attention", text, "warn")


def _awaited(detail: RunDetail, plan: ResumePlan) -> str | None:
    """Return the signal that the resumed step waits for before its body runs; None when it starts at once."""
    run = detail.run
    came = plan.kind is ResumeKind.RUN_AT_TIME and run.waiting_for is not None
    if plan.kind not in _STARTS_ATTEMPT or came:
        return None
    return next((step.waits_for for step in detail.steps if step.name == plan.step_name), None)


def _keep_waiting(plan: ResumePlan, run: RunSummary) -> str:
    if run.batch_id is not None:
        return _KEEP_WAITING["batch"]
    return _KEEP_WAITING["signal" if plan.wait_seconds is None else "deadline"]


def _begins(plan: ResumePlan, words: Words) -> datetime | None:
    """Return when the step starts; None for at once."""
    begins = words.now + timedelta(seconds=plan.wait_seconds or 0)
    begins = max(begins, plan.not_before or begins)
    return begins if begins > words.now else None


def _resume_at(detail: RunDetail, words: Words) -> Offer | None:
    if not detail.steps:
        return None
    return Offer(
        verb=Verb.RESUME_AT,
        label=words.gettext("Resume at a step"),
        icon="jump",
        line=words.rich("Goes on from any step of the class, also one that already ran."),
        title=words.gettext("Resume at which step?"),
        effects=(
            Effect("jump", words.rich("A new attempt of the chosen step starts now.")),
            Effect(
                "attention", words.rich("A step that already completed runs <b>again</b>."), "warn"
            ),
            Effect(
                "info",
                words.rich(
                    "The run goes on in order from there; what stands before it is left out."
                ),
            ),
        ),
        button=words.gettext("Resume at this step"),
        steps=tuple(_choice(step, words) for step in detail.steps),
        step=Field(),
    )


def _run_now(detail: RunDetail, words: Words) -> Offer:
    run = detail.run
    if run.due:
        line = words.rich("Its message is sent again, and the next free worker takes it.")
    else:
        line = words.rich(
            "It is not waited until %(time)s: the next free worker takes it.",
            time=words.clock(run.scheduled_at),
        )
    effects = [Effect("play1", line)]
    awaited = next((step.waits_for for step in detail.steps if step.here), None)
    if awaited is not None and run.waiting_for is None:
        first = words.rich("It waits for signal %(signal)s first.", signal=code(awaited))
        effects.append(Effect("waiting", first))
    return Offer(
        verb=Verb.RUN_NOW,
        label=words.gettext("Run %(step)s now", step=run.current_step),
        icon="play1",
        line=line,
        title=words.gettext("Run %(step)s now?", step=run.current_step),
        effects=tuple(effects),
        button=words.gettext("Run now"),
    )


def _reschedule(detail: RunDetail, words: Words) -> Offer:
    run = detail.run
    line = words.rich(
        "Moves it from %(time)s to a time of your choice.", time=words.clock(run.scheduled_at)
    )
    return Offer(
        verb=Verb.RESCHEDULE,
        label=words.gettext("Reschedule %(step)s", step=run.current_step),
        icon="scheduled",
        line=line,
        title=words.gettext("Reschedule %(step)s for when?", step=run.current_step),
        effects=(
            Effect("scheduled", line),
            Effect("info", words.rich("A time that has passed means now.")),
        ),
        button=words.gettext("Reschedule"),
        at=Field(moment_text(run.scheduled_at, words.zone)),
    )


def _signal(detail: RunDetail, words: Words) -> Offer:
    run = detail.run
    if _awaits_signal(run):
        line = words.rich(
            "%(step)s runs with your payload, if it takes it. The form is below.",
            step=code(run.current_step),
        )
    elif run.class_loaded and not any(step.waits_for for step in detail.steps):
        line = words.rich("It is stored, but no step of the class waits for a signal.")
    elif run.status is RunStatus.PAUSED:
        line = words.rich("It is stored for the step that waits for it. The run stays paused.")
    else:
        line = words.rich("It is stored for the step that comes to wait for it.")
    return Offer(verb=Verb.SIGNAL, label=words.gettext("Send a signal"), icon="signal", line=line)


def _skip(detail: RunDetail, words: Words) -> Offer | None:
    run = detail.run
    if run.place is None and not run.step_removed:
        return None
    step = code(run.current_step)
    effects = [Effect("skipped", words.rich("%(step)s ends as skipped.", step=step))]
    if run.attempt_status is AttemptStatus.FAILED:
        effects = [Effect("skipped", words.rich("%(step)s is not tried again.", step=step))]
    if run.batch_id is not None and run.attempt_status is AttemptStatus.WAITING:
        effects.append(
            Effect("fanout", words.rich("Those of its jobs that have not started are dropped."))
        )
    if run.place is None:
        line = words.rich("Goes on with the step after it, or finishes the run.")
    elif run.place.following is None:
        line = words.rich("It is the last step: the run finishes.")
    else:
        line = words.rich("Goes on with %(step)s.", step=code(run.place.following))
    return Offer(
        verb=Verb.SKIP,
        label=words.gettext("Skip %(step)s", step=run.current_step),
        icon="skipped",
        line=line,
        title=words.gettext("Skip %(step)s?", step=run.current_step),
        effects=(*effects, Effect("play1", line)),
        button=words.gettext("Skip the step"),
    )


def _pause(detail: RunDetail, words: Words) -> Offer:
    run, step = detail.run, code(detail.run.current_step)
    match run.status:
        case RunStatus.PERFORMING:
            line = words.rich("%(step)s is let to its end, then nothing more starts.", step=step)
        case RunStatus.WAITING if run.batch_id is not None:
            line = words.rich("The jobs of its batch go on; what follows them waits.")
        case RunStatus.WAITING if run.timeout_at is not None:
            line = words.rich("The deadline stands still. A signal that comes is kept.")
        case RunStatus.WAITING:
            line = words.rich("A signal that comes is kept.")
        case _:
            line = words.rich("%(step)s does not start.", step=step)
    return Offer(
        verb=Verb.PAUSE,
        label=words.gettext("Pause the run"),
        icon="paused",
        line=line,
        title=words.gettext("Pause this run?"),
        effects=(
            Effect("paused", line),
            Effect("info", words.rich("The run stays where it is until somebody resumes it.")),
        ),
        button=words.gettext("Pause the run"),
    )


def _rerun(detail: RunDetail, words: Words) -> Offer:
    # One run comes of all the forms that showed the same reruns.
    newest = detail.reruns[0].workflow_id if detail.reruns else ""
    line = words.rich("Starts a new run with the same subject and arguments, from the first step.")
    return Offer(
        verb=Verb.RERUN,
        label=words.gettext("Run it again"),
        icon="redo",
        line=line,
        title=words.gettext("Start a new run like this one?"),
        effects=(
            Effect("redo", line),
            Effect(
                "attention",
                words.rich("What this run did is <b>not undone</b>, and done again."),
                "warn",
            ),
            Effect("info", words.rich("This run stays as it is; each links to the other.")),
        ),
        button=words.gettext("Start a new run"),
        idempotency_key=f"rerun:{detail.run.workflow_id}:{newest}",
    )


def _cancel(detail: RunDetail, words: Words) -> Offer:
    run = detail.run
    stays = _not_undone(detail, words)
    effects = [
        Effect("cancelled", words.rich("The run ends as cancelled. It cannot be resumed."), "bad"),
        Effect("info", stays),
    ]
    if run.attempt_status is AttemptStatus.IN_PROGRESS:
        ends = words.rich(
            "%(step)s still runs; its outcome is ignored.", step=code(run.current_step)
        )
        effects.append(Effect("performing", ends))
    if run.batch_id is not None and run.attempt_status is AttemptStatus.WAITING:
        effects.append(
            Effect("fanout", words.rich("Those of its jobs that have not started are dropped."))
        )
    if run.class_loaded:
        effects.append(Effect("redo", words.rich("It can be run again, from the first step.")))
    return Offer(
        verb=Verb.CANCEL,
        label=words.gettext("Cancel the run"),
        icon="cancelled",
        line=words.rich("Ends it for good. %(stays)s", stays=stays),
        title=words.gettext("Cancel this run for good?"),
        effects=tuple(effects),
        button=words.gettext("Cancel the run"),
    )


def _not_undone(detail: RunDetail, words: Words) -> Markup:
    completed = sum(step.status is AttemptStatus.COMPLETED for step in detail.steps)
    if not detail.run.class_loaded:
        return words.rich("What has run is not undone.")
    if not completed:
        return words.rich("No step has completed yet.")
    return words.nrich(
        "%(num)s completed step is not undone.",
        "%(num)s completed steps are not undone.",
        completed,
    )


#: In the order in which they are shown, but for the likeliest one.
_OFFERS: dict[Verb, Callable[[RunDetail, Words], Offer | None]] = {
    Verb.RESUME: _resume,
    Verb.RESUME_AT: _resume_at,
    Verb.RUN_NOW: _run_now,
    Verb.RESCHEDULE: _reschedule,
    Verb.SIGNAL: _signal,
    Verb.SKIP: _skip,
    Verb.PAUSE: _pause,
    Verb.RERUN: _rerun,
    Verb.CANCEL: _cancel,
}


def _choice(step: StepOfRun, words: Words) -> StepChoice:
    badge = became(step)
    told = badge.word if badge else _("not tried yet")
    label = words.gettext("%(step)s, %(told)s", step=step.name, told=words.gettext(told))
    return StepChoice(step.name, label)


def _signal_form(
    run: RunSummary, words: Words, refused: RefusedForm | None, limit: int
) -> SignalForm:
    names = signal_names(run.workflow_class)
    awaited = run.waiting_for if _awaits_signal(run) and run.waiting_for in names else None
    only = names[0] if len(names) == 1 else ""
    form = SignalForm(
        names=names,
        name=Field(awaited or only),
        payload=Field(),
        reason=Field(),
        idempotency_key=str(uuid4()),
        limit=limit,
        then=_then(run, words) if awaited else None,
        shown=_awaits_signal(run),
        refusal="",
    )
    if refused is None or refused.verb is not Verb.SIGNAL:
        return form
    return replace(
        form,
        name=_field("name", refused),
        payload=_field("payload", refused),
        reason=_field("reason", refused),
        # Nothing was stored under it, so it still tells a second press from the first.
        idempotency_key=refused.typed.get("idempotency_key", ""),
        shown=True,
        refusal=_refusal(refused, words),
    )


def _then(run: RunSummary, words: Words) -> Markup:
    step = code(run.current_step)
    if run.place is None or run.place.following is None:
        return words.rich("Then %(step)s runs, and ends the run.", step=step)
    following = code(run.place.following)
    return words.rich("Then %(step)s runs, and after it %(next)s.", step=step, next=following)
