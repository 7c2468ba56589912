import hashlib
import json
from datetime import UTC, datetime, timedelta, timezone
from types import new_class

import pytest

from pgbus import SignalMatcher, Workflow, fan_out, on_exception, removed_step, step


def work(self): ...


def spread(self, batch): ...


def definition_of(**steps):
    return new_class("Made", (Workflow,), exec_body=lambda body: body.update(steps))._definition


def test_the_step_list_names_the_steps_in_order_and_leaves_defaults_out():
    until = datetime(2040, 1, 1, 2, tzinfo=timezone(timedelta(hours=2)))
    made = definition_of(
        plain=step(work),
        full=step(
            work,
            wait=30,
            transactional=True,
            skip_if="plain",
            job_options={"wait_until": until},
        ),
        lazy=step(work, wait=1, job_options={"wait": 2}, skip_if=lambda _self: True),
        gone=removed_step(),
        waits=step(work, wait_for=SignalMatcher("paid"), wait_timeout=60, on_timeout="run"),
        asks=step(work, wait_for="paid", wait_timeout="plain", on_timeout="pause"),
        spread=fan_out(spread, on_batch_failure="skip"),
        usual=fan_out(spread, on_batch_failure="pause"),
    )
    assert made.step_list == [
        {"name": "plain"},
        {
            "name": "full",
            "transactional": True,
            "wait": 30,
            "wait_until": "2040-01-01T00:00:00+00:00",
            "skip_if": "plain",
        },
        {"name": "lazy", "wait": 2, "skip_if": "<lambda>"},
        {"name": "gone", "removed": True},
        {"name": "waits", "wait_for": "paid", "wait_timeout": 60, "on_timeout": "run"},
        {"name": "asks", "wait_for": "paid", "wait_timeout": "plain"},
        {"name": "spread", "fan_out": True, "on_batch_failure": "skip"},
        {"name": "usual", "fan_out": True},
    ]
    assert json.loads(json.dumps(made.step_list)) == made.step_list


def test_the_digest_is_fixed_for_a_step_list():
    made = definition_of(pay=step(work), ship=step(work, wait=1, skip_if="pay"))
    canonical = b'[{"name":"pay"},{"name":"ship","skip_if":"pay","wait":1.0}]'
    assert made.digest == hashlib.sha256(canonical).hexdigest()


def test_the_same_declaration_has_the_same_digest():
    assert definition_of(pay=step(work)).digest == definition_of(pay=step(work)).digest


@pytest.mark.parametrize(
    "other",
    [
        {"ship": step(work), "pay": step(work)},
        {"pay": step(work)},
        {"pay": step(work), "ship": step(work), "more": step(work)},
        {"pay": step(work), "ship": removed_step()},
        {"pay": step(work), "ship": step(work, wait=1)},
        {"pay": step(work), "ship": step(work, transactional=True)},
        {"pay": step(work), "ship": step(work, skip_if="pay")},
        {"pay": step(work), "ship": step(work, job_options={"wait": 1})},
        {"pay": step(work), "ship": step(work, wait_for="paid")},
        {"pay": step(work), "ship": fan_out(spread)},
        {
            "pay": step(work),
            "ship": step(work, job_options={"wait_until": datetime(2040, 1, 1, tzinfo=UTC)}),
        },
    ],
)
def test_what_is_done_and_when_changes_the_digest(other):
    assert definition_of(**other).digest != definition_of(pay=step(work), ship=step(work)).digest


def test_where_a_message_travels_and_what_follows_an_error_do_not_change_the_digest():
    plain = definition_of(pay=step(work))
    tuned = definition_of(
        pay=step(
            work,
            job_options={"queue": "mail", "priority": 0},
            timeout=5,
            on_stall="cancel",
            policies=[on_exception(action="skip")],
        )
    )
    assert tuned.digest == plain.digest
