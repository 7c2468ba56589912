"""What can be done with jobs and dead letters: what asks before, what a press will do, and what it did."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from pgbus.dashboard.presenters import bulk
from pgbus.dashboard.presenters.confirmations import Ask, Confirmation
from pgbus.dashboard.presenters.confirmations import Effect as Consequence
from pgbus.dashboard.toasts import Toast
from pgbus.dashboard.words import _
from pgbus.engine.insights.jobs import JobFilter
from pgbus.engine.jobs.bulk import Press
from pgbus.engine.jobs.control import Effect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import datetime

    from markupsafe import Markup

    from pgbus.dashboard.console import Viewer
    from pgbus.dashboard.words import Words
    from pgbus.engine.runner.bulk import BulkResult


class JobVerb(StrEnum):
    """What can be asked of a job or a dead letter, as the host's `can` is asked for it."""

    RETRY = "retry_job"
    DISCARD = "discard_job"
    RETRY_LETTER = "retry_dead_letter"
    DISCARD_LETTER = "discard_dead_letter"


#: What the host must allow for a press on many.
ALLOWED_BY = {
    Press.RETRY_FAILED: JobVerb.RETRY,
    Press.DISCARD_FAILED: JobVerb.DISCARD,
    Press.DISCARD_ENQUEUED: JobVerb.DISCARD,
    Press.RETRY_DEAD_LETTERS: JobVerb.RETRY_LETTER,
    Press.DISCARD_DEAD_LETTERS: JobVerb.DISCARD_LETTER,
}
OF_LETTERS = frozenset(
    {
        *(JobVerb.RETRY_LETTER, JobVerb.DISCARD_LETTER),
        *(Press.RETRY_DEAD_LETTERS, Press.DISCARD_DEAD_LETTERS),
    }
)
_DISCARDS = frozenset({JobVerb.DISCARD, JobVerb.DISCARD_LETTER})


@dataclass(frozen=True, slots=True)
class JobPress:
    """A verb on a message, as a page showed it: delivered `seen` times."""

    verb: JobVerb
    queue: str
    message_id: int
    seen: int | None


@dataclass(frozen=True, slots=True)
class BulkPress:
    """A verb on all that match, as a page of the moment `until` showed them: so many, None where nobody counted.

    With `behind` they are those behind that place of the queues.
    """

    verb: Press
    wanted: JobFilter
    until: datetime
    count: int | None
    behind: str | None = None


#: A job that was not tried yet waits for its time.
_RUN_NOW = _("Run now…")
_LABELS = {False: _("Retry…"), True: _("Discard…")}
_LABELS_OF_ALL = {False: _("Retry all…"), True: _("Discard all…")}
_LABELS_OF_MATCHES = {False: _("Retry all that match…"), True: _("Discard all that match…")}
_QUESTIONS = {
    JobVerb.RETRY: _("Run this job now?"),
    JobVerb.DISCARD: _("Discard this job?"),
    JobVerb.RETRY_LETTER: _("Send this dead letter back to its queue?"),
    JobVerb.DISCARD_LETTER: _("Discard this dead letter?"),
}
_ANSWERS = {
    JobVerb.RETRY: _("Run it now"),
    JobVerb.DISCARD: _("Discard it"),
    JobVerb.RETRY_LETTER: _("Send it back"),
    JobVerb.DISCARD_LETTER: _("Discard it"),
}
#: What is asked when one press cannot take all.
_FIRST = {
    Press.RETRY_FAILED: _("Run the first %(number)s failed jobs now?"),
    Press.DISCARD_FAILED: _("Discard the first %(number)s failed jobs?"),
    Press.DISCARD_ENQUEUED: _("Discard the first %(number)s enqueued jobs?"),
    Press.RETRY_DEAD_LETTERS: _("Send the first %(number)s dead letters back to their queues?"),
    Press.DISCARD_DEAD_LETTERS: _("Discard the first %(number)s dead letters?"),
}
_ARCHIVED = (
    "info",
    "",
    _("It goes to the archive of its queue, with who discarded it and why."),
)
_MEMBERS_DISCARDED = (
    "fanout",
    "",
    _("A batch counts its job as discarded, and goes on as after a failed one."),
)
_MEMBERS_COUNTED = (
    "fanout",
    "",
    _("A batch that it was part of has counted it as failed, and is not changed."),
)
#: Each with its icon, its tone, and what is so.
_EFFECTS = {
    JobVerb.RETRY: (
        (
            "play1",
            "",
            _("What is retried runs as soon as a worker is free, whatever its delay was."),
        ),
        ("info", "", _("Tries are still counted: after its last one a job is a dead letter.")),
    ),
    JobVerb.DISCARD: (
        (
            "cancelled",
            "bad",
            _("What is discarded does not run any more. What runs just now is left alone."),
        ),
        _MEMBERS_DISCARDED,
        _ARCHIVED,
    ),
    JobVerb.RETRY_LETTER: (
        (
            "redo",
            "",
            _("What is sent back goes to the queue it came from; its tries start over."),
        ),
        _MEMBERS_COUNTED,
    ),
    JobVerb.DISCARD_LETTER: (
        ("cancelled", "bad", _("What is discarded is not kept for a decision any more.")),
        _MEMBERS_COUNTED,
        _ARCHIVED,
    ),
}
_LEFT_ALONE = ("skipped", "", _("What has moved on is left alone and counted in the result."))

