"""The engine and a small model of it do the same things, and agree after each."""

from __future__ import annotations

import os
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from random import Random
from typing import TYPE_CHECKING, Any

import model
import pytest
from hypothesis import HealthCheck, Phase, note, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)
from model import Deadline, Due, Refused
from shapes import BREAKS, DIFFERS, MATCHES, SHAPES, SIGNAL, Asked, Ending, Guarding, plan
from sqlalchemy.orm import sessionmaker
from support.replay import assert_trail_replays
from world import World

from pgbus import Pgbus
from pgbus.engine.runner import finalize
from pgbus.engine.states import ONGOING, AttemptStatus, MemberStatus, RunStatus, Verb

if TYPE_CHECKING:
    from collections.abc import Callable

    from pgbus import Run
    from pgbus.engine.runner.attempt import Attempt as Prepared

#: Rounds of the test, each with a chance of its own; `make chaos` asks for many.
ROUNDS = int(os.environ.get("PGBUS_TEST_MODEL_ROUNDS", "8"))
#: Past its first ten examples hypothesis goes on with variants of them.
A_ROUND = settings(
    max_examples=10,
    stateful_step_count=50,
    database=None,
    deadline=None,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=[HealthCheck.too_slow],
)

MAX_ONGOING = 3

ENDED = (MemberStatus.COMPLETED, MemberStatus.DEAD_LETTERED, MemberStatus.DISCARDED)
HOW = ("own", "own", "own", "committed", "rolled_back")
RESCHEDULED = {Due.NOW: -3600, Due.SOON: 40, Due.FAR: 3600}
ENDINGS = (*[Ending.RETURN] * 8, *Ending, *[Ending.FAIL_FLAKILY] * 3, Ending.FAIL_FATALLY)
VERBS = tuple(verb for verb in Verb if verb is not Verb.SIGNAL)
FITTING = {
    RunStatus.READY: (Verb.RUN_NOW, Verb.RESCHEDULE, Verb.PAUSE),
    RunStatus.PERFORMING: (Verb.PAUSE, Verb.PAUSE),
    RunStatus.WAITING: (Verb.PAUSE, Verb.PAUSE, Verb.SKIP),
    RunStatus.PAUSED: (Verb.RESUME, Verb.RESUME, Verb.RESUME_AT, Verb.RESUME_AT, Verb.SKIP),
    RunStatus.FINISHED: (Verb.RERUN,),
    RunStatus.CANCELLED: (Verb.RERUN,),
}


class Pair:
    """A run, and the model's."""

    def __init__(self, run: Run, of_model: model.Run) -> None:
        self.run = run
        self.model = of_model

    def __str__(self) -> str:
        return f"<{self.model.shape.__name__} {self.model.status}, {self.model.newest}>"


class Hand:
    """A body that a worker has in hand, and whose attempt that is to the model."""

    def __init__(self, prepared: Prepared, pair: Pair, attempt: model.Attempt) -> None:
        self.prepared = prepared
        self.pair = pair
        self.attempt = attempt

    def __str__(self) -> str:
        return f"<{self.attempt}, of {self.pair}>"


