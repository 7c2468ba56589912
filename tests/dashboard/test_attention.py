"""The page of what is stuck: groups with their causes, and a press on all the runs of one."""

from __future__ import annotations

import html
import re
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qs, urlsplit
from zoneinfo import ZoneInfo

import pytest
from babel.core import Locale
from babel.support import NullTranslations
from support.sites import dialog_of
from support.sweeps import age, turn

from pgbus import Workflow, on_exception, step
from pgbus.dashboard.presenters import attention as presenter
from pgbus.dashboard.words import Words
from pgbus.engine.active import current_bus
from pgbus.engine.definition import registry
from pgbus.engine.definition.policy import qualified_name
from pgbus.engine.errors import DatabaseAway, FanOutFailed, ReadTimeout
from pgbus.engine.insights import stuck
from pgbus.engine.insights.stuck import GroupKey, StuckGroup, StuckReason
from pgbus.engine.runner.bulk import BulkResult
from pgbus.engine.states import Verb
from pgbus.engine.sweep.stalls import Stalls

PAGE = "/pgbus/workflows/attention"


class DoorJammedError(Exception):
    pass


class CableTornError(Exception):
    pass


class Lift(Workflow):
    policies = (on_exception(CableTornError, action="cancel"),)

    @step
    def close(self):
        if "ends" in self.arguments:
            current_bus().find(self.workflow_id).pause(actor="dashboard:ann")
            ENDS[self.arguments["ends"]](self)
        if "raises" in self.arguments:
            raise DoorJammedError(self.arguments["raises"])

    @step(wait_for="called")
    def rise(self): ...


class Stairs(Workflow):
    @step
    def climb(self): ...


def tear(_lift):
    raise CableTornError("snap")


#: What a body that is paused while it runs leaves for the resume.
ENDS = {"cancel": tear, "finish": Lift.finish, "reattempt": Lift.reattempt}


LIFT, STAIRS = f"{__name__}.Lift", f"{__name__}.Stairs"


def fail(driver, number=1, message="a foot in the door"):
    runs = [Lift.start(raises=message) for _ in range(number)]
    driver.drain()
    return runs


def stall(bus, driver, database):
    run = Lift.start()
    driver.take()
    age(database, "2 hours", run)
    Stalls().sweep(turn(bus))
    return [run]


def wait_long(driver, database):
    run = Lift.start()
    driver.drain()
    age(database, "8 days", run)
    return [run]


def be_overdue(database, number=1):
    runs = [Stairs.start() for _ in range(number)]
    age(database, "2 hours", *runs)
    return runs


def pause(number=1, workflow=Lift, **by):
    return [workflow.start().pause(**by) for _ in range(number)]


class Row:
    """One group as the page shows it."""

    def __init__(self, markup):
        self.text = text_of(markup)
        self.list = html.unescape(re.search(r'class="big" href="([^"]+)"', markup)[1])
        asks = re.findall(r'href="([^"]+)" data-ask>(.*?)</a>', markup)
        self.shows = re.search(r'aria-label="(.*?)"', markup)[1]
        self.asks = {text_of(label): html.unescape(href) for href, label in asks}


def text_of(markup):
    without = re.sub(r"</?(wbr|bdi|code|b|strong|time|q)\b[^>]*>", "", markup)
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", without)).split())


def rows(page):
    return [Row(one) for one in re.findall(r"<tr [^>]*data-key.*?</tr>", page, re.DOTALL)]


def fields_of(markup):
    """The hidden fields of a dialog's form."""
    found = re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)"', markup)
    return {name: html.unescape(value) for name, value in found}


def lede(page):
    return text_of(re.search(r'<p class="lede">(.*?)</p>', page)[1])


def dialog(page):
    found = re.search(r"<dialog.*?</dialog>", page, re.DOTALL)
    return found and found[0]


def toast(page):
    return text_of(re.search(r'<div class="toast (.*?)</div>', page, re.DOTALL)[1]).split('"> ')[-1]


@pytest.fixture
def show(client):
    """The page, narrowed or with a dialog as its parameters say."""

    def show(address=PAGE, **given):
        answer = client.get(address, query_string=given or None)
        assert answer.status_code == 200, answer.text
        return answer.text

    return show


