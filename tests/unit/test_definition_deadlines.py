from datetime import UTC, datetime, timedelta

import pytest

from pgbus.engine.definition.deadline import deadline_of

PAST = datetime(2000, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "deadline"),
    [
        (None, None),
        (30, timedelta(seconds=30)),
        (0.5, timedelta(seconds=0.5)),
        (timedelta(days=7), timedelta(days=7)),
        (PAST, PAST),
    ],
)
def test_a_wait_lasts_a_duration_or_until_a_moment_or_without_end(value, deadline):
    assert deadline_of(value) == deadline


@pytest.mark.parametrize(
    "value",
    [
        0,
        -1,
        timedelta(0),
        timedelta(seconds=-1),
        True,
        False,
        "30",
        PAST.replace(tzinfo=None),
        PAST.date(),
        float("nan"),
        timedelta(days=36_526),
        [],
    ],
)
def test_what_is_no_deadline_is_named_with_the_mend(value):
    with pytest.raises(
        ValueError, match=r"wait_timeout gave .*, which is no deadline; give seconds"
    ):
        deadline_of(value)