_DONE = {
    JobVerb.RETRY: _("%(job)s runs as soon as a worker is free."),
    JobVerb.DISCARD: _("%(job)s is discarded."),
    JobVerb.RETRY_LETTER: _("%(job)s is in its queue again; its tries start over."),
    JobVerb.DISCARD_LETTER: _("%(job)s is discarded."),
}
_NOT_DONE = {
    Effect.DUE: _("Nothing was done: %(job)s is due already and waits only for a worker."),
    Effect.IN_HAND: _("Nothing was done: a worker has %(job)s in hand."),
    Effect.MOVED_ON: _("Nothing was done: %(job)s was tried again after the page was read."),
    Effect.OF_A_RUN: _("Nothing was done: this is a step of a run; act on the run's own page."),
    Effect.GONE: _("Nothing was done: %(job)s is not there any more."),
}
_ALL_DONE = {
    JobVerb.RETRY: _("Retried %(done)s."),
    JobVerb.DISCARD: _("Discarded %(done)s."),
    JobVerb.RETRY_LETTER: _("Sent back %(done)s."),
    JobVerb.DISCARD_LETTER: _("Discarded %(done)s."),
}
_ALL_DONE_BUT = {
    JobVerb.RETRY: _("Retried %(done)s; %(moved)s had already moved on."),
    JobVerb.DISCARD: _("Discarded %(done)s; %(moved)s had already moved on."),
    JobVerb.RETRY_LETTER: _("Sent back %(done)s; %(moved)s had already moved on."),
    JobVerb.DISCARD_LETTER: _("Discarded %(done)s; %(moved)s had already moved on."),
}
_IN_DOUBT = _("PostgreSQL went away while %(id)s was in hand, so check whether that one is done.")


def asks(
    verbs: tuple[JobVerb, ...], of: str, seen: int, viewer: Viewer, here: Callable[..., str]
) -> tuple[Ask, ...]:
    """Return what can be done with a message; `here` gives the page's address with a dialog's parameters."""
    labels = {} if seen else {JobVerb.RETRY: _RUN_NOW}
    return tuple(
        Ask(
            viewer.words.gettext(labels.get(verb, _LABELS[verb in _DISCARDS])),
            _icon(verb),
            here(ask=verb, of=of, seen=seen, _anchor="confirm"),
            danger=verb in _DISCARDS,
        )
        for verb in verbs
        if viewer.may(verb)
    )


def asks_all(
    verbs: tuple[Press, ...], wanted: JobFilter, viewer: Viewer, here: Callable[..., str]
) -> tuple[Ask, ...]:
    """Return what can be done with all that a page's filter matches, as of now."""
    moment = viewer.words.now.isoformat()
    labels = _LABELS_OF_ALL if wanted == JobFilter() else _LABELS_OF_MATCHES
    return tuple(
        Ask(
            viewer.words.gettext(labels[ALLOWED_BY[verb] in _DISCARDS]),
            _icon(ALLOWED_BY[verb]),
            here(ask=verb, as_of=moment, _anchor="confirm"),
            danger=ALLOWED_BY[verb] in _DISCARDS,
        )
        for verb in verbs
        if viewer.may(ALLOWED_BY[verb])
    )


def dialog(press: JobPress, about: Markup, words: Words) -> Confirmation:
    """Return what is asked before a verb on one message."""
    seen = "" if press.seen is None else str(press.seen)
    return Confirmation(
        question=words.gettext(_QUESTIONS[press.verb]),
        about=about,
        effects=tuple(_consequences(press.verb, words)),
        answer=words.gettext(_ANSWERS[press.verb]),
        danger=press.verb in _DISCARDS,
        fields={
            "ask": press.verb.value,
            "of": f"{press.queue}:{press.message_id}",
            "seen": seen,
        },
    )