def ask(show, label, **given):
    """The dialog behind a button of the page's only row."""
    (row,) = rows(show(**given))
    return dialog(show(row.asks[label]))


@pytest.fixture
def confirm(client):
    """Sends a dialog's form, some of its fields changed; gives the page that comes then."""

    def confirm(shown, **changed):
        answer = client.post(PAGE, data=fields_of(shown) | changed)
        assert answer.status_code == 303, answer.text
        confirm.location = answer.location
        return client.get(answer.location).text

    return confirm


def statuses(runs):
    return [run.reload().status for run in runs]


def trail(runs):
    return [(str(e.event), e.actor, e.reason) for run in runs for e in run.events]


def test_where_nothing_is_stuck_it_says_so(show):
    Lift.start()
    page = show()
    assert "Nothing needs you" in page
    assert "lede" not in page
    assert "data-ask" not in page


@pytest.mark.parametrize(
    ("make", "row", "sentence"),
    [
        (
            lambda _bus, driver, _database: fail(driver, 2),
            (
                rf"2 Paused on error on close {__name__}. Lift {__name__}.DoorJammedError "
                r"a foot in the door (just now|\d+ s ago) (just now|\d+ s ago) Resume 2… Cancel 2…"
            ),
            (
                r"2 share one cause: close of Lift fails with DoorJammedError, "
                r"the first time (just now|\d+ s ago)\."
            ),
        ),
        (
            lambda _bus, driver, _database: fail(driver),
            rf"1 Paused on error on close {__name__}. Lift .* Resume 1… Cancel 1…",
            r"1 run is paused: close of Lift failed with DoorJammedError (just now|\d+ s ago)\.",
        ),
        (
            stall,
            (
                rf"1 Stalled on close {__name__}. Lift pgbus.engine.errors.StepStalled .* "
                r"Resume 1… Cancel 1…"
            ),
            r"1 run is stalled: its worker died or hung in close of Lift (just now|\d+ s ago)\.",
        ),
        (
            lambda *_: pause(2, actor="dashboard:ann", reason="spring <cleaning>"),
            (
                rf"2 Paused on close {__name__}. Lift The newest was paused by dashboard:ann: "
                r"spring <cleaning> .* Resume 2… Cancel 2…"
            ),
            r"2 were paused on close of Lift, the first one (just now|\d+ s ago)\.",
        ),
        (
            lambda _bus, _driver, database: be_overdue(database, 3),
            (
                rf"3 Overdue on climb {__name__}. Stairs No dispatcher is running, so nothing sends them "
                r"again: start one, or run them now\. 2 h ago 2 h ago Run 3 now… Cancel 3…"
            ),
            r"3 are overdue: climb of Stairs, the first one was due 2 h ago\.",
        ),
        (
            lambda _bus, driver, database: wait_long(driver, database),
            (
                rf"1 Waiting too long on rise {__name__}. Lift No deadline ends the wait, and it lasts "
                r"longer than 7 d\. Open a run to see what it waits for\. 8 d ago 8 d ago Cancel 1…"
            ),
            r"1 run waits too long: on rise of Lift, it began to 8 d ago\.",
        ),
    ],
    ids=["errors", "error", "stalled", "paused", "overdue", "waiting"],
)
def test_a_group_is_told_with_its_cause_and_what_can_be_done(
    bus, driver, database, show, make, row, sentence
):
    make(bus, driver, database)
    page = show()
    (shown,) = rows(page)
    assert re.fullmatch(row, shown.text), shown.text
    assert re.fullmatch(sentence, lede(page)), lede(page)


def test_of_overdue_runs_it_says_whether_the_sweep_sends_them_again(database, show):
    be_overdue(database, 3)
    assert "No dispatcher is running" in rows(show())[0].text
    beat(database, "worker", "0")
    beat(database, "dispatcher", "1 hour")
    assert "No dispatcher is running" in rows(show())[0].text
    beat(database, "dispatcher", "0")
    assert "The sweep sends them again; act only if they stay here." in rows(show())[0].text


