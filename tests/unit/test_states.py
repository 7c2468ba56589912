"""The transition table, against the one that is written down."""

from itertools import product

import pytest

from pgbus.engine.states import (
    ONGOING,
    OPEN,
    TRANSITIONS,
    AttemptStatus,
    Move,
    RunStatus,
    Verb,
    allows,
    available_actions,
)

VERBS = {
    "pause": ("ready performing waiting", "paused"),
    "resume": ("paused", "ready performing waiting finished cancelled"),
    "resume_at": ("paused", "ready"),
    "cancel": ("ready performing waiting paused", "cancelled"),
    "skip": ("waiting paused", "ready finished"),
    "run_now": ("ready", "ready"),
    "reschedule": ("ready", "ready"),
    "signal": ("ready performing waiting paused", "ready performing waiting paused"),
    "rerun": ("finished cancelled", "finished cancelled"),
}

MOVES = {
    "start": ("", "ready"),
    "claim": ("ready", "performing"),
    "advance": ("performing", "ready"),
    "reattempt": ("performing", "ready"),
    "finish": ("performing", "finished"),
    "step_pause": ("performing", "paused"),
    "step_cancel": ("performing", "cancelled"),
    "park": ("performing", "waiting"),
    "wake": ("waiting", "ready"),
    "resolve": ("waiting", "performing"),
    "hold": ("paused", "paused cancelled"),
    "notice": ("waiting", "waiting"),
}


def test_the_table_is_the_one_in_the_specification():
    assert {
        str(move): (set(allowed.sources), set(allowed.targets))
        for move, allowed in TRANSITIONS.items()
    } == {
        name: (set(sources.split()), set(targets.split()))
        for name, (sources, targets) in (VERBS | MOVES).items()
    }


def test_every_verb_and_move_is_in_the_table():
    assert set(TRANSITIONS) == {*Verb, *Move}


def test_no_move_leaves_a_run_that_is_over():
    over = set(RunStatus) - ONGOING
    assert over == {"finished", "cancelled"}
    for move, allowed in TRANSITIONS.items():
        assert move is Verb.RERUN or not allowed.sources & over


def test_a_run_that_is_over_is_left_as_it_is_by_a_rerun():
    assert TRANSITIONS[Verb.RERUN].sources == TRANSITIONS[Verb.RERUN].targets


def test_the_open_attempts_are_those_that_may_still_do_something():
    assert {"scheduled", "waiting", "in_progress"} == OPEN


@pytest.mark.parametrize("verb", Verb)
def test_a_verb_asks_for_a_state_of_the_run_and_some_for_one_of_its_attempt(verb):
    needs = {
        "skip": {"failed", "scheduled", "waiting"},
        "run_now": {"scheduled"},
        "reschedule": {"scheduled"},
    }
    assert {pair for pair in product(RunStatus, AttemptStatus) if allows(verb, *pair)} == set(
        product(VERBS[verb][0].split(), needs.get(verb, AttemptStatus))
    )


def test_the_actions_come_in_one_order_and_without_a_class_some_are_left_out():
    paused = RunStatus.PAUSED, AttemptStatus.FAILED
    assert available_actions(*paused, class_loaded=True) == (
        "resume", "resume_at", "cancel", "skip", "signal",
    )  # fmt: skip
    assert available_actions(*paused, class_loaded=False) == ("cancel", "signal")
    over = RunStatus.FINISHED, AttemptStatus.COMPLETED
    assert available_actions(*over, class_loaded=True) == ("rerun",)
    assert available_actions(*over, class_loaded=False) == ()
    ready = RunStatus.READY, AttemptStatus.SCHEDULED
    assert available_actions(*ready, class_loaded=False) == (
        "pause", "cancel", "run_now", "reschedule", "signal",
    )  # fmt: skip
