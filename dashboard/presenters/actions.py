"""What can be done with a run just now: each action with what it will do, and what it will not."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Self

from pgbus.dashboard.presenters import offers, resuming, subjects
from pgbus.dashboard.presenters.signal_form import awaits_signal, signal_form
from pgbus.engine.states import Verb

if TYPE_CHECKING:
    from collections.abc import Callable

    from pgbus.dashboard.console import Viewer
    from pgbus.dashboard.presenters.offers import Offer
    from pgbus.dashboard.presenters.refused_forms import RefusedForm
    from pgbus.dashboard.presenters.signal_form import SignalForm
    from pgbus.dashboard.words import Words
    from pgbus.engine.insights.detail import RunDetail
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


#: In the order in which they are shown, but for the likeliest one.
_OFFERS: dict[Verb, Callable[[RunDetail, Words], Offer | None]] = {
    Verb.RESUME: resuming.resume,
    Verb.RESUME_AT: offers.resume_at,
    Verb.RUN_NOW: offers.run_now,
    Verb.RESCHEDULE: offers.reschedule,
    Verb.SIGNAL: offers.signal,
    Verb.SKIP: offers.skip,
    Verb.PAUSE: offers.pause,
    Verb.RERUN: offers.rerun,
    Verb.CANCEL: offers.cancel,
}


def offered(detail: RunDetail, viewer: Viewer, refused: RefusedForm | None = None) -> Actions:
    """Return what can be done with the run and is allowed to who looks, the likeliest first."""
    words, run = viewer.words, detail.run
    shown = [
        _with_form(offer, refused, words)
        for verb, write in _OFFERS.items()
        if verb in detail.available_actions and viewer.may(verb)
        if (offer := write(detail, words)) is not None
    ]
    possible = [offer.verb for offer in shown]
    primary = _primary(run, possible)
    limit = viewer.settings.workflow_max_payload_size
    return Actions(
        workflow_id=run.workflow_id,
        about=subjects.titled(run),
        seen=str(Seen.of(run, detail.resume, words.now)),
        offers=tuple(sorted(shown, key=lambda offer: offer.verb is not primary)),
        primary=primary,
        signal=signal_form(run, words, refused, limit) if Verb.SIGNAL in possible else None,
        refusal=refused.gone(words) if refused and refused.verb not in possible else "",
    )


def _with_form(offer: Offer, refused: RefusedForm | None, words: Words) -> Offer:
    if refused is None or refused.verb is not offer.verb:
        return offer
    return replace(
        offer,
        step=offer.step and refused.kept("step"),
        at=offer.at and refused.kept("at"),
        reason=refused.kept("reason"),
        refusal=refused.told(words),
    )


def _primary(run: RunSummary, possible: list[Verb]) -> Verb | None:
    wanted = [Verb.RESUME, Verb.RESUME_AT, Verb.RERUN]
    if awaits_signal(run):
        wanted.append(Verb.SIGNAL)
    elif not run.due or run.stuck:
        wanted.append(Verb.RUN_NOW)
    return next((verb for verb in wanted if verb in possible), None)
