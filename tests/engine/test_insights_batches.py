"""The list of batches, and one with its members."""

from __future__ import annotations

import json

import pytest

from pgbus import Batch, FanOut, Workflow, fan_out, job
from pgbus.engine.errors import BadCursor, BatchNotFound
from pgbus.engine.identifiers import new_uuid
from pgbus.engine.insights import batches
from pgbus.engine.insights.batches import FAILED, BatchFilter, BatchPage, Failures, OpenBatches
from pgbus.engine.insights.documents import Document
from pgbus.engine.jobs.execute import execute
from pgbus.engine.states import MemberStatus
from pgbus.engine.storage.claims import Idle
from pgbus.engine.storage.database import Connection

QUEUE = "pgbus_pages"


@job(queue="pages")
def print_page(number=0): ...


@job(queue="pages", max_retries=0)
def jam(number=0):
    raise OSError("paper jam")


@job(queue="pages")
def tell(*numbers, **anything): ...


@job(queue="pages")
def mourn(**anything): ...


class Brochure(Workflow):
    @fan_out
    def pages(self, batch: FanOut):
        batch.add_many(print_page, [(1,), (2,)])


@pytest.fixture
def list_page(bus):
    def list_page(wanted=BatchFilter.ALL, *, limit=50, **cursor):
        with bus.services.database.autocommit() as connection:
            return batches.page(connection, wanted, limit=limit, **cursor)

    return list_page


@pytest.fixture
def detail(bus):
    def detail(batch_id, **options):
        with bus.services.database.autocommit() as connection:
            return batches.detail(connection, batch_id, **options)

    return detail


@pytest.fixture
def open_batches(bus):
    def open_batches(**options):
        with bus.services.database.autocommit() as connection:
            return batches.open_batches(connection, **options)

    return open_batches


@pytest.fixture
def failures(bus):
    def failures(batch_id, limit=10):
        with bus.services.database.autocommit() as connection:
            return batches.failures(connection, batch_id, limit=limit)

    return failures


@pytest.fixture
def members(bus):
    def members(batch_id, statuses=tuple(MemberStatus), *, limit=50, **cursor):
        with bus.services.database.autocommit() as connection:
            return batches.members(connection, batch_id, statuses, limit=limit, **cursor)

    return members


@pytest.fixture
def work(bus, driver):
    def work(most=1000):
        for _ in range(most):
            taken = driver.take()
            if isinstance(taken, Idle):
                return
            for delivery in taken:
                execute(bus.services, delivery)

    return work


def opened(*jobs, **options):
    with Batch.open(**options) as builder:
        for number, each in enumerate(jobs, 1):
            builder.add(each, number)
    return builder.batch_id


def counts(batch):
    return (
        batch.total_jobs,
        batch.open_jobs,
        batch.completed_jobs,
        batch.dead_lettered_jobs,
        batch.discarded_jobs,
    )


def ids(page):
    return [batch.batch_id for batch in page.batches]


def test_an_open_batch_tells_what_its_counters_tell(bus, list_page, work):
    batch_id = opened(print_page, print_page, jam, print_page, description="Brochure")
    work(most=3)
    [batch] = list_page().batches
    assert (batch.batch_id, batch.description) == (batch_id, "Brochure")
    assert counts(batch) == (4, 1, 2, 1, 0)
    assert (batch.failed_jobs, batch.finished_at, batch.withdrawn_at) == (1, None, None)
    assert batch.run is None


def test_a_finished_batch_tells_what_is_in_its_row(bus, database, list_page, work):
    opened(print_page, jam)
    work()
    database.rows("UPDATE pgbus.batches SET discarded_jobs = 1, total_jobs = 3")
    [batch] = list_page().batches
    assert counts(batch) == (3, 0, 1, 1, 1)
    assert batch.failed_jobs == 2
    assert batch.finished_at >= batch.created_at


def test_batches_are_listed_by_whether_they_are_open_and_whether_any_member_failed(
    bus, list_page, work
):
    good, bad = opened(print_page), opened(jam)
    work()
    half_bad = opened(jam, print_page)
    work(most=1)
    untouched = opened(print_page)
    assert ids(list_page()) == [untouched, half_bad, bad, good]
    assert ids(list_page(BatchFilter.OPEN)) == [untouched, half_bad]
    assert ids(list_page(BatchFilter.FINISHED)) == [bad, good]
    assert ids(list_page(BatchFilter.FAILED)) == [half_bad, bad]