def beat(database, kind, ago):
    """Has a process of the kind beat so long ago."""
    database.rows(
        "INSERT INTO pgbus.processes (process_id, kind, host, pid, started_at, heartbeat_at, details)"
        " VALUES (gen_random_uuid(), %s, 'here', 1, now(), now() - %s::interval, '{}')",
        kind,
        ago,
    )


@pytest.mark.parametrize(
    ("end", "row", "asked", "told", "becomes"),
    [
        (
            "cancel",
            r"Let 2 end as cancelled… Cancel 2…",
            (
                r"Let 2 runs end as cancelled\? Paused on error on close .*CableTornError "
                r"2 runs end as cancelled, oldest first: close asked for that while they were paused\. "
                r"Completed steps are not undone\. .* Let 2 runs end as cancelled Back, change nothing"
            ),
            "Cancelled 2.",
            "cancelled",
        ),
        (
            "finish",
            r"Finish 2… Cancel 2…",
            (
                r"Finish 2 runs\? Paused on close .*Lift "
                r"2 runs end as finished, oldest first: close asked for that while they were paused\. "
                r".* Finish 2 runs Back, change nothing"
            ),
            "Finished 2.",
            "finished",
        ),
        (
            "reattempt",
            r"The newest was paused by dashboard:ann, without a reason\. .*Resume 2… Cancel 2…",
            (
                r"Resume 2 runs\? Paused on close .*Lift 2 runs get a new attempt of close each, .* "
                r"Resume 2 runs Back, change nothing"
            ),
            "Resumed 2.",
            "ready",
        ),
    ],
    ids=ENDS,
)
def test_what_a_body_left_for_the_resume_is_what_the_group_says_asks_and_does(
    driver, show, confirm, end, row, asked, told, becomes
):
    runs = [Lift.start(ends=end) for _ in range(2)]
    driver.drain()
    assert statuses(runs) == ["paused"] * 2
    # Others of the same step, of which a resume does another thing, are another group.
    others = fail(driver) + pause(1)
    shown = next(one for one in rows(show()) if one.text.startswith("2 "))
    assert re.search(rf"{row}$", shown.text), shown.text
    listed = show(shown.list)
    assert len(re.findall(r"<tr [^>]*data-key", listed)) == 2
    ask = dialog(show(next(iter(shown.asks.values()))))
    assert re.fullmatch(asked, text_of(ask)), text_of(ask)
    assert toast(confirm(ask)) == told
    assert statuses(runs) == [becomes] * 2
    assert statuses(others) == ["paused"] * 2


def test_a_retry_of_failed_fan_outs_says_that_all_jobs_are_sent_again(driver, database, show):
    fail(driver, 2)
    fan_out_failed = qualified_name(FanOutFailed)
    database.rows("UPDATE pgbus.workflow_steps SET error_class = %s", fan_out_failed)
    database.rows("UPDATE pgbus.workflows SET settled_error = %s", fan_out_failed)
    again = "All its jobs are sent again, those that completed too."
    assert again in text_of(ask(show, "Resume 2…"))
    assert again not in text_of(ask(show, "Cancel 2…"))


def test_how_a_resume_ends_the_runs_is_a_filter_of_the_list(driver, show, client):
    cancelled, kept = Lift.start(ends="cancel"), Lift.start(raises="x")
    driver.drain()
    for held, run, word in (
        ("step_cancel", cancelled, "the run is cancelled"),
        ("none", kept, "the run goes on"),
    ):
        listed = show("/pgbus/workflows", held=held)
        assert re.findall(r'<tr [^>]*data-key="([^"]+)"', listed) == [run.workflow_id]
        assert f"once resumed {word}" in text_of(listed)
        assert f'<input type="hidden" name="held" value="{held}">' in listed
    assert client.get("/pgbus/workflows", query_string={"held": "park"}).status_code == 400


@pytest.mark.parametrize(
    ("by", "told"),
    [
        ({"actor": "system"}, "The newest paused by itself."),
        ({"actor": "system", "reason": "full"}, "The newest paused by itself: full"),
        ({"actor": "cli"}, "The newest was paused by cli, without a reason."),
    ],
)
def test_who_paused_the_newest_is_told_as_far_as_known(show, by, told):
    pause(1, **by)
    assert told in rows(show())[0].text


