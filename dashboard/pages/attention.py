"""The runs that need somebody: a row for each cause, and what can be done about all its runs at once."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from hashlib import blake2s
from typing import TYPE_CHECKING, ClassVar

from pgbus.dashboard.pages.workflows import query_of
from pgbus.dashboard.parameters import BadParameter
from pgbus.dashboard.presenters import attention as presenter
from pgbus.dashboard.presenters.bulk import cut
from pgbus.dashboard.presenters.sentences import short
from pgbus.dashboard.presenters.status import stuck_badge
from pgbus.dashboard.words import _
from pgbus.engine.insights import counts, processes, stuck
from pgbus.engine.insights.processes import DISPATCHER
from pgbus.engine.insights.runs import NO_ERROR, RunFilter
from pgbus.engine.insights.stuck import PAUSED_REASONS, StuckReason
from pgbus.engine.runner.bulk import LIMIT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from markupsafe import Markup

    from pgbus.dashboard.console import Viewer
    from pgbus.dashboard.presenters.confirmations import Effect
    from pgbus.dashboard.presenters.status import Badge
    from pgbus.engine.insights.stuck import Attention, GroupKey, StuckGroup
    from pgbus.engine.states import Verb
    from pgbus.engine.storage.database import Connection

#: Fifty rows of long names and errors stay well under what a page may weigh.
PAGE_SIZE = 50
_MOST_TABS = 20
_LONGEST_LABEL = 40


@dataclass(frozen=True, slots=True)
class Press:
    """A verb on a group, as a page of the moment `stuck_before` showed it: with so many runs."""

    verb: Verb
    group: GroupKey
    count: int
    stuck_before: datetime


@dataclass(frozen=True, slots=True)
class ClassTab:
    """One class to look at, or one step of it, and how many of its runs are stuck."""

    label: str
    name: str | None
    count: str
    href: str
    current: bool


@dataclass(frozen=True, slots=True)
class Ask:
    """A link that asks whether to act on a group."""

    verb: Verb
    label: str
    icon: str
    href: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLine:
    """One cause: its runs, why they are stuck, since when, and what can be done."""

    key: str
    count: str
    shows: str
    href: str
    badge: Badge
    step_name: str
    workflow_class: str
    error_class: str | None
    message: str | None
    told: Markup | None
    first: Markup
    last: Markup
    asks: tuple[Ask, ...]
    class_loaded: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialog:
    """What a press will do, to be confirmed; `fields` come with the form."""

    question: str
    answer: str
    verb: Verb
    badge: Badge
    step_name: str
    workflow_class: str
    error_class: str | None
    effects: tuple[Effect, ...]
    fields: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionPage:
    """What the page shows; `lede` is None when nothing is stuck."""

    template: ClassVar[str] = "attention.html"

    lede: Markup | None
    tabs: tuple[ClassTab, ...]
    groups: tuple[GroupLine, ...]
    bounds: str
    exhaustive: bool
    most: str
    earlier: str | None
    later: str | None
    everywhere: str
    narrowed: str | None
    step: str | None
    dialog: Dialog | None
    back: str


def load(
    connection: Connection,
    viewer: Viewer,
    workflow_class: str | None,
    step: str | None,
    *,
    start: int,
    press: Press | None,
) -> AttentionPage:
    """Return the groups from the `start`th, of a step of a class, of a class, or of all.

    With a dialog when one is asked for.
    """
    if workflow_class is not None and not _is_class_name(connection, workflow_class):
        raise BadParameter(
            "workflow_class", workflow_class, _("a class, such as shop.OrderWorkflow")
        )
    step = step if workflow_class else None
    found = stuck.groups(connection, viewer.settings, workflow_class, step)
    dispatched = _dispatched(connection, viewer, found)
    here = _Here(viewer, workflow_class, step, found.as_of, dispatched=dispatched)
    start = min(start, _last_start(found))
    shown = found.groups[start - 1 : start - 1 + PAGE_SIZE]
    following = start + PAGE_SIZE
    return AttentionPage(
        lede=_lede(found, viewer),
        tabs=tuple(_tabs(found, viewer, workflow_class, step)),
        groups=tuple(here.line(group, start) for group in shown),
        bounds=_bounds(found, start, len(shown), viewer),
        exhaustive=found.exhaustive,
        most=viewer.words.number(LIMIT),
        earlier=here.url(max(1, start - PAGE_SIZE)) if start > 1 else None,
        later=here.url(following) if following <= len(found.groups) else None,
        everywhere=viewer.url("attention"),
        narrowed=workflow_class,
        step=step,
        dialog=here.dialog(press) if press else None,
        back=here.url(start),
    )


def _dispatched(connection: Connection, viewer: Viewer, found: Attention) -> bool:
    """Tell whether overdue runs are sent again by themselves; where there are none, it does not matter."""
    if all(group.key.reason is not StuckReason.OVERDUE for group in found.groups):
        return True
    return bool(processes.fleet(connection, viewer.settings, limit=0).alive.get(DISPATCHER))


def _last_start(found: Attention) -> int:
    return 1 + max(len(found.groups) - 1, 0) // PAGE_SIZE * PAGE_SIZE


def _is_class_name(connection: Connection, name: str) -> bool:
    """Tell whether a class could have this name; what ran here once has the name of one anyway."""
    usual = all(part.isidentifier() or part == "<locals>" for part in name.split("."))
    return usual or name in counts.known_classes(connection)


def _lede(found: Attention, viewer: Viewer) -> Markup | None:
    if not found.groups:
        return None
    return presenter.lede(found.groups, found.total, viewer.words, exhaustive=found.exhaustive)


def _tabs(
    found: Attention, viewer: Viewer, current: str | None, step: str | None
) -> Iterator[ClassTab]:
    """Yield all classes, those with the most stuck runs, and the one that is looked at; after it its step."""
    words = viewer.words
    total = sum(found.by_class.values())
    everything = words.gettext("All classes")
    yield ClassTab(everything, None, words.number(total), viewer.url("attention"), current is None)
    names = sorted(found.by_class, key=lambda name: (-found.by_class[name], name))
    shown = names[:_MOST_TABS]
    if current is not None and current not in shown:
        shown.append(current)
    namesakes = Counter(map(short, names))
    for name in shown:
        yield ClassTab(
            name if namesakes[short(name)] > 1 else cut(short(name), _LONGEST_LABEL),
            name,
            words.number(found.by_class.get(name, 0)),
            viewer.url("attention", workflow_class=name),
            name == current and step is None,
        )
        if step is not None and name == current:
            href = viewer.url("attention", workflow_class=name, current_step=step)
            label = cut(step, _LONGEST_LABEL)
            yield ClassTab(label, step, words.number(found.total), href, current=True)


def _bounds(found: Attention, start: int, number: int, viewer: Viewer) -> str:
    words = viewer.words
    if found.exhaustive and number == len(found.groups):
        return words.gettext("All groups are shown, the biggest first.")
    return words.gettext(
        "Groups %(first)s to %(last)s of %(all)s, the biggest first.",
        first=words.number(start),
        last=words.number(start + number - 1),
        all=words.number(len(found.groups)),
    )


class _Here:
    """The page as one viewer sees it: what its rows and links are made of."""

    def __init__(
        self,
        viewer: Viewer,
        workflow_class: str | None,
        step: str | None,
        as_of: datetime,
        *,
        dispatched: bool,
    ) -> None:
        self._viewer = viewer
        self._narrowed = {"workflow_class": workflow_class, "current_step": step}
        self._as_of = as_of
        self._dispatched = dispatched

    def url(self, start: int, **press: object) -> str:
        first = start if start > 1 else None
        return self._viewer.url("attention", **self._narrowed, start=first, **press)

    def line(self, group: StuckGroup, start: int) -> GroupLine:
        key, words = group.key, self._viewer.words
        wanted = RunFilter(
            workflow_class=key.workflow_class,
            current_step=key.step_name,
            stuck=key.reason,
            error_class=key.error_class or NO_ERROR,
            held=(key.held or "none") if key.reason in PAUSED_REASONS else None,
        )
        return GroupLine(
            key=blake2s(repr(key).encode(), digest_size=8).hexdigest(),
            count=words.number(group.count),
            shows=words.ngettext("%(num)s run, show it", "%(num)s runs, show them", group.count),
            href=self._viewer.url("workflows", **query_of(wanted)),
            badge=stuck_badge(key.reason, key.error_class),
            step_name=key.step_name,
            workflow_class=key.workflow_class,
            error_class=key.error_class,
            message=self._message(group),
            told=presenter.told(group, self._viewer.settings, words, dispatched=self._dispatched),
            first=words.ago(group.first_at),
            last=words.ago(group.last_at),
            asks=tuple(self._asks(group, start)),
            class_loaded=key.class_loaded,
        )

    def _message(self, group: StuckGroup) -> str | None:
        if not group.newest_error_message:
            return None
        message = group.newest_error_message
        whole = len(message) < stuck.LONGEST_MESSAGE
        return cut(str(self._viewer.shown("error", message, whole=whole)))

    def _asks(self, group: StuckGroup, start: int) -> Iterator[Ask]:
        for verb in group.key.available_actions:
            if self._viewer.may(verb):
                fields = _fields(Press(verb, group.key, group.count, self._as_of))
                asked = presenter.press(verb, group.key)
                label = presenter.label(asked, group.count, self._viewer.words)
                href = self.url(start, **fields, _anchor="confirm")
                yield Ask(verb, label, presenter.ICONS[asked], href)

    def dialog(self, press: Press) -> Dialog | None:
        """Return the dialog that was asked for; None when it could only lead to a refusal."""
        verb, key, words = press.verb, press.group, self._viewer.words
        if verb not in key.available_actions or not self._viewer.may(verb):
            return None
        number, asked = min(press.count, LIMIT), presenter.press(verb, key)
        return Dialog(
            question=presenter.question(asked, number, press.count, words),
            answer=presenter.answer(asked, number, words),
            verb=verb,
            badge=stuck_badge(key.reason, key.error_class),
            step_name=key.step_name,
            workflow_class=key.workflow_class,
            error_class=key.error_class,
            effects=tuple(
                presenter.effects(asked, key, number, press.count, press.stuck_before, words)
            ),
            fields=_fields(press)
            | {name: value for name, value in self._narrowed.items() if value is not None},
        )


def _fields(press: Press) -> dict[str, str]:
    """Return a press as the parameters of a link or a form."""
    key = press.group
    return {
        "verb": press.verb.value,
        "of_class": key.workflow_class,
        "step": key.step_name,
        "stuck": key.reason.value,
        "error_class": key.error_class or "",
        "held": key.held or "",
        "count": str(press.count),
        "as_of": press.stuck_before.isoformat(),
    }