def test_a_batch_with_discarded_members_has_failed(bus, database, list_page, work):
    opened(print_page)
    database.rows("UPDATE pgbus.batches SET withdrawn_at = now()")
    opened_half = opened(print_page, print_page)
    database.rows("UPDATE pgbus.batches SET withdrawn_at = now() WHERE batch_id = %s", opened_half)
    work(most=2)
    [half, whole] = list_page(BatchFilter.FAILED).batches
    assert (counts(half), counts(whole)) == ((2, 1, 0, 0, 1), (1, 0, 0, 0, 1))
    assert half.withdrawn_at is not None


def test_pages_lead_on_and_back_through_all_batches(bus, list_page):
    newest_first = [opened() for _ in range(5)][::-1]
    first = list_page(limit=2)
    second = list_page(limit=2, after=first.older)
    third = list_page(limit=2, after=second.older)
    assert [ids(first), ids(second), ids(third)] == [
        newest_first[:2],
        newest_first[2:4],
        newest_first[4:],
    ]
    assert (first.newer, third.older) == (None, None)
    assert list_page(limit=2, before=third.newer) == second
    back = list_page(limit=2, before=second.newer)
    assert back == first
    assert list_page(limit=2, after=newest_first[-1]) == BatchPage((), older=None, newer=None)


def test_a_page_keeps_to_its_filter(bus, list_page, work):
    opened(jam)
    work()
    failed = ids(list_page())
    opened()
    page = list_page(BatchFilter.FAILED, limit=1, after=new_uuid())
    assert (ids(page), page.older) == (failed, None)


@pytest.mark.rows_by_hand
def test_failed_batches_are_paged_in_one_order_whether_they_are_open_or_finished(
    bus, database, list_page, work
):
    opened(print_page)
    failed = [opened(jam) for _ in range(6)][::-1]
    opened(print_page)
    work()
    for batch_id in failed[::2]:
        database.rows(
            "UPDATE pgbus.batches SET finished_at = NULL, discarded_jobs = NULL, dead_lettered_jobs = NULL"
            " WHERE batch_id = %s",
            batch_id,
        )
        database.rows("INSERT INTO pgbus.batch_counters VALUES (%s, 1, 0, 0, 0, 1)", batch_id)
    pages = [list_page(BatchFilter.FAILED, limit=2)]
    while pages[-1].older:
        pages.append(list_page(BatchFilter.FAILED, limit=2, after=pages[-1].older))
    assert [batch_id for page in pages for batch_id in ids(page)] == failed
    assert list_page(BatchFilter.FAILED, limit=2, before=pages[-1].newer) == pages[-2]


@pytest.mark.rows_by_hand
def test_failed_batches_are_found_by_indexes_however_many_others_there_are(database):
    database.rows(
        "INSERT INTO pgbus.batches (batch_id, properties, total_jobs, counters, created_at, finished_at,"
        " completed_jobs, discarded_jobs, dead_lettered_jobs)"
        " SELECT gen_random_uuid(), '{}', 1, 1, now(), now(), 1, 0, 0 FROM generate_series(1, 5000)"
    )
    with database.connection(autocommit=True) as driver:
        driver.execute("ANALYZE")
        place = "ORDER BY b.batch_id DESC LIMIT 51"
        statement = batches._LISTED[BatchFilter.FAILED].replace("{place}", place)
        connection = Connection(driver, "pgbus")
        plan = "".join(line for (line,) in connection.rows(f"EXPLAIN {statement}", inline=500))
    assert "using batches_failed" in plan
    assert "using batches_open" in plan
    assert "Seq Scan on batches" not in plan


def test_a_cursor_that_is_no_id_is_refused(bus, list_page):
    for cursor in ({"after": "1"}, {"before": "x" * 40}):
        with pytest.raises(BadCursor, match=r"is no batch's id"):
            list_page(**cursor)


def test_a_list_tells_of_large_properties_without_them(bus, list_page, detail):
    numbered = '{"id": 12345678901234567890}'
    small = opened(properties={"id": 12345678901234567890})
    large = opened(properties={"text": "é" * 300})
    told, whole = list_page().batches
    assert (told.properties, whole.properties) == (Document(None, 612), Document(numbered, 28))
    assert detail(small).batch.properties == Document(numbered, 28)
    assert json.loads(detail(large).batch.properties.encoded) == {"text": "é" * 300}
    assert detail(large, inline=612).batch.properties.encoded is not None
    assert detail(large, inline=611).batch.properties == Document(None, 612)


