"""How a run comes into being: one transaction, the caller's or one of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pgbus.engine import codec, subjects
from pgbus.engine.definition.start import StartOptions
from pgbus.engine.errors import AlreadyRunning, DefinitionError
from pgbus.engine.identifiers import new_uuid
from pgbus.engine.runner import control
from pgbus.engine.runner.decide import scheduled
from pgbus.engine.states import Event, RunStatus, Verb
from pgbus.engine.storage import runs, starts
from pgbus.engine.storage.runs import RunRow
from pgbus.engine.storage.starts import NewRun, StartVerdict

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping

    from pgbus.engine.decision import NextAttempt
    from pgbus.engine.definition.definition import Definition
    from pgbus.engine.runner.control import Request
    from pgbus.engine.runner.run import Run
    from pgbus.engine.runner.services import Services
    from pgbus.engine.storage.database import Connection

#: Runs per statement of a bulk start.
_CHUNK = 1_000


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A run about to be started: its subject's reference and its encoded arguments."""

    workflow_id: str
    subject_type: str | None
    subject_id: str | None
    arguments: str


def start(
    services: Services, options: StartOptions[Any], subject: object, arguments: Mapping[str, Any]
) -> Run:
    """Start one run; everything that can be refused is refused before anything is written."""
    definition = options.workflow_class._definition  # noqa: SLF001 (the engine's own half of the class)
    prepared = _prepare(services, definition, subject, arguments)
    new = _new_run(services, definition, prepared, options)
    _make_ready(services, definition, options)
    with services.connection(options.session) as connection:
        return _start(services, connection, new)


def rerun(
    services: Services, workflow_id: str, request: Request, idempotency_key: str | None = None
) -> Run:
    """Start a new run with an ended one's subject and arguments, and write on both trails."""
    with control.locked(services, workflow_id, Verb.RERUN, request) as old:
        definition = control.definition_of(services, old)
        options = StartOptions(
            workflow_class=definition.workflow_class,
            idempotency_key=idempotency_key,
            actor=request.actor,
            reason=request.reason,
        )
        prepared = _Prepared(
            new_uuid(), old.run.subject_type, old.run.subject_id, old.run.encoded_arguments
        )
        new = _new_run(services, definition, prepared, options, rerun_of=workflow_id)
        run = _start(services, old.connection, new)
        if run.duplicate_start:
            return run
        old.record(
            Event.RERUN,
            old.run.status,
            old.run.status,
            reason=request.reason,
            details={"workflow_id": run.workflow_id},
        )
        return run


def _new_run(
    services: Services,
    definition: Definition,
    prepared: _Prepared,
    options: StartOptions[Any],
    *,
    rerun_of: str | None = None,
) -> NewRun:
    first = _first(services, definition)
    return NewRun(
        workflow_id=prepared.workflow_id,
        workflow_class=definition.name,
        digest=definition.digest,
        subject_type=prepared.subject_type,
        subject_id=prepared.subject_id,
        arguments=prepared.arguments,
        idempotency_key=options.idempotency_key,
        rerun_of=rerun_of,
        step_name=first.step_name,
        queue=first.queue,
        wait=first.wait,
        not_before=first.not_before,
        actor=options.actor,
        reason=options.reason,
        details=codec.encode({"rerun_of": rerun_of}, name="details") if rerun_of else None,
        trace=services.trace_here(),
    )


def _start(services: Services, connection: Connection, new: NewRun) -> Run:
    """Write the run, or tell of the one that has its key or its subject."""
    while True:
        started = starts.start_run(connection, new)
        if started.verdict is StartVerdict.STARTED:
            return services.bus.handle(_fresh(new, started))
        row = runs.find(connection, started.workflow_id)
        if row is None:  # deleted by retention between the two statements
            continue
        if started.verdict is StartVerdict.DUPLICATE:
            return services.bus.handle(row, duplicate_start=True)
        raise _already_running(services, row)


def start_many(
    services: Services,
    options: StartOptions[Any],
    items: Iterable[tuple[object, Mapping[str, Any]]],
) -> list[Run | AlreadyRunning]:
    """Start a run per item, a few statements for thousands; one transaction for all."""
    definition = options.workflow_class._definition  # noqa: SLF001 (the engine's own half of the class)
    first = _first(services, definition)
    wanted = [
        _prepare(services, definition, subject, arguments, name=f"items[{place}].arguments")
        for place, (subject, arguments) in enumerate(items)
    ]
    _make_ready(services, definition, options)
    became: dict[str, Run | AlreadyRunning] = {}
    trace = services.trace_here()
    with services.transaction(options.session) as connection:
        for chunk in _chunks(sorted(wanted, key=_subject_order)):
            # Who lost to a run that ended meanwhile has another go.
            while left := [one for one in chunk if one.workflow_id not in became]:
                rows = _start_chunk(connection, definition, first, left, options, trace)
                became |= {row.workflow_id: services.bus.handle(row) for row in rows}
                became |= _losers(services, connection, definition, left, became.keys())
    return [became[one.workflow_id] for one in wanted]


