"""What a class's page opens with: the one change for the worse, or that there is none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgbus.dashboard.presenters import marks
from pgbus.dashboard.words import _, code
from pgbus.engine.insights.headline import Worse

if TYPE_CHECKING:
    from collections.abc import Callable

    from markupsafe import Markup

    from pgbus.dashboard.words import Words
    from pgbus.engine.insights.headline import Headline

_RATES = _("<strong>%(now)s of the attempts of %(step)s now fail</strong>, before %(before)s.")
_RUN_TIMES = _(
    "<strong>One in twenty attempts of %(step)s now takes longer than %(now)s</strong>, before %(before)s."
)


def verdict(
    found: Headline | None,
    words: Words,
    *,
    within: str,
    ran: bool,
    attention: int,
    attention_href: Callable[[str | None], str],
    started_href: str,
    ended_href: str,
) -> tuple[Markup, ...]:
    """Say what changed for the worse and since when; else how many need attention, that nothing `ran`, or is wrong.

    The links are of the runs that need attention, of the class or at a step, that started, and that ended.
    """
    if found is None and attention:
        return (
            words.nrich(
                "No change stands out %(within)s; <strong>%(count)s run needs attention</strong>.",
                "No change stands out %(within)s; <strong>%(count)s runs need attention</strong>.",
                attention,
                within=within,
                count=marks.link(attention_href(None), words.number(attention)),
            ),
        )
    if found is None:
        nothing = _("Nothing stands out %(within)s.") if ran else _("Nothing ran %(within)s.")
        return (words.rich(nothing, within=within),)
    match found.kind:
        case Worse.FAILURE_RATE:
            return (_compared(_RATES, found, words, words.percent), _begun(found, words))
        case Worse.RUN_TIME:
            return (_compared(_RUN_TIMES, found, words, words.duration), _begun(found, words))
        case Worse.PILE_UP:
            told = words.nrich(
                "<strong>%(count)s run needs attention at %(step)s</strong>, %(time)s.",
                "<strong>%(count)s runs need attention at %(step)s</strong>, the first %(time)s.",
                int(found.now),
                count=marks.link(attention_href(found.step_name), words.number(int(found.now))),
                step=code(found.step_name or ""),
                time=words.ago(found.since),
            )
        case Worse.FALLING_BEHIND:
            told = words.rich(
                "<strong>Fewer runs end than start</strong>. Started %(within)s: %(started)s, ended: %(ended)s.",
                started=marks.link(started_href, words.number(int(found.before))),
                ended=marks.link(ended_href, words.number(int(found.now))),
                within=within,
            )
    return (told,)


def _compared(key: str, found: Headline, words: Words, told: Callable[[float], str]) -> Markup:
    return words.rich(
        key, step=code(found.step_name or ""), now=told(found.now), before=told(found.before)
    )


def _begun(found: Headline, words: Words) -> Markup:
    name = None if found.revision is None else marks.revision(found.revision)
    if found.came_back:
        return (
            words.rich("It came back with revision %(revision)s.", revision=name)
            if name
            else words.rich("It came back with an unknown revision.")
        )
    since = words.ago(found.since)
    if name is None:
        return words.rich("It began with an unknown revision, first seen %(time)s.", time=since)
    return words.rich(
        "It began with revision %(revision)s, first seen %(time)s.", revision=name, time=since
    )
