"""What is promised, and how each promise is measured: rounds, interleaved; medians."""

from __future__ import annotations

import statistics
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.contender import measure
from bench.import_time import OURS, REFERENCE, measure_import

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bench.server import Server

IMPORTS_PER_ROUND = 5


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table; without `at_least` and `at_most` it is there to compare with."""

    name: str
    pgbus: float
    reference: float
    against: str
    at_least: float | None = None
    at_most: float | None = None

    @property
    def ratio(self) -> float:
        """How many references pgbus is worth."""
        return self.pgbus / self.reference

    @property
    def target(self) -> str:
        """The ratio asked for, '' for a mere comparison."""
        if self.at_least is not None:
            return f">= {self.at_least:g}"
        return f"<= {self.at_most:g}" if self.at_most is not None else ""

    @property
    def met(self) -> bool:
        """Whether the ratio is as asked for; a comparison always is."""
        if self.at_least is not None:
            return self.ratio >= self.at_least
        return self.at_most is None or self.ratio <= self.at_most


Medians = dict[str, dict[str, float]]


def interleave(server: Server, rounds: int, *modules: str) -> Medians:
    """Return each module's medians; every round runs each once, on a database of its own."""
    results: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for _ in range(rounds):
        for module in modules:
            url = server.fresh_database()
            for name, value in measure(module, url).items():
                results[module][name].append(value)
            server.drop(url)
    return {
        module: {name: statistics.median(values) for name, values in measured.items()}
        for module, measured in results.items()
    }


def drain(server: Server, rounds: int) -> Iterator[Figure]:
    medians = interleave(server, rounds, "reference_loop", "pgbus_drain", "dbos_drain")
    rate = {module: values["steps_per_second"] for module, values in medians.items()}
    ours = rate["pgbus_drain"]
    yield Figure("drain, steps/s", ours, rate["reference_loop"], "loop C", at_least=0.4)
    yield Figure("drain, steps/s", ours, rate["dbos_drain"], "DBOS", at_least=4)


def latency(server: Server, rounds: int) -> Iterator[Figure]:
    medians = interleave(server, rounds, "pgqueuer_latency", "pgbus_latency", "notify_latency")
    ours, theirs, floor = (medians[f"{name}_latency"] for name in ("pgbus", "pgqueuer", "notify"))
    for moment, prefix in (("commit", "after_commit_"), ("call", "")):
        for name, at_most in (("median_ms", 2), ("p95_ms", 3)):
            key = f"{prefix}{name}"
            label = f"{moment} of start to body, {name.replace('_', ' ')}"
            yield Figure(label, ours[key], theirs[key], "PgQueuer", at_most=at_most)
            yield Figure(label, ours[key], floor[key], "bare NOTIFY")


def starts(server: Server, rounds: int) -> Iterator[Figure]:
    medians = interleave(server, rounds, "pgmq_starts", "pgbus_starts")
    ours, bare = medians["pgbus_starts"], medians["pgmq_starts"]["starts_per_second"]
    single, many = ours["starts_per_second"], ours["many_per_second"]
    yield Figure("single starts/s", single, bare, "pgmq.send", at_least=0.5)
    yield Figure("start_many, starts/s", many, single, "single starts", at_least=5)


def imports(_: Server, rounds: int) -> Iterator[Figure]:
    pairs = [
        (measure_import(OURS), measure_import(REFERENCE)) for _ in range(rounds * IMPORTS_PER_ROUND)
    ]
    ours = statistics.median(elapsed for (elapsed, _), _ in pairs)
    reference = statistics.median(elapsed for _, (elapsed, _) in pairs)
    unwanted = {name for (_, loaded), _ in pairs for name in loaded}
    yield Figure("import pgbus, ms", ours, reference, "SQLAlchemy, psycopg", at_most=1.3)
    label = f"unwanted imports {' '.join(sorted(unwanted))}".strip()
    yield Figure(label, len(unwanted), 1, "module", at_most=0)


def idle(server: Server, _: int) -> Iterator[Figure]:
    # One round: a minute's window is a mean already.
    ours = interleave(server, 1, "pgbus_idle")["pgbus_idle"]
    for label, name, limit in (
        ("idle worker, queries/s", "queries_per_second", 1),
        ("idle worker, % of a core", "cpu_percent", 1),
        ("worker memory, MiB", "rss_mib", 120),
    ):
        yield Figure(label, ours[name], limit, "limit", at_most=1)


def loaded(server: Server, rounds: int) -> Iterator[Figure]:
    full = {kind: server.fresh_database() for kind in ("finished", "scheduled")}
    for kind, url in full.items():
        measure("pgbus_load", url, kind)
    rates: dict[str, list[float]] = defaultdict(list)
    for _ in range(rounds):
        empty = server.fresh_database()
        for kind, url in (("empty", empty), *full.items()):
            rates[kind].append(measure("pgbus_drain", url)["steps_per_second"])
        server.drop(empty)
    median = {kind: statistics.median(values) for kind, values in rates.items()}
    for kind, label in (("finished", "1,000,000 finished"), ("scheduled", "200,000 far off")):
        name = f"drain beside {label}, steps/s"
        yield Figure(name, median[kind], median["empty"], "empty tables", at_least=0.9)
    late = measure("pgbus_due", full["scheduled"])["late_seconds"]
    yield Figure("due in 30 s, started late by, s", late, 1, "limit", at_most=1)


