"""What can be done with a queue: what asks before, what a press will do, and what it did."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from pgbus.dashboard.presenters import queues
from pgbus.dashboard.presenters.confirmations import Ask, Confirmation, Effect
from pgbus.dashboard.toasts import Toast
from pgbus.dashboard.words import _, code

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from markupsafe import Markup

    from pgbus.dashboard.console import Viewer
    from pgbus.dashboard.presenters.queues import QueueTotal
    from pgbus.dashboard.words import Words
    from pgbus.engine.insights.queues import QueuePause
    from pgbus.engine.jobs.control import PauseResult, Purged


class QueueVerb(StrEnum):
    """What can be asked of a queue, as the host's `can` is asked for it."""

    PAUSE = "pause_queue"
    RESUME = "resume_queue"
    PURGE = "purge_queue"


@dataclass(frozen=True, slots=True)
class QueuePress:
    """A verb on a queue; `problem` says why a form with this `reason` was not taken."""

    verb: QueueVerb
    queue: str
    typed: str = ""
    reason: str = ""
    problem: str = ""


_LABELS = {
    QueueVerb.PAUSE: _("Pause…"),
    QueueVerb.RESUME: _("Resume…"),
    QueueVerb.PURGE: _("Purge…"),
}
_ICONS = {QueueVerb.PAUSE: "paused", QueueVerb.RESUME: "redo", QueueVerb.PURGE: "cancelled"}
_QUESTIONS = {
    QueueVerb.PAUSE: _("Pause the queue %(queue)s?"),
    QueueVerb.RESUME: _("Resume the queue %(queue)s?"),
    QueueVerb.PURGE: _("Purge the queue %(queue)s?"),
}
_ANSWERS = {
    QueueVerb.PAUSE: _("Pause the queue"),
    QueueVerb.RESUME: _("Resume the queue"),
    QueueVerb.PURGE: _("Purge the queue"),
}
#: Each with its icon, its tone, and what is so.
_EFFECTS = {
    QueueVerb.PAUSE: (
        ("paused", "", _("Workers take <b>nothing more</b> from it, in any of its priorities.")),
        ("performing", "", _("What they have in hand goes on to its end.")),
        ("info", "", _("What is enqueued meanwhile waits, and nothing of it is lost.")),
        ("waiting", "", _("Runs whose steps it carries wait, and do not count as overdue.")),
    ),
    QueueVerb.RESUME: (
        ("redo", "", _("Workers take its messages again, within a moment.")),
        ("info", "", _("What has become due meanwhile is taken first, the oldest before others.")),
    ),
    QueueVerb.PURGE: (
        (
            "cancelled",
            "bad",
            _(
                "<b>Jobs</b> that nobody has in hand do not run any more. They go to the queue's archive."
            ),
        ),
        (
            "fanout",
            "bad",
            _(
                "<b>Members of batches</b> among them count as discarded there. A batch that ends with "
                "that sends its callbacks, and its run goes on as after a failure."
            ),
        ),
        ("step", "", _("<b>Steps of runs</b> stay, and run: pause or cancel the runs themselves.")),
        ("performing", "", _("Jobs that workers have in hand go on.")),
        ("shield", "", _("What is enqueued after the press is <b>not touched</b>.")),
    ),
}


def asks(queue: QueueTotal, viewer: Viewer, here: Callable[..., str]) -> Iterator[Ask]:
    """Yield what can be done with a queue; `here` gives the page's address with a dialog's parameters."""
    for verb in (QueueVerb.RESUME if queue.pause else QueueVerb.PAUSE, QueueVerb.PURGE):
        if viewer.may(verb):
            href = here(ask=verb, of=queue.name, _anchor="confirm")
            label = viewer.words.gettext(_LABELS[verb])
            yield Ask(label, _ICONS[verb], href, danger=verb is QueueVerb.PURGE)


def dialog(press: QueuePress, queue: QueueTotal, viewer: Viewer) -> Confirmation | None:
    """Return the dialog that was asked for; None when it could only lead to a refusal."""
    words, verb = viewer.words, press.verb
    if not viewer.may(verb):
        return None
    purges = verb is QueueVerb.PURGE
    return Confirmation(
        question=words.gettext(_QUESTIONS[verb], queue=queue.name),
        about=queues.pause_told(queue.pause, words)
        if queue.pause and not purges
        else _about(queue, words),
        effects=tuple(Effect(icon, words.rich(text), tone) for icon, tone, text in _EFFECTS[verb]),
        answer=words.gettext(_ANSWERS[verb]),
        danger=purges,
        fields={"ask": verb.value, "of": queue.name},
        reason=press.reason,
        to_type=queue.name if purges else "",
        typed=press.typed,
        problem=press.problem,
    )


def _about(queue: QueueTotal, words: Words) -> Markup:
    return words.rich(
        "Due: %(due)s, in flight: %(in_flight)s, later: %(later)s.",
        queue=code(queue.name),
        due=words.count(queue.visible),
        in_flight=words.count(queue.in_flight),
        later=words.count(queue.later),
    )


def paused(result: PauseResult, queue: str, words: Words) -> Toast:
    """Tell that a queue is paused, or who was first."""
    if result.done:
        text = words.gettext("%(queue)s is paused: workers take nothing more from it.", queue=queue)
        return Toast("good", text)
    told = queues.pause_told(result.pause, words).striptags()
    text = words.gettext("Nothing was done: %(queue)s was already paused.", queue=queue)
    return Toast("warn", f"{text} {told}")


def resumed(ended: QueuePause | None, queue: str, words: Words) -> Toast:
    """Tell that a queue goes on, or that it was not paused."""
    if ended is None:
        return Toast(
            "warn", words.gettext("Nothing was done: %(queue)s is not paused.", queue=queue)
        )
    return Toast("good", words.gettext("%(queue)s goes on: workers take it again.", queue=queue))


def purged(result: Purged, queue: str, words: Words) -> Toast:
    """Tell how many jobs were discarded, and what stayed."""
    told = [
        words.ngettext(
            "%(num)s job of %(queue)s was discarded.",
            "%(num)s jobs of %(queue)s were discarded.",
            result.discarded,
            queue=queue,
        )
    ]
    if result.steps:
        told.append(
            words.ngettext(
                "%(count)s step of a run stayed.",
                "%(count)s steps of runs stayed.",
                result.steps,
                count=words.count(result.steps),
            )
        )
    if result.in_hand:
        told.append(
            words.ngettext(
                "%(count)s job was in a worker's hands and goes on.",
                "%(count)s jobs were in workers' hands and go on.",
                result.in_hand,
                count=words.count(result.in_hand),
            )
        )
    if result.may_be_more:
        told.append(words.gettext("Half a minute was not enough for all: purge it again."))
    return Toast("good" if result.discarded else "warn", " ".join(told))


def gone(queue: str, words: Words) -> Toast:
    """Tell that there is no such queue."""
    return Toast(
        "warn", words.gettext("Nothing was done: there is no queue %(queue)s.", queue=queue)
    )
