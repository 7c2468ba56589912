"""What was given up: the list of dead letters, and one with its error."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from pgbus.dashboard.pages import dialogs
from pgbus.dashboard.pages.narrowing import Narrowing, narrowing, query_of
from pgbus.dashboard.presenters import job_actions
from pgbus.dashboard.presenters import messages as message_words
from pgbus.dashboard.presenters.job_actions import JobVerb
from pgbus.dashboard.presenters.pager import Pager, pager
from pgbus.engine.insights import dead_letters, queues
from pgbus.engine.jobs.bulk import Press

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from markupsafe import Markup

    from pgbus.dashboard.console import Viewer
    from pgbus.dashboard.presenters.attempts import ErrorView
    from pgbus.dashboard.presenters.confirmations import Ask, Confirmation
    from pgbus.dashboard.presenters.job_actions import BulkPress, JobPress
    from pgbus.dashboard.presenters.messages import MessageView
    from pgbus.engine.insights.dead_letters import DeadLetter
    from pgbus.engine.insights.jobs import JobFilter
    from pgbus.engine.insights.queues import DeadLetters
    from pgbus.engine.storage.database import Connection

PAGE_SIZE = 25
_MOST_TABS = 20
_VERBS = (JobVerb.RETRY_LETTER, JobVerb.DISCARD_LETTER)
_PRESSES = (Press.RETRY_DEAD_LETTERS, Press.DISCARD_DEAD_LETTERS)


@dataclass(frozen=True, slots=True)
class LetterTab:
    """The dead letters of one queue, or of all; `count` where it is that of the list."""

    label: str
    count: str | None
    href: str
    current: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterLine:
    """One dead letter, why it is one, and what can be done with it."""

    message: MessageView
    href: str
    call: str | None
    error_class: str | None
    error: str | None
    source: str
    tries: str
    asks: tuple[Ask, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLettersPage:
    """What the list shows; `empty` when there is no dead letter at all."""

    template: ClassVar[str] = "dead_letters.html"

    opening: Markup
    tabs: tuple[LetterTab, ...]
    narrowing: Narrowing
    asks: tuple[Ask, ...]
    letters: tuple[LetterLine, ...]
    empty: bool
    pager: Pager
    dialog: Confirmation | None
    back: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterPage:
    """What the page of one dead letter shows."""

    template: ClassVar[str] = "dead_letter.html"

    letter: LetterLine
    body: Markup | None
    failure: ErrorView | None
    dialog: Confirmation | None
    back: str


def load(
    connection: Connection,
    viewer: Viewer,
    wanted: JobFilter,
    press: JobPress | BulkPress | None,
    *,
    after: str | None,
    before: str | None,
) -> DeadLettersPage:
    """Return the page of the dead letters that match; raise `QueueNotFound` and `BadCursor`."""
    settings = viewer.settings
    held = queues.dead_letters(connection, settings)
    found = dead_letters.page(
        connection, settings, wanted, limit=PAGE_SIZE, after=after, before=before
    )
    url = functools.partial(viewer.url, "dead_letters", **query_of(wanted))
    here = functools.partial(url, after=after, before=before)
    return DeadLettersPage(
        opening=_opening(held, viewer),
        tabs=_tabs(held, wanted, viewer),
        narrowing=narrowing(
            connection, viewer, "dead_letters", wanted, ("queue", "job", "error_class")
        ),
        asks=job_actions.asks_all(_PRESSES, wanted, viewer, url)
        if found.letters or found.following
        else (),
        letters=tuple(_line(letter, viewer, here) for letter in found.letters),
        empty=not any(one.messages for one in held),
        pager=pager(url, moved=bool(after or before), newer=found.preceding, older=found.following),
        dialog=dialogs.dialog(connection, viewer, press) if press else None,
        back=here(),
    )


def load_one(
    connection: Connection, viewer: Viewer, queue: str, message_id: int, press: JobPress | None
) -> DeadLetterPage:
    """Return the page of a dead letter, by its queue's physical name; raise `QueueNotFound` or `MessageNotFound`."""
    detail = dead_letters.one(connection, viewer.settings, queue, message_id)
    letter = detail.letter
    here = functools.partial(viewer.url, "dead_letter", queue=queue, number=message_id)
    return DeadLetterPage(
        letter=_line(letter, viewer, here),
        body=message_words.body(letter.message.body, viewer),
        failure=message_words.error(letter.error_class, letter.error_message, detail.error, viewer),
        dialog=dialogs.dialog(connection, viewer, press) if press else None,
        back=here(),
    )


def _opening(held: Sequence[DeadLetters], viewer: Viewer) -> Markup:
    words, number = viewer.words, sum(one.messages for one in held)
    newest = max((one.newest_at for one in held if one.newest_at), default=None)
    if not number or newest is None:
        return words.rich("No job was given up.")
    return words.nrich(
        "<strong>%(count)s dead letter</strong> waits for a decision: it came %(when)s.",
        "<strong>%(count)s dead letters</strong> wait for a decision; the newest came %(when)s.",
        number,
        count=words.count(number),
        when=words.ago(newest),
    )


def _tabs(held: Sequence[DeadLetters], wanted: JobFilter, viewer: Viewer) -> tuple[LetterTab, ...]:
    """Return all, and the queues with the most; under a filter nobody counted them."""
    words, counted = viewer.words, wanted.job is None and wanted.error_class is None
    full = sorted((one for one in held if one.messages), key=lambda one: -one.messages)
    number: dict[str | None, int] = {None: sum(one.messages for one in held)}
    number |= {one.logical: one.messages for one in full[:_MOST_TABS]}
    return tuple(
        LetterTab(
            words.pgettext("tab: dead letters", "All") if queue is None else queue,
            words.count(messages) if counted else None,
            viewer.url("dead_letters", **{**query_of(wanted), "queue": queue}),
            queue == wanted.queue,
        )
        for queue, messages in number.items()
    )


def _line(letter: DeadLetter, viewer: Viewer, here: Callable[..., str]) -> LetterLine:
    words, message = viewer.words, letter.message
    return LetterLine(
        message=message_words.view(message, viewer, dead=True),
        href=viewer.url("dead_letter", queue=message.queue, number=message.message_id),
        call=message_words.call(message.body, viewer),
        error_class=letter.error_class,
        error=message_words.summary(letter.error_message, viewer),
        source=letter.source or message.logical,
        tries="—" if letter.deliveries is None else words.number(letter.deliveries),
        asks=job_actions.asks(_VERBS, message_words.key(message), message.read_count, viewer, here),
    )
