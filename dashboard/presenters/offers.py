"""What can be done with a run, action by action: its button, and what its dialog says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pgbus.dashboard.forms import moment_text
from pgbus.dashboard.presenters.attempts import became
from pgbus.dashboard.presenters.confirmations import Effect
from pgbus.dashboard.presenters.refused_forms import Field
from pgbus.dashboard.presenters.signal_form import awaits_signal
from pgbus.dashboard.words import code, pgettext
from pgbus.engine.states import AttemptStatus, RunStatus, Verb

if TYPE_CHECKING:
    from markupsafe import Markup

    from pgbus.dashboard.words import Words
    from pgbus.engine.insights.detail import RunDetail, StepOfRun

_EMPTY = Field()


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
    reason: Field = _EMPTY
    idempotency_key: str | None = None
    refusal: str = ""


def resume_at(detail: RunDetail, words: Words) -> Offer | None:
    """Offer to go on from any step; None without the class."""
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


def run_now(detail: RunDetail, words: Words) -> Offer:
    """Offer to run the step before its time, or to send its message again."""
    run = detail.run
    if run.due:
        line = words.rich("Its message is sent again, and the next free worker takes it.")
    else:
        line = words.rich(
            "It does not wait until %(time)s: the next free worker takes it.",
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


def reschedule(detail: RunDetail, words: Words) -> Offer:
    """Offer to run the step at another time."""
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


def signal(detail: RunDetail, words: Words) -> Offer:
    """Offer the form that sends a signal."""
    run = detail.run
    if awaits_signal(run):
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


def skip(detail: RunDetail, words: Words) -> Offer | None:
    """Offer to go on without the step; None where nobody knows what follows it."""
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


def pause(detail: RunDetail, words: Words) -> Offer:
    """Offer to pause the run."""
    run, step = detail.run, code(detail.run.current_step)
    match run.status:
        case RunStatus.PERFORMING:
            line = words.rich("%(step)s runs to its end, then nothing more starts.", step=step)
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


def rerun(detail: RunDetail, words: Words) -> Offer:
    """Offer to start a new run like this one."""
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


def cancel(detail: RunDetail, words: Words) -> Offer:
    """Offer to end the run for good."""
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


def _choice(step: StepOfRun, words: Words) -> StepChoice:
    badge = became(step)
    told = badge.word if badge else pgettext("step", "not tried yet")
    label = words.gettext("%(step)s, %(told)s", step=step.name, told=words.gettext(told))
    return StepChoice(step.name, label)