def _subject_order(one: _Prepared) -> tuple[str, str]:
    """Order all chunks the same, so that two callers wait for each other and never deadlock."""
    return one.subject_type or "", one.subject_id or ""


def _make_ready(services: Services, definition: Definition, options: StartOptions[Any]) -> None:
    """Bring into being what the start needs, once it is known that the start can be."""
    if options.session is not None:
        services.database.joined(options.session)
    services.bus.make_ready(definition)


def _prepare(
    services: Services,
    definition: Definition,
    subject: object,
    arguments: Mapping[str, Any],
    *,
    name: str = "arguments",
) -> _Prepared:
    if subject is not None:
        definition.check_subject(subject)
    reference = None if subject is None else subjects.reference_of(subject)
    encoded = codec.encode(
        dict(arguments), name=name, limit=services.settings.workflow_max_payload_size
    )
    return _Prepared(
        new_uuid(),
        reference.type if reference else None,
        reference.id if reference else None,
        encoded,
    )


def _first(services: Services, definition: Definition) -> NextAttempt:
    """Return when and where the first step runs that is not a gravestone."""
    step = next((step for step in definition.steps if not step.removed), None)
    if step is None:
        raise DefinitionError(f"{definition.name} declares no step that is not removed; add one.")
    return scheduled(step, services.queue_of)


def _fresh(new: NewRun, started: starts.Started) -> RunRow:
    """Return the row as it was just written, without reading it back."""
    return RunRow(
        workflow_id=new.workflow_id,
        workflow_class=new.workflow_class,
        definition_digest=new.digest,
        status=RunStatus.READY,
        subject_type=new.subject_type,
        subject_id=new.subject_id,
        encoded_arguments=new.arguments,
        idempotency_key=new.idempotency_key,
        current_step=new.step_name,
        step_id=started.step_id,
        rerun_of=new.rerun_of,
        created_at=started.created_at,
        updated_at=started.created_at,
        paused_at=None,
        ended_at=None,
    )


def _chunks(wanted: list[_Prepared]) -> Iterator[list[_Prepared]]:
    for place in range(0, len(wanted), _CHUNK):
        yield wanted[place : place + _CHUNK]


def _start_chunk(
    connection: Connection,
    definition: Definition,
    first: NextAttempt,
    chunk: list[_Prepared],
    options: StartOptions[Any],
    trace: str | None,
) -> list[RunRow]:
    started = starts.start_runs(
        connection,
        workflow_ids=[one.workflow_id for one in chunk],
        subject_types=[one.subject_type for one in chunk],
        subject_ids=[one.subject_id for one in chunk],
        arguments=[one.arguments for one in chunk],
        workflow_class=definition.name,
        digest=definition.digest,
        first=first,
        actor=options.actor,
        reason=options.reason,
        trace=trace,
    )
    by_id = {one.workflow_id: one for one in chunk}
    return [
        RunRow(
            workflow_id, definition.name, definition.digest, RunStatus.READY,
            by_id[workflow_id].subject_type, by_id[workflow_id].subject_id,
            by_id[workflow_id].arguments, None, first.step_name, step_id, None,
            created_at, created_at, None, None,
        )
        for workflow_id, created_at, step_id in started
    ]  # fmt: skip


def _losers(
    services: Services,
    connection: Connection,
    definition: Definition,
    chunk: list[_Prepared],
    started: Container[str],
) -> dict[str, AlreadyRunning]:
    """Return what became of those that did not start, if the run in their way is still ongoing."""
    losers = [one for one in chunk if one.workflow_id not in started]
    if not losers:
        return {}
    holders = runs.ongoing_of_subjects(
        connection, definition.name, [(one.subject_type, one.subject_id) for one in losers]
    )
    return {
        one.workflow_id: _already_running(services, holder)
        for one in losers
        if (holder := holders.get((one.subject_type, one.subject_id)))
    }


def _already_running(services: Services, row: RunRow) -> AlreadyRunning:
    return AlreadyRunning(
        f"{row.subject_type} {row.subject_id} already has an ongoing run of {row.workflow_class}: "
        f"{row.workflow_id} ({row.status} at {row.current_step}). It is this error's .run.",
        run=services.bus.handle(row),
    )