class Agreement(RuleBasedStateMachine):
    """Does the same to both, anything that may happen at any time, and compares what is to be seen."""

    def __init__(self, world: World, replay: Callable[[], None], chance: int) -> None:
        super().__init__()
        self.chance = chance
        self.world = world
        self.replay = replay
        self.pairs: list[Pair] = []
        self.hands: list[Hand] = []
        world.clear()

    @rule(seed=st.integers(0, 2**64 - 1))
    def happen(self, seed):
        """Lets one thing happen.

        Hypothesis prefers few rules and the first of several, and here most things need each other. With
        a seed for each step the choice is even, and it still finds the steps that matter.
        """
        random = Random(f"{self.chance} {seed}")
        story: list[str] = []

        def draw(*of: Any) -> Any:
            drawn = random.choice(of)
            story.append(str(drawn))
            return drawn

        likely = [
            name for name, (often, may) in HAPPENINGS.items() if may(self) for _ in range(often)
        ]
        happening = draw(*likely)
        try:
            getattr(self, happening)(draw)
        finally:
            note(", ".join(story))

    @invariant()
    def agree(self):
        found = self.world.view()
        assert len(found) == len(self.pairs)
        for pair in self.pairs:
            _assert_same(found[pair.run.workflow_id], pair.model.view(), str(pair))

    def teardown(self):
        self.replay()

    # Callers.

    def start(self, draw):
        shape = draw(*SHAPES)
        self.pairs.append(Pair(self.world.start(shape), model.Run(shape)))

    def ask(self, draw):
        pair = draw(*self._ongoing() * 3, *self.pairs)
        verb = draw(*FITTING[pair.model.status] * 6, *VERBS)
        given = ()
        if verb is Verb.RESUME_AT:
            given = (draw("first", "first", "second", "second", "later", "gone", "nowhere"),)
        elif verb is Verb.RESCHEDULE:
            given = (draw(*Due),)
        answers = self._ask(pair, draw(*HOW), verb, *given)
        if verb is Verb.RERUN and answers:
            self.pairs.append(Pair(*answers))

    def resume(self, draw):
        self._ask(draw(*self._paused()), "own", Verb.RESUME)

    def signal(self, draw):
        pair = draw(*self._ongoing() * 3, *self.pairs)
        name, n = (
            draw(SIGNAL, SIGNAL, SIGNAL, "other"),
            draw(*[MATCHES] * 5, DIFFERS, DIFFERS, BREAKS),
        )
        answers = self._ask(pair, draw(*HOW), Verb.SIGNAL, name, n, draw(None, None, " ", "a", "b"))
        if answers:
            assert answers[0].duplicate_delivery is answers[1]

    def _ask(self, pair: Pair, how: str, verb: Verb, *given: Any) -> tuple[Any, Any] | None:
        """The answers of both to a verb; None when both refuse it, with the same words."""
        asked = pair.model
        if how == "rolled_back":
            shared = (asked.shape, *asked.steps)
            asked = deepcopy(asked, {id(one): one for one in shared})
        try:
            expected = getattr(asked, verb)(*given)
        except Refused as refused:
            self._refuse(pair, how, verb, given, refused)
            return None
        with self.world.session(how) as session:
            found = _ask_engine(pair.run, verb, given, session)
        return None if how == "rolled_back" else (found, expected)

    def _refuse(self, pair, how, verb, given, refused):
        with pytest.raises(refused.error) as raised, self.world.session(how) as session:
            _ask_engine(pair.run, verb, given, session)
        assert type(raised.value) is refused.error
        assert getattr(raised.value, "status", None) == refused.status

    # Workers.

    def deliver(self, draw):
        found = self.world.step_messages()
        due = [one for one in found if one.own and not self._pair(one.workflow_id).model.performs]
        self._deliver(draw, draw(*found, *due * 6))

    def deliver_another(self, draw):
        if found := [one for one in self.world.step_messages() if not one.own]:
            self._deliver(draw, draw(*found))

    def _deliver(self, draw, message):
        pair = self._pair(message.workflow_id)
        guarding = draw(*[Guarding.PASS] * 12, *Guarding)
        asked = draw(Asked.PERIOD, Asked.PERIOD, *Asked)
        expected = pair.model.expected_readers()
        plan.guarding, plan.asked, plan.guard_saw = guarding, asked, None
        attempt = pair.model.deliver(own=message.own, guarding=guarding, asked=asked)
        self._have_in_hand(pair, self.world.deliver(message), attempt)
        assert plan.guard_saw in (None, expected)

    def end_body(self, draw):
        hand = draw(*self.hands)
        self.hands.remove(hand)
        # What failed fails again.
        ending = draw(*ENDINGS, *[plan.ending] * 5)
        goes_on, plan.ending, plan.members = (
            draw("goes on", "") == "goes on",
            ending,
            draw(0, 1, 2, 3),
        )
        asked = hand.pair.model
        signal = asked.held_signal(hand.attempt.step)
        counts = hand.attempt is asked.newest and asked.performs
        following = asked.end_body(hand.attempt, ending, plan.members, goes_on=goes_on)
        prepared = self.world.end_body(hand.prepared, goes_on=goes_on)
        self._have_in_hand(hand.pair, prepared, following)
        assert len(set(plan.bodies)) == len(plan.bodies), "a body ran twice in one attempt"
        if counts:
            self._saw(hand, signal)

    def _have_in_hand(self, pair, prepared, attempt):
        assert (prepared is None) == (attempt is None), f"a body begins: {prepared}, {attempt}"
        if prepared is not None:
            self.hands.append(Hand(prepared, pair, attempt))

    def _saw(self, hand, signal):
        signal_id, timed_out = plan.body_saw
        assert timed_out is hand.attempt.timed_out
        if signal is None or hand.attempt.step.wait_for is None:
            assert signal_id is None
        else:
            at = hand.pair.model.signals.index(signal)
            assert [one.signal_id for one in hand.pair.run.signals][at] == signal_id

    def end_member(self, draw):
        members = self._members()
        pair, attempt, number = members[draw(*range(len(members)))]
        batch, ran = attempt.batch, len(plan.jobs)
        status = draw(*[MemberStatus.COMPLETED] * 5, *ENDED)
        model.end_member(batch, number, status)
        named = (pair.run.workflow_id, attempt.step.name, attempt.number)
        self.world.end_member(named, number + 1, status)
        assert not (batch.withdrawn and len(plan.jobs) > ran), "a withdrawn member ran"

    # What goes wrong, the clock, and the sweep.

    def lose_message(self, draw):
        if found := self.world.step_messages():
            message = draw(*found)
            self.world.lose(message)
            if message.own:
                self._pair(message.workflow_id).model.newest.message = False

    def copy_message(self, draw):
        if found := self.world.step_messages():
            self.world.copy(draw(*found))

    def lose_batch(self, draw):
        pair = draw(*self._on_batches())
        self.world.lose_batch(pair.run.workflow_id)
        pair.model.newest.batch.gone = True

    def come_due(self, draw):
        pair = draw(*self._early())
        pair.model.come_due()
        self.world.come_due(pair.run.workflow_id)

    def pass_deadline(self, draw):
        pair = draw(*self._before_deadline())
        if pair.model.status is RunStatus.WAITING:
            pair.model.newest.deadline = Deadline.PAST
        self.world.pass_deadline(pair.run.workflow_id)

    def hang(self, draw):
        pair = draw(*self._performing())
        pair.model.stall()
        self.world.hang(pair.run.workflow_id)

    def sweep(self, draw):
        plan.asked = draw(*Asked)
        for pair in self.pairs:
            pair.model.sweep(plan.asked)
        self.world.sweep()

    def _pair(self, workflow_id: str) -> Pair:
        return next(pair for pair in self.pairs if pair.run.workflow_id == workflow_id)

    def _those(self, which: Callable[[model.Run], Any]) -> list[Pair]:
        return [pair for pair in self.pairs if which(pair.model)]

    def _ongoing(self) -> list[Pair]:
        return self._those(lambda run: run.status in ONGOING)

    def _paused(self) -> list[Pair]:
        return self._those(lambda run: run.status is RunStatus.PAUSED)

    def _performing(self) -> list[Pair]:
        return self._those(lambda run: run.status is RunStatus.PERFORMING)

    def _early(self) -> list[Pair]:
        return self._those(
            lambda run: (
                run.newest.status is AttemptStatus.SCHEDULED and run.newest.due is not Due.NOW
            )
        )

    def _before_deadline(self) -> list[Pair]:
        return self._those(
            lambda run: run.status in ONGOING and run.newest.deadline is Deadline.AHEAD
        )

    def _on_batches(self) -> list[Pair]:
        return self._those(
            lambda run: run.newest.status is AttemptStatus.WAITING and run.newest.batch
        )

    def _members(self) -> list[tuple[Pair, model.Attempt, int]]:
        return [
            (pair, attempt, number)
            for pair in self.pairs
            for attempt in pair.model.attempts
            if attempt.batch and not attempt.batch.gone
            for number, status in enumerate(attempt.batch.members)
            if status is MemberStatus.OPEN
        ]