def dialog_for_all(
    press: BulkPress,
    found: int,
    about: Markup,
    words: Words,
    *,
    limit: int,
    unseen: bool = False,
) -> Confirmation:
    """Return what is asked before a verb on so many; more than `limit` are taken by several presses.

    `unseen`: there are messages that nobody looked at.
    """
    verb, number = ALLOWED_BY[press.verb], min(found, limit)
    return Confirmation(
        question=_question(press.verb, number, words, maybe_more=found > limit),
        about=about,
        effects=(
            *_consequences(verb, words),
            *_bounds(press, words, number, found, limit, unseen=unseen),
        ),
        answer=words.gettext(_all_answer(verb), number=words.number(number)),
        danger=verb in _DISCARDS,
        fields={
            "ask": press.verb.value,
            "as_of": press.until.isoformat(),
            "count": str(found),
            **({"behind": press.behind} if press.behind else {}),
        },
    )


def dialog_for_none(about: Markup, further_href: str, words: Words) -> Confirmation:
    """Return what is said where none of those that were looked at matches; `further_href` looks on."""
    told = words.rich("None of those looked at so far matches. There are more.")
    return Confirmation(
        question=words.gettext("Nothing found so far"),
        about=about,
        effects=(Consequence("info", told),),
        answer="",
        danger=False,
        fields={},
        further_href=further_href,
    )


def _consequences(verb: JobVerb, words: Words) -> Iterator[Consequence]:
    for icon, tone, text in _EFFECTS[verb]:
        yield Consequence(icon, words.rich(text), tone)


def _bounds(
    press: BulkPress, words: Words, number: int, found: int, limit: int, *, unseen: bool
) -> Iterator[Consequence]:
    icon, tone, text = _LEFT_ALONE
    yield Consequence(icon, words.rich(text), tone)
    if found > limit:
        more = words.rich(
            "One press takes at most %(number)s, oldest first. Press again for the others.",
            number=words.number(number),
        )
        yield Consequence("info", more)
    elif unseen:
        yield Consequence("info", words.rich("Not all messages were looked at: there may be more."))
    late = words.rich(
        "What came after %(time)s, when the page was read, is <b>not touched</b>.",
        time=words.clock(press.until),
    )
    yield Consequence("shield", late)


def _question(verb: Press, number: int, words: Words, *, maybe_more: bool) -> str:
    if maybe_more:
        return words.gettext(_FIRST[verb], number=words.number(number))
    match verb:
        case Press.RETRY_FAILED:
            return words.ngettext(
                "Run %(num)s failed job now?", "Run %(num)s failed jobs now?", number
            )
        case Press.DISCARD_FAILED:
            return words.ngettext(
                "Discard %(num)s failed job?",
                "Discard %(num)s failed jobs?",
                number,
            )
        case Press.DISCARD_ENQUEUED:
            return words.ngettext(
                "Discard %(num)s enqueued job?",
                "Discard %(num)s enqueued jobs?",
                number,
            )
        case Press.RETRY_DEAD_LETTERS:
            return words.ngettext(
                "Send %(num)s dead letter back to its queue?",
                "Send %(num)s dead letters back to their queues?",
                number,
            )
    return words.ngettext("Discard %(num)s dead letter?", "Discard %(num)s dead letters?", number)


def _all_answer(verb: JobVerb) -> str:
    match verb:
        case JobVerb.RETRY:
            return _("Run %(number)s now")
        case JobVerb.RETRY_LETTER:
            return _("Send back %(number)s")
    return _("Discard %(number)s")


def outcome(press: JobPress, effect: Effect, job: str | None, words: Words) -> Toast:
    """Tell what came of a verb on a message; one without a job's name is called by its queue and number."""
    called = job or f"{press.queue} {press.message_id}"
    if effect is Effect.DONE:
        return Toast("good", words.gettext(_DONE[press.verb], job=called))
    return Toast("warn", words.gettext(_NOT_DONE[effect], job=called))


def outcome_of_all(verb: Press, result: BulkResult, failure: str | None, words: Words) -> Toast:
    """Tell what came of a press on many; `failure` is the first, as it may be shown."""
    if bulk.is_nothing(result):
        return Toast("warn", words.gettext("Nothing was done: none of them is there any more."))
    key = (_ALL_DONE_BUT if result.moved_on else _ALL_DONE)[ALLOWED_BY[verb]]
    said = words.gettext(key, done=words.number(result.done), moved=words.number(result.moved_on))
    more = bulk.besides(result, failure, words, in_doubt=_IN_DOUBT)
    return Toast(bulk.tone(result), " ".join((said, *more)))


def _icon(verb: JobVerb) -> str:
    if verb in _DISCARDS:
        return "cancelled"
    return "play1" if verb is JobVerb.RETRY else "redo"