def test_the_count_of_a_group_links_to_exactly_its_runs(bus, driver, database, show):
    expected = {
        "Stalled": stall(bus, driver, database),
        "Paused on error": fail(driver, 3),
        "Waiting too long": wait_long(driver, database),
        "Paused": pause(4),
        "Overdue": be_overdue(database, 2),
    }
    shown = rows(show())
    assert len(shown) == len(expected)
    for row in shown:
        ((badge, runs),) = (
            (b, r)
            for b, r in expected.items()
            if re.search(rf"^\d {b} on (close|rise|climb)", row.text)
        )
        listed = show(row.list)
        assert all(run.workflow_id in listed for run in runs)
        assert row.shows == ("1 run, show it" if len(runs) == 1 else f"{len(runs)} runs, show them")
        assert len(re.findall(r"<tr [^>]*data-key", listed)) == len(runs), badge


def test_the_biggest_group_leads_and_the_sentence_counts_all(driver, database, show):
    fail(driver, 3)
    be_overdue(database, 2)
    pause(1)
    page = show()
    assert [row.text.split()[0] for row in rows(page)] == ["3", "2", "1"]
    assert lede(page).startswith("6 runs need you, in 3 groups. 3 share one cause: close of Lift")


def test_each_class_has_a_tab_with_its_count_and_a_page_of_its_own(driver, database, show):
    fail(driver, 3)
    be_overdue(database, 2)
    tabs = re.findall(r'<a href="([^"]+)"[^>]*><bdi>(.*?)</bdi> <span class="count">(.*?)<', show())
    assert [(label, count) for _, label, count in tabs] == [
        ("All classes", "5"),
        ("Lift", "3"),
        ("Stairs", "2"),
    ]
    of_stairs = show(html.unescape(tabs[2][0]))
    assert [row.text.split()[0] for row in rows(of_stairs)] == ["2"]
    assert lede(of_stairs).startswith("2 are overdue")
    assert len(rows(show(html.unescape(tabs[0][0])))) == 2


def test_a_step_of_a_class_has_a_tab_of_its_own_and_a_press_comes_back_to_it(
    driver, database, show, client
):
    fail(driver, 3)
    wait_long(driver, database)
    be_overdue(database, 2)
    page = show(workflow_class=LIFT, current_step="close")
    assert [row.text.split()[0] for row in rows(page)] == ["3"]
    current = re.search(
        r'aria-current="page" data-now><bdi>(\w+)</bdi> <span class="count">(\d+)<', page
    )
    assert current.groups() == ("close", "3")
    assert re.findall(r'</bdi> <span class="count">(\d+)<', page) == ["6", "4", "3", "2"]
    (row,) = rows(page)
    asked = dialog_of(show(row.asks["Cancel 3…"]))
    answer = client.post(asked.action, data=asked.fields)
    assert parse_qs(urlsplit(answer.location).query) == {
        "workflow_class": [LIFT], "current_step": ["close"],
    }  # fmt: skip
    assert "Nothing at this step needs you" in show(answer.location)


def test_a_class_without_stuck_runs_says_so_and_keeps_the_other_tabs(driver, show):
    fail(driver)
    page = show(workflow_class=STAIRS)
    assert "Nothing of this class needs you" in page
    assert ">Lift</bdi>" in page
    assert ">Stairs</bdi>" in page


def test_a_blank_class_means_all(driver, show):
    fail(driver)
    assert len(rows(show(workflow_class=" "))) == 1


@pytest.mark.parametrize(
    "name", ["not a class", "1shop.Order", "shop..Order", "<script>", "a\0b", "x" * 1001]
)
def test_what_is_no_name_of_a_class_is_a_bad_parameter(client, name):
    answer = client.get(PAGE, query_string={"workflow_class": name})
    assert answer.status_code == 400
    assert "<code>workflow_<wbr>class</code>" in answer.text
    assert "<script>" not in answer.text


@pytest.mark.parametrize(
    "name", ["shop.Order", "tests.test_it.test_this.<locals>.Order", "Bestellung.Größe"]
)
def test_a_name_that_a_class_could_have_is_none(show, name):
    assert "Nothing of this class needs you" in show(workflow_class=name)


HOSTILE = "<img src=x onerror=alert(1)>"