#: What may happen, how likely it is beside the others, and when it may.
HAPPENINGS: dict[str, tuple[int, Callable[[Agreement], Any]]] = {
    "start": (4, lambda machine: len(machine._ongoing()) < MAX_ONGOING),
    "ask": (9, lambda machine: machine.pairs),
    "resume": (5, Agreement._paused),
    "signal": (4, lambda machine: machine.pairs),
    "deliver": (12, lambda machine: machine._those(lambda run: run.newest.message)),
    "deliver_another": (2, lambda machine: machine.pairs),
    "end_body": (12, lambda machine: machine.hands),
    "end_member": (10, Agreement._members),
    "lose_message": (1, lambda machine: machine.pairs),
    "copy_message": (1, lambda machine: machine.pairs),
    "lose_batch": (1, Agreement._on_batches),
    "come_due": (3, Agreement._early),
    "pass_deadline": (4, Agreement._before_deadline),
    "hang": (1, Agreement._performing),
    "sweep": (2, lambda machine: machine.pairs),
}


def _assert_same(found: Any, expected: Any, where: str) -> None:
    """Fails naming the innermost place where they differ, which their whole would hide."""
    if isinstance(expected, dict):
        for name, value in expected.items():
            _assert_same(found[name], value, f"{where}, {name}")
    elif isinstance(expected, list) and len(found) == len(expected):
        for place, value in enumerate(expected):
            _assert_same(found[place], value, f"{where}, {place}")
    else:
        assert found == expected, where


def _ask_engine(run: Run, verb: Verb, given: tuple[Any, ...], session: Any) -> Any:
    if verb is Verb.SIGNAL:
        name, n, key = given
        return run.signal(name, {"n": n}, key, session=session)
    if verb is Verb.RESCHEDULE:
        moment = datetime.now(UTC) + timedelta(seconds=RESCHEDULED[given[0]])
        return run.reschedule(moment, session=session)
    return getattr(run, verb)(*given, session=session)


@pytest.mark.timeout(600)  # a failure is shrunk for up to five minutes
@pytest.mark.parametrize("chance", range(ROUNDS))
def test_the_engine_does_what_the_model_says(chance, database, monkeypatch):
    # How long a machine takes must not decide whether a run goes on at once.
    monkeypatch.setattr(finalize, "MAX_SECONDS", 3600.0)
    bus = Pgbus(database_url=database.url, session_factory=sessionmaker(database.engine))
    try:
        with database.connection(autocommit=True) as connection:
            world = World(bus, database, connection)

            def both():
                return Agreement(world, lambda: assert_trail_replays(database), chance)

            run_state_machine_as_test(seed(chance)(both), settings=A_ROUND)
    finally:
        bus.close()
