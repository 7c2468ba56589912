"""`pgbus workflows stats`: how the workflow classes are doing, or one of them."""

from __future__ import annotations

from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import click

from pgbus.engine.cli.app import app_option, opened
from pgbus.engine.cli.documents import document
from pgbus.engine.cli.failures import Refused
from pgbus.engine.cli.options import json_option
from pgbus.engine.cli.sentences import at, duration
from pgbus.engine.cli.tables import aligned, table
from pgbus.engine.errors import ClassNotFound
from pgbus.engine.insights import windows
from pgbus.engine.insights.classes import summaries
from pgbus.engine.insights.headline import Worse
from pgbus.engine.insights.performance import performance
from pgbus.engine.insights.reading import now, reading
from pgbus.engine.insights.windows import Window
from pgbus.engine.states import RunStatus

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pgbus.engine.insights.classes import ClassSummary
    from pgbus.engine.insights.figures import Figures, Percentiles, Revision
    from pgbus.engine.insights.headline import Headline
    from pgbus.engine.insights.performance import Bin, Performance, StepInsight
    from pgbus.engine.insights.windows import Span

_UNKNOWN = "unknown"

#: The columns of how attempts went.
_SHARES = (
    *("ended", "failed", "reattempted", "skipped"),
    *("run p50", "p95", "p99", "pickup p50", "p95", "p99"),
)


@click.command()
@click.argument("workflow_class", metavar="[CLASS]", required=False)
@app_option()
@click.option(
    "--window",
    type=click.Choice([window.value for window in Window]),
    default=Window.DAY.value,
    show_default=True,
    help="How far back from now.",
)
@json_option
def stats(workflow_class: str | None, app: str | None, window: str, *, as_json: bool) -> None:
    """Tell how workflow classes are doing, or one of them.

    Of one, by its whole dotted name: what changed for the worse, its steps, its app revisions, how far its
    runs come, how long they take, and how many started and ended. With --app its steps are in their order.
    """
    with opened(app) as bus:
        bus.check_schema()
        zone = ZoneInfo(bus.settings.time_zone)
        with reading(bus.services) as connection:
            span = windows.span(bus.settings, Window(window), now(connection))
            if workflow_class is None:
                classes = summaries(connection, bus.settings, span)
                answer: object = {"span": span, "classes": classes}
                text = _list_text(classes, span, zone, app)
            else:
                try:
                    found = performance(connection, bus.settings, workflow_class, span, zone)
                except ClassNotFound as error:
                    raise Refused(
                        f"{error} Give the whole dotted name, such as shop.workflows.OrderWorkflow; of a class that "
                        "never had a run also --app, which loads it."
                    ) from None
                answer, text = found, _class_text(found, zone, app)
    click.echo(document(answer) if as_json else text)


def _list_text(classes: Sequence[ClassSummary], span: Span, zone: ZoneInfo, app: str | None) -> str:
    if not classes:
        return (
            f"No workflow class has had a run{'' if app else '; --app loads those of your code'}."
        )
    head = ("class", "ongoing", "paused", "attention", "finished", "cancelled", "p50", "p95", "")
    rows = [
        (
            one.workflow_class,
            *map(str, (one.ongoing, one.paused, one.attention, one.finished, one.cancelled)),
            duration(one.p50),
            duration(one.p95),
            ", ".join(_oddities(one, app)),
        )
        for one in classes
    ]
    return f"{_window(span, zone)}\n\n{table(head, rows)}"


def _oddities(one: ClassSummary, app: str | None) -> Iterator[str]:
    if app and not one.loaded:
        yield f"not loaded by {app}"
    for on in one.on_removed:
        yield f"{on.runs} on its removed step {on.step_name}"
    if not one.ever_started:
        yield "never started"


def _class_text(found: Performance, zone: ZoneInfo, app: str | None) -> str:
    sections = [
        aligned(_facts(found, zone, app)),
        _steps(found.steps),
        *_revisions(found.revisions, zone),
        _funnel(found),
        *_durations(found.durations.bins),
        table(
            ("from", "started", "finished", "cancelled"),
            [
                (at(one.begin, zone), str(one.started), str(one.finished), str(one.cancelled))
                for one in found.throughput
            ],
        ),
    ]
    return "\n\n".join(sections)


def _facts(found: Performance, zone: ZoneInfo, app: str | None) -> list[tuple[str, str]]:
    took = found.durations.percentiles
    facts = [
        ("class", found.workflow_class),
        ("window", _window(found.span, zone)),
        ("now", _headline(found.headline, zone)),
        ("ongoing", _by_status(found.ongoing) or "none"),
        ("attention", str(found.attention)),
        ("started", str(found.started)),
        ("finished", str(found.finished)),
        ("cancelled", str(found.cancelled)),
    ]
    if took.samples:
        facts.append(("took", f"{', '.join(_named(took))} (created to finished)"))
    if not found.loaded:
        mend = f"{app} does not import it" if app else "give --app"
        facts.append(("loaded", f"no, so its steps are by name: {mend}"))
    return facts