def test_hostile_names_and_texts_are_shown_as_text(driver, database, show):
    fail(driver, 1, message='"><svg onload=alert(2)>')
    database.rows(
        "UPDATE pgbus.workflows SET workflow_class = %s, current_step = %s, settled_error = %s",
        *(HOSTILE,) * 3,
    )
    database.rows("UPDATE pgbus.workflow_definitions SET workflow_class = %s", HOSTILE)
    database.rows(
        "UPDATE pgbus.workflow_steps SET step_name = %s, error_class = %s", HOSTILE, HOSTILE
    )
    page = show(workflow_class=HOSTILE)
    (row,) = rows(page)
    asked = show(row.asks["Cancel 1…"])
    for shown in (page, asked):
        assert "<img" not in shown
        assert "<svg onload" not in shown
    assert row.text.count(HOSTILE) == 3
    assert text_of(dialog(asked)).count(HOSTILE) == 3


def test_an_errors_text_is_shown_as_the_host_allows_and_cut(driver, make_site):
    fail(driver, 1, message="secret " + "x" * 3000)
    (row,) = rows(make_site().test_client().get(PAGE).text)
    assert "secret " + "x" * 193 + "…" in row.text
    # A page has only the beginning of it, in which half a secret would not be known for one.
    passing = make_site(redact=lambda _kind, value: value)
    (row,) = rows(passing.test_client().get(PAGE).text)
    assert "secret" not in row.text


def test_a_short_errors_text_is_shown_as_the_host_redacts_it(driver, make_site):
    fail(driver, 1, message="secret")
    hiding = make_site(redact=lambda kind, value: f"({kind} of {len(value)})")
    (row,) = rows(hiding.test_client().get(PAGE).text)
    assert "(error of 6)" in row.text
    assert "secret" not in row.text


def many(database, causes):
    """So many groups, of one run each, with long names and texts."""
    Stairs.start_many([(None, {})] * causes)
    database.rows(
        "UPDATE pgbus.workflow_steps s SET status = 'failed', error_message = repeat('an \"error\" & ', 90),"
        " error_class = 'shop.payments.gateway.errors.PaymentDeclinedByTheIssuingBank' || n || 'Error'"
        " FROM (SELECT step_id, row_number() OVER () n FROM pgbus.workflow_steps) o"
        " WHERE o.step_id = s.step_id"
    )
    database.rows(
        "UPDATE pgbus.workflows w SET status = 'paused', paused_at = now(), settled_error = s.error_class"
        " FROM pgbus.workflow_steps s WHERE s.step_id = w.step_id"
    )


def test_two_hundred_groups_come_in_pages_that_weigh_little(database, show):
    many(database, 200)
    page, seen = show(), []
    while True:
        assert len(page.encode()) < 150_000
        seen += [row.list for row in rows(page)]
        later = re.search(r'href="([^"]+)" rel="next"', page)
        if later is None:
            break
        page = show(html.unescape(later[1]))
    assert len(set(seen)) == len(seen) == 200
    assert "Groups 151 to 200 of 200, the biggest first." in page
    assert "There are more than these" not in page
    earlier = re.search(r'href="([^"]+)" rel="prev"', page)
    assert "Groups 101 to 150 of 200" in show(html.unescape(earlier[1]))
    assert lede(page).startswith("200 runs need you, in 200 groups.")


def test_past_two_hundred_groups_it_says_that_there_are_more(database, show):
    many(database, 201)
    page = show()
    assert "There are more than these: narrow the page to a class" in page
    assert lede(page).startswith("201 runs need you, in more than 200 groups.")


def test_a_place_past_the_last_group_is_the_last_page(database, driver, show):
    fail(driver)
    assert len(rows(show(start=51))) == 1


@pytest.mark.parametrize("start", ["0", "-1", "x", "1.5"])
def test_a_place_that_is_no_number_is_a_bad_parameter(client, start):
    assert client.get(PAGE, query_string={"start": start}).status_code == 400