def batches(server: Server, rounds: int) -> Iterator[Figure]:
    rate = interleave(server, rounds, "pgbus_batches")["pgbus_batches"]
    large, small = rate["members_per_second_of_5000"], rate["members_per_second_of_500"]
    yield Figure("batch of 5,000, members/s", large, rate["jobs_per_second"], "jobs", at_least=0.5)
    yield Figure("batch of 5,000, members/s", large, small, "batches of 500", at_least=0.8)


def signals(server: Server, rounds: int) -> Iterator[Figure]:
    medians = interleave(server, rounds, "dbos_signals", "pgbus_signals")
    ours, theirs = medians["pgbus_signals"], medians["dbos_signals"]
    for moment, prefix, at_most in (("commit", "after_commit_", 1), ("call", "", None)):
        for name in ("median_ms", "p95_ms"):
            key = f"{prefix}{name}"
            label = f"{moment} of signal to body, {name.replace('_', ' ')}"
            yield Figure(label, ours[key], theirs[key], "DBOS send, recv", at_most=at_most)


def fan_outs(server: Server, rounds: int) -> Iterator[Figure]:
    rate = interleave(server, rounds, "pgbus_fan_out")["pgbus_fan_out"]
    ours, single = rate["members_per_second"], rate["jobs_per_second"]
    yield Figure("fan-out of 1,000, members/s", ours, single, "single jobs", at_least=0.5)


def sweep(server: Server, _: int) -> Iterator[Figure]:
    # One round: its sweeps and counts are interleaved already.
    ours = interleave(server, 1, "pgbus_sweep")["pgbus_sweep"]
    swept, counted = ours["sweep_ms"], ours["count_ms"]
    yield Figure("sweep that finds nothing, ms", swept, counted, "sequential count", at_most=0.1)
    yield Figure("whole tables that it reads", ours["whole_scans"], 1, "table", at_most=0)


def pages(server: Server, _: int) -> Iterator[Figure]:
    # One round: its pages and counts are interleaved already.
    taken = interleave(server, 1, "pgbus_pages")["pgbus_pages"]
    counted = taken.pop("count")
    for page, milliseconds in taken.items():
        most = 2 if page.startswith("attention") else 0.5
        yield Figure(f"{page}, ms", milliseconds, counted, "sequential count", at_most=most)


def sleepers(server: Server, _: int) -> Iterator[Figure]:
    # One round: its pages and counts are interleaved already.
    taken = interleave(server, 1, "pgbus_sleepers")["pgbus_sleepers"]
    counted = taken.pop("count")
    for page, milliseconds in taken.items():
        name = f"200,000 asleep, {page}, ms"
        yield Figure(name, milliseconds, counted, "sequential count", at_most=0.5)


def insights(server: Server, _: int) -> Iterator[Figure]:
    # One round: its pages and counts are interleaved already.
    most = {"list, 24h": 1.2, "list, 30d": 4, "class, 24h": 0.5, "class, 30d": 4}
    for attempts, runs in (("1,000,000", 200_000), ("10,000,000", 2_000_000)):
        url = server.fresh_database()
        taken = measure("pgbus_insights", url, str(runs))
        server.drop(url)
        counted = taken.pop("count")
        for page, milliseconds in taken.items():
            name = f"insights, {attempts} attempts, {page}, ms"
            yield Figure(name, milliseconds, counted, "sequential count", at_most=most[page])


def rendering(server: Server, _: int) -> Iterator[Figure]:
    # One round: the best of many takes.
    taken = interleave(server, 1, "pgbus_rendering")["pgbus_rendering"]
    page, table = taken["page_ms"], taken["table_ms"]
    yield Figure("a list page filled, ms", page, table, "plain Jinja table", at_most=3)
    yield Figure("its HTML, bytes", taken["html_bytes"], 150_000, "150 KB", at_most=1)


def observe(server: Server, _: int) -> Iterator[Figure]:
    # One round: its workers are interleaved already.
    ours = interleave(server, 1, "pgbus_observe")["pgbus_observe"]
    label = "worker CPU per step, µs, tracing on"
    yield Figure(label, ours["on"], ours["off"], "tracing off", at_most=1.01)
    yield Figure(f"{label}, recorded", ours["recording"], ours["off"], "tracing off")


GROUPS: dict[str, Callable[[Server, int], Iterator[Figure]]] = {
    "drain": drain,
    "latency": latency,
    "starts": starts,
    "imports": imports,
    "idle": idle,
    "loaded": loaded,
    "batches": batches,
    "signals": signals,
    "fan_outs": fan_outs,
    "sweep": sweep,
    "pages": pages,
    "sleepers": sleepers,
    "insights": insights,
    "rendering": rendering,
    "observe": observe,
}