def _window(span: Span, zone: ZoneInfo) -> str:
    capped = " (ended runs are kept no longer)" if span.capped else ""
    return f"The last {span.window}, since {at(span.since, zone)}{capped}"


def _headline(headline: Headline | None, zone: ZoneInfo) -> str:
    """Tell what changed for the worse."""
    if headline is None:
        return "Nothing stands out."
    since, step = at(headline.since, zone), headline.step_name
    seen = "which came back" if headline.came_back else since
    revision = f"since revision {headline.revision or _UNKNOWN} ({seen})"
    match headline.kind:
        case Worse.FAILURE_RATE:
            now, before = _rate(headline.now), _rate(headline.before)
            return f"{now} of the attempts of {step} fail {revision}; {before} before."
        case Worse.RUN_TIME:
            now, before = duration(headline.now), duration(headline.before)
            return f"The p95 of the run time of {step} is {now} {revision}; {before} before."
        case Worse.PILE_UP:
            return f"{headline.now:.0f} runs need attention at {step}, the first since {since}."
        case Worse.FALLING_BEHIND:
            return f"{headline.before:.0f} runs started and {headline.now:.0f} ended since {since}."


def _steps(steps: Sequence[StepInsight]) -> str:
    rows = [
        (one.step_name, _by_status(one.here), str(one.stuck), *_shares(one.figures), _about(one))
        for one in steps
    ]
    return table(("step", "now", "attention", *_SHARES, ""), rows)


def _shares(figures: Figures) -> Iterator[str]:
    yield str(figures.ended)
    for rate in (figures.failure_rate, figures.reattempt_rate, figures.skip_rate):
        yield _rate(rate) if figures.ended else ""
    for of in (figures.run, figures.pickup):
        yield from (duration(of.p50), duration(of.p95), duration(of.p99))


def _about(one: StepInsight) -> str:
    """Tell what a step is, and whether its figures are of few."""
    told = []
    if one.removed:
        told.append("removed")
    elif not one.declared:
        told.append("not declared")
    if one.fan_out:
        told.append("fan-out")
    if one.wait:
        told.append(f"after {duration(one.wait.total_seconds())}")
    if one.waits_for:
        told.append(f"waits for {one.waits_for}{_timeout(one)}")
    if one.figures.ended and one.figures.few:
        told.append("too few samples")
    return ", ".join(told)


def _timeout(one: StepInsight) -> str:
    if one.dynamic_timeout:
        return ", timeout dynamic (per run)"
    return f", timeout {duration(one.wait_timeout.total_seconds())}" if one.wait_timeout else ""


def _revisions(revisions: Sequence[Revision], zone: ZoneInfo) -> list[str]:
    """Return a table of the revisions, each with its steps; none without any."""
    rows: list[tuple[str, ...]] = []
    for one in revisions:
        name = one.revision or _UNKNOWN
        about = f"first seen {at(one.first_at, zone)}"
        rows.append(
            (name, "all", *_shares(one.total), f"running, {about}" if one.running else about)
        )
        for step, figures in sorted(one.by_step.items()):
            rise = one.worse.get(step)
            longer = one.slower.get(step)
            told = [f"fails {100 * rise:.1f} points more"] if rise is not None else []
            told += [f"p95 {duration(longer)} longer"] if longer is not None else []
            told += ["too few samples"] if figures.few else []
            rows.append((name, step, *_shares(figures), ", ".join(told)))
    return [table(("revision", "step", *_SHARES, ""), rows)] if rows else []


def _funnel(found: Performance) -> str:
    funnel = found.funnel
    rows = [(one.step_name, str(one.runs), _by_status(one.here)) for one in funnel.steps]
    ended = f"{funnel.finished} finished, {funnel.cancelled} cancelled"
    return table(
        ("of those started", "reached", "are there now"),
        [("(all)", str(funnel.started), ended), *rows],
    )


def _durations(bins: Sequence[Bin]) -> list[str]:
    rows = [(_bounds(one), str(one.runs)) for one in bins]
    return [table(("finished within", "runs"), rows)] if rows else []


def _bounds(one: Bin) -> str:
    if one.high is None:
        return f"{duration(one.low)} and more"
    return f"{duration(one.low)} to {duration(one.high)}"


def _named(of: Percentiles) -> Iterator[str]:
    for name in ("p50", "p95", "p99"):
        yield f"{name} {duration(getattr(of, name))}"


def _by_status(counts: Mapping[RunStatus, int]) -> str:
    return ", ".join(f"{counts[one]} {one}" for one in RunStatus if counts.get(one))


def _rate(share: float) -> str:
    return f"{100 * share:.1f} %"