def test_a_class_that_is_not_loaded_is_not_resumed(driver, show, client, confirm, monkeypatch):
    runs = fail(driver)
    asked = ask(show, "Resume 1…")
    monkeypatch.delitem(registry._definitions, LIFT)
    (row,) = rows(show())
    assert row.text.endswith("Cancel 1… Class not loaded here")
    # A dialog that was opened before finds out.
    page = confirm(asked)
    assert "Resumed 0. 1 failed: resume of run" in toast(page)
    assert "which is not loaded here; import its module." in toast(page)
    assert statuses(runs) == ["paused"]
    assert dialog(client.get(PAGE, query_string=fields_of(asked)).text) is None


def test_what_the_host_denies_is_neither_offered_nor_done(driver, make_site):
    runs = fail(driver)
    open_door = make_site().test_client()
    asked = dialog(open_door.get(rows(open_door.get(PAGE).text)[0].asks["Resume 1…"]).text)
    site = make_site(can=lambda _request, action: action == "cancel")
    client = site.test_client()
    (row,) = rows(client.get(PAGE).text)
    assert list(row.asks) == ["Cancel 1…"]
    fields = fields_of(asked)
    assert dialog(client.get(PAGE, query_string=fields).text) is None
    token = fields_of(client.get(PAGE).text)["csrf_token"]
    answer = client.post(PAGE, data=fields | {"csrf_token": token})
    page = client.get(answer.location).text
    assert toast(page) == "Nothing was done: you are not allowed to do that."
    assert statuses(runs) == ["paused"]


@pytest.mark.parametrize(
    ("make", "label", "told"),
    [
        (
            lambda driver, _: fail(driver, 2),
            "Resume 2…",
            (
                r"Resume 2 runs\? Paused on error on close .*Lift .*DoorJammedError "
                r"2 runs get a new attempt of close each, oldest first\. Completed steps are not run again\. "
                r"A run that has moved on is left alone and counted in the result\. "
                r"Runs that got stuck after \d\d:\d\d, when the page was read, are not touched\. "
                r"Reason \(optional, goes on the audit trail\) Resume 2 runs Back, change nothing"
            ),
        ),
        (
            lambda *_: pause(1),
            "Resume 1…",
            (
                r"Resume 1 run\? Paused on close .*Lift 1 run goes on where it was stopped at close\. .* "
                r"Resume 1 run Back, change nothing"
            ),
        ),
        (
            lambda _, database: be_overdue(database, 2),
            "Run 2 now…",
            (
                r"Run 2 runs now\? Overdue on climb .*Stairs climb of 2 runs is sent to the workers again, due at "
                r"once, oldest first\. .* Run 2 runs now Back, change nothing"
            ),
        ),
        (
            lambda driver, _: fail(driver, 2),
            "Cancel 2…",
            (
                r"Cancel 2 runs for good\? Paused on error on close .*Lift .*DoorJammedError "
                r"2 runs end as cancelled, oldest first\. None can be resumed\. Completed steps are not undone\. .* "
                r"Cancel 2 runs Back, change nothing"
            ),
        ),
    ],
    ids=["resume", "resume paused", "run now", "cancel"],
)
def test_the_dialog_names_what_it_will_do_and_opening_it_writes_nothing(
    driver, database, show, make, label, told
):
    runs = make(driver, database)
    before = trail(runs)
    asked = text_of(ask(show, label))
    assert re.fullmatch(told, asked), asked
    assert trail(runs) == before


def test_a_dialog_for_more_than_one_press_takes_says_so(driver, show):
    fail(driver)
    (row,) = rows(show())
    asked = text_of(dialog(show(row.asks["Resume 1…"].replace("count=1", "count=1812"))))
    assert asked.startswith("Resume 500 of 1,812 runs?")
    assert "One press takes at most 500 runs. Press again for the others." in asked
    assert "Resume 500 runs Back" in asked


def test_a_group_is_resumed_with_the_operators_name_and_reason(driver, show, make_site, database):
    runs = fail(driver, 3)
    client = make_site(web_actor=lambda _request: "alice").test_client()
    (row,) = rows(client.get(PAGE).text)
    asked = dialog(client.get(row.asks["Resume 3…"]).text)
    answer = client.post(PAGE, data=fields_of(asked) | {"reason": "  door mended \n"})
    assert (answer.status_code, answer.location) == (303, PAGE)
    page = client.get(answer.location).text
    assert toast(page) == "Resumed 3."
    assert 'class="toast good"' in page
    assert trail(runs).count(("resumed", "dashboard:alice", "door mended")) == 3
    assert statuses(runs) == ["ready"] * 3