def test_open_batches_are_counted_and_those_with_failed_members(bus, open_batches, work):
    opened(jam)
    work()
    assert open_batches() == OpenBatches(0, 0)
    opened(jam, print_page)
    work(most=1)
    for _ in range(3):
        opened(print_page)
    assert open_batches() == OpenBatches(4, 1)
    assert open_batches(cap=2).number == 3


def test_a_fan_outs_batch_names_its_run_and_step(bus, driver, list_page, detail):
    run = Brochure.start()
    driver.perform(driver.take()[0])
    [batch] = list_page().batches
    assert batch.run.workflow_id == run.workflow_id
    assert batch.run.workflow_class == f"{__name__}.Brochure"
    assert batch.run.step_name == "pages"
    assert detail(batch.batch_id).batch == batch


@pytest.mark.rows_by_hand
def test_a_batch_outlives_its_run(bus, driver, database, list_page):
    run = Brochure.start()
    driver.perform(driver.take()[0])
    database.rows("DELETE FROM pgbus.workflows")
    database.rows("DELETE FROM pgbus.workflow_steps")
    [batch] = list_page().batches
    assert (batch.run.workflow_id, batch.run.workflow_class, batch.run.step_name) == (
        run.workflow_id,
        None,
        None,
    )


def test_one_batch_names_its_callbacks(bus, detail):
    found = detail(opened(on_complete=tell, on_failure=mourn))
    assert found.on_complete == f"{__name__}.tell"
    assert found.on_success is None
    assert found.on_failure == f"{__name__}.mourn"
    found = detail(opened(on_success=tell))
    assert (found.on_complete, found.on_success) == (None, f"{__name__}.tell")


@pytest.mark.parametrize("batch_id", ["01890a5d-ac96-774b-bcce-b302099a8057", "7", "", "x" * 36])
def test_a_batch_that_does_not_exist_is_refused_by_its_id(bus, detail, batch_id):
    with pytest.raises(BatchNotFound, match=f"There is no batch {batch_id}"):
        detail(batch_id)


def test_members_are_told_with_what_became_of_them(bus, members, work):
    batch_id = opened(print_page, jam, print_page)
    work(most=2)
    last, failed, first = members(batch_id).members
    assert (first.number, first.job, first.queue) == (1, f"{__name__}.print_page", QUEUE)
    assert (first.status, failed.status) == (MemberStatus.COMPLETED, MemberStatus.DEAD_LETTERED)
    assert failed.job == f"{__name__}.jam"
    assert failed.ended_at >= first.ended_at
    assert (last.status, last.ended_at) == (MemberStatus.OPEN, None)


def test_members_are_listed_by_how_they_ended_and_by_batch(bus, members, work):
    batch_id = opened(print_page, jam, print_page, jam)
    opened(jam)
    work()
    assert [one.number for one in members(batch_id, FAILED).members] == [4, 2]
    assert [one.number for one in members(batch_id, [MemberStatus.COMPLETED]).members] == [3, 1]
    assert members(batch_id, [MemberStatus.DISCARDED]).members == ()


def test_the_jobs_of_failed_members_are_counted_the_most_first(bus, database, failures, work):
    batch_id = opened(print_page, jam, jam, tell, tell, tell)
    opened(jam)
    work()
    database.rows("UPDATE pgbus.batch_jobs SET status = 'discarded' WHERE job LIKE '%.tell'")
    tells = Failures(f"{__name__}.tell", MemberStatus.DISCARDED, 3)
    assert failures(batch_id) == (
        tells,
        Failures(f"{__name__}.jam", MemberStatus.DEAD_LETTERED, 2),
    )
    assert failures(batch_id, limit=1) == (tells,)


def test_pages_of_members_lead_on_and_back(bus, members):
    batch_id = opened(*[print_page] * 5)
    first = members(batch_id, limit=2)
    second = members(batch_id, limit=2, after=first.older)
    third = members(batch_id, limit=2, after=second.older)
    numbers = [[one.number for one in page.members] for page in (first, second, third)]
    assert numbers == [[5, 4], [3, 2], [1]]
    assert (first.newer, third.older) == (None, None)
    assert members(batch_id, limit=2, before=third.newer) == second
