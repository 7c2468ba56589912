"""What a class's page opens with: the one change for the worse, or that nothing stands out."""

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
    started_href: str,
    ended_href: str,
) -> tuple[Markup, ...]:
    """Say what changed for the worse and since when; the links are of the runs that started, and ended."""
    if found is None:
        return (words.rich("Nothing stands out %(within)s.", within=within),)
    match found.kind:
        case Worse.FAILURE_RATE:
            return (_compared(_RATES, found, words, words.percent), _begun(found, words))
        case Worse.RUN_TIME:
            return (_compared(_RUN_TIMES, found, words, words.duration), _begun(found, words))
        case Worse.PILE_UP:
            told = words.nrich(
                "<strong>%(num)s run needs attention at %(step)s</strong>, %(time)s.",
                "<strong>%(num)s runs need attention at %(step)s</strong>, the first %(time)s.",
                int(found.now),
                step=code(found.step_name or ""),
                time=words.ago(found.since),
            )
        case Worse.FALLING_BEHIND:
            told = words.rich(
                "<strong>Fewer runs end than start</strong>: %(started)s started and %(ended)s ended %(within)s.",
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
    since = words.ago(found.since)
    if found.revision is None:
        return words.rich("It began with an unknown revision, %(time)s.", time=since)
    return words.rich(
        "It began with revision %(revision)s, %(time)s.",
        revision=code(found.revision),
        time=since,
    )