@pytest.mark.parametrize(
    ("reason", "stored"), [("", None), (" \n", None), ("x" * 5000, "x" * 1000)]
)
def test_a_reason_is_optional_and_cut(show, confirm, reason, stored):
    runs = pause(1)
    confirm(ask(show, "Cancel 1…"), reason=reason)
    assert ("cancelled", "dashboard", stored) in trail(runs)


def test_an_overdue_group_is_sent_to_run_now(database, driver, show, confirm):
    runs = be_overdue(database, 2)
    assert toast(confirm(ask(show, "Run 2 now…"))) == "Sent 2 to run now."
    driver.drain()
    assert statuses(runs) == ["finished"] * 2


def test_a_press_returns_to_the_page_of_its_class(driver, database, show, confirm):
    fail(driver)
    runs = be_overdue(database, 2)
    page = confirm(ask(show, "Cancel 2…", workflow_class=STAIRS))
    assert parse_qs(urlsplit(confirm.location).query) == {"workflow_class": [STAIRS]}
    assert toast(page) == "Cancelled 2."
    assert "Nothing of this class needs you" in page
    assert statuses(runs) == ["cancelled"] * 2


def test_a_group_that_grew_meanwhile_is_not_swept_along(show, confirm):
    shown = pause(2)
    asked = ask(show, "Cancel 2…")
    later = pause(1)
    assert toast(confirm(asked)) == "Cancelled 2."
    assert statuses(shown + later) == ["cancelled", "cancelled", "paused"]


def test_a_form_that_is_sent_again_never_acts_on_more_than_it_showed(show, confirm):
    shown = pause(2)
    asked = ask(show, "Resume 2…")
    confirm(asked)
    shown[0].reload().pause()
    later = pause(3)
    assert toast(confirm(asked)) == "Nothing was done: no such run is stuck any more."
    assert statuses(shown + later) == ["paused", "ready", "paused", "paused", "paused"]


def test_no_more_runs_are_taken_than_the_page_counted(database, show, confirm):
    runs = pause(3)
    asked = ask(show, "Cancel 3…")
    assert toast(confirm(asked, count="2")) == "Cancelled 2."
    assert statuses(runs) == ["cancelled", "cancelled", "paused"]


MALFORMED = [
    *({name: ""} for name in ("of_class", "step", "stuck", "verb", "count", "as_of")),
    {"stuck": "asleep"},
    {"verb": "explode"},
    {"verb": "run_now"},
    {"count": "many"},
    {"count": "0"},
    {"count": "-3"},
    {"count": "9" * 30},
    {"as_of": "yesterday"},
    {"as_of": "0001-01-01T00:00:00+23:00"},
    {"of_class": "x" * 1001},
    {"step": "a\0b"},
    {"error_class": "a\0b"},
    {"held": "park"},
]


@pytest.mark.parametrize("changed", MALFORMED, ids=str)
def test_a_malformed_group_is_told_and_nothing_is_done(client, show, confirm, changed):
    runs = pause(1)
    asked = ask(show, "Resume 1…")
    before = trail(runs)
    page = confirm(asked, **changed)
    (name,) = changed
    assert toast(page) == f"Nothing was done: the form names no group of this page ({name})."
    assert trail(runs) == before


@pytest.mark.parametrize("changed", [one for one in MALFORMED if one != {"verb": ""}], ids=str)
def test_a_link_to_a_malformed_dialog_is_a_bad_parameter(client, show, changed):
    pause(1)
    fields = fields_of(ask(show, "Resume 1…"))
    answer = client.get(PAGE, query_string=fields | changed)
    assert answer.status_code == 400


@pytest.mark.parametrize("outage", [DatabaseAway("gone"), ReadTimeout("slow")])
def test_a_press_that_could_not_look_for_the_runs_says_that_nothing_was_done(
    show, confirm, monkeypatch, outage
):
    def away(*_arguments, **_named):
        raise outage

    runs = pause(1)
    asked = ask(show, "Cancel 1…")
    monkeypatch.setattr(stuck, "members", away)
    page = confirm(asked)
    assert toast(page) == "Nothing was done: PostgreSQL does not answer. Press again later."
    assert statuses(runs) == ["paused"]


def test_a_press_without_its_token_does_nothing(client, show):
    runs = pause(1)
    fields = fields_of(ask(show, "Cancel 1…"))
    del fields["csrf_token"]
    assert client.post(PAGE, data=fields).status_code == 400
    assert statuses(runs) == ["paused"]


def words(language="en"):
    moment = datetime(2026, 11, 29, 2, 12, 8, tzinfo=UTC)
    return Words(NullTranslations(), Locale(language), ZoneInfo("Europe/Berlin"), moment)


def result(**figures):
    nothing = {"done": 0, "moved_on": 0, "failed": 0, "first_failure": None}
    return BulkResult(**(nothing | {"in_doubt": None, "may_be_more": False} | figures))


@pytest.mark.parametrize(
    ("verb", "figures", "tone", "told"),
    [
        (Verb.RESUME, {"done": 212}, "good", "Resumed 212."),
        (
            Verb.RESUME,
            {"done": 1212, "moved_on": 2},
            "good",
            "Resumed 1,212; 2 had already moved on.",
        ),
        (
            Verb.RUN_NOW,
            {"moved_on": 1},
            "warn",
            "Sent 0 to run now; 1 had already moved on.",
        ),
        (Verb.CANCEL, {"done": 3, "moved_on": 1}, "good", "Cancelled 3; 1 had already moved on."),
        (
            Verb.CANCEL,
            {"done": 500, "may_be_more": True},
            "good",
            "Cancelled 500. More may wait: press again for them.",
        ),
        (
            Verb.RESUME,
            {"done": 1, "failed": 1, "first_failure": "locked"},
            "bad",
            "Resumed 1. 1 failed: locked",
        ),
        (
            Verb.RESUME,
            {"failed": 7, "first_failure": "x" * 300},
            "bad",
            f"Resumed 0. 7 failed, the first one: {'x' * 200}…",
        ),
        (
            Verb.RESUME,
            {"done": 4, "in_doubt": "01a0", "may_be_more": True},
            "bad",
            (
                "Resumed 4. PostgreSQL went away while run 01a0 was in hand, so check whether that one is done. "
                "More may wait: press again for them."
            ),
        ),
        (Verb.RESUME, {}, "warn", "Nothing was done: no such run is stuck any more."),
    ],
)
def test_what_a_press_did_is_told_honestly(verb, figures, tone, told):
    given = result(**figures)
    assert presenter.outcome(verb, given, given.first_failure, words()) == (tone, told)


def test_a_failures_text_is_shown_as_the_host_allows(driver, make_site, monkeypatch):
    fail(driver)
    client = make_site(redact=lambda kind, value: f"({kind})").test_client()
    (row,) = rows(client.get(PAGE).text)
    asked = dialog(client.get(row.asks["Resume 1…"]).text)
    monkeypatch.delitem(registry._definitions, LIFT)
    answer = client.post(PAGE, data=fields_of(asked))
    assert toast(client.get(answer.location).text) == "Resumed 0. 1 failed: (error)"


@pytest.mark.parametrize("reason", StuckReason)
@pytest.mark.parametrize("error_class", [None, "shop.DeclinedError"])
@pytest.mark.parametrize("count", [1, 1812])
def test_every_cause_has_its_sentence(reason, error_class, count):
    moment = words().now - timedelta(minutes=35)
    group = StuckGroup(
        key=GroupKey("shop.Order", "capture", reason, error_class),
        count=count,
        first_at=moment,
        last_at=moment,
        newest_error_message=None,
        newest_actor=None,
        newest_because=None,
    )
    told = text_of(presenter.lede((group,), count, words(), exhaustive=True))
    assert told.startswith(f"{count:,} ")
    assert (" with ." in told, " with , " in told) == (False, False)
    of_error = error_class is not None and reason is StuckReason.PAUSED_ERROR
    assert ("DeclinedError" in told) is of_error
    assert "capture of Order" in told
    assert "35 min ago" in told
