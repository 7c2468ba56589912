from datetime import timedelta

import pytest

from pgbus import Workflow, on_exception, step
from pgbus.engine.definition.policy import Policy, PolicyAction, Report
from pgbus.engine.errors import DefinitionError


class PaymentError(Exception): ...


class DeclinedError(PaymentError): ...


class StolenError(DeclinedError): ...


def deciding(workflow_class, error, step_name="pay"):
    """The wait of the policy that decides, in seconds: tests number their policies by it."""
    definition = workflow_class._definition
    policy = definition.policy_for(definition.step(step_name), error)
    return policy and policy.wait.total_seconds()


def numbered(number, *errors):
    return on_exception(*errors, action="reattempt", wait=number)


def test_a_policy_has_the_documented_defaults():
    assert on_exception(action="reattempt") == Policy(
        errors=(),
        action=PolicyAction.REATTEMPT,
        wait=timedelta(0),
        max_reattempts=100,
        terminal_action=PolicyAction.PAUSE,
        report=Report.ALWAYS,
        handler=None,
    )


def test_every_option_reaches_the_policy():
    policy = on_exception(
        PaymentError,
        "stripe.error.CardError",
        action="reattempt",
        wait=timedelta(minutes=1),
        max_reattempts=None,
        terminal_action="cancel",
        report="terminal_only",
    )
    assert policy.errors == (PaymentError, "stripe.error.CardError")
    assert policy.wait == timedelta(minutes=1)
    assert policy.max_reattempts is None
    assert policy.terminal_action is PolicyAction.CANCEL
    assert policy.report is Report.TERMINAL_ONLY


def test_without_a_policy_nothing_decides():
    class Bare(Workflow):
        policies = (numbered(1, KeyError),)

        @step
        def pay(self): ...

    assert deciding(Bare, ValueError()) is None


def test_the_most_specific_class_decides_wherever_it_is_declared():
    class Specific(Workflow):
        policies = (
            numbered(1, DeclinedError),
            numbered(2, Exception),
            numbered(3, PaymentError, KeyError),
            numbered(4),
        )

        @step
        def pay(self): ...

    assert deciding(Specific, StolenError()) == 1
    assert deciding(Specific, PaymentError()) == 3
    assert deciding(Specific, KeyError()) == 3
    assert deciding(Specific, ValueError()) == 2
    assert deciding(Specific, BaseException()) == 4


def test_of_equally_specific_policies_the_last_declared_decides():
    class Last(Workflow):
        policies = (numbered(1, PaymentError), numbered(2, PaymentError), numbered(3), numbered(4))

        @step
        def pay(self): ...

    assert deciding(Last, PaymentError()) == 2
    assert deciding(Last, ValueError()) == 4


def test_a_subclasss_policy_goes_before_its_bases_and_adds_to_it():
    class Base(Workflow):
        policies = (numbered(1, PaymentError), numbered(2, KeyError), numbered(3, DeclinedError))

        @step
        def pay(self): ...

    class Sub(Base):
        policies = [numbered(4, PaymentError)]  # noqa: RUF012 # a list will do

    assert deciding(Sub, PaymentError()) == 4
    assert deciding(Sub, KeyError()) == 2
    assert deciding(Sub, DeclinedError()) == 3
    assert deciding(Base, PaymentError()) == 1


def test_a_steps_own_policies_go_before_any_of_the_class():
    class Own(Workflow):
        policies = (numbered(1, StolenError),)

        @step(policies=[numbered(2), numbered(3, PaymentError)])
        def pay(self): ...

        @step(policies=(numbered(4, KeyError),))
        def ship(self): ...

    assert deciding(Own, StolenError()) == 3
    assert deciding(Own, ValueError()) == 2
    assert deciding(Own, StolenError(), "ship") == 1


def test_an_error_is_named_by_its_qualified_name_or_a_bases():
    class Named(Workflow):
        policies = (numbered(1, f"{__name__}.PaymentError"), numbered(2, "builtins.KeyError"))

        @step
        def pay(self): ...

    assert deciding(Named, PaymentError()) == 1
    assert deciding(Named, StolenError()) == 1
    assert deciding(Named, KeyError()) == 2
    assert deciding(Named, ValueError()) is None


@pytest.mark.parametrize("name", ["KeyError", "builtins.KeyError"])
def test_a_builtin_error_is_named_as_it_is_recorded_or_with_its_module(name):
    class Named(Workflow):
        policies = (numbered(1, name),)

        @step
        def pay(self): ...

    assert deciding(Named, KeyError()) == 1
    assert deciding(Named, LookupError()) is None
    assert str(Named.policies[0]) == "on_exception(KeyError)"


def test_a_method_decides_for_every_step_of_its_class():
    class Deciding(Workflow):
        @on_exception(PaymentError, report="never", max_reattempts=3)
        def declined(self, error):
            return (type(self).__name__, error)

        @step
        def pay(self): ...

    [policy] = Deciding._definition.policies
    error = PaymentError()
    assert Deciding._definition.policy_for(Deciding._definition.step("pay"), error) is policy
    assert policy.handler(Deciding(), error) == ("Deciding", error)
    assert (policy.action, policy.report, policy.max_reattempts) == (None, Report.NEVER, 3)
    assert Deciding().declined(error) == ("Deciding", error)


def test_methods_and_the_policies_tuple_count_in_the_order_they_are_written():
    class First(Workflow):
        policies = (on_exception(PaymentError, action="skip"),)

        @on_exception(PaymentError)
        def declined(self, error): ...

    class Last(Workflow):
        @on_exception(PaymentError)
        def declined(self, error): ...

        policies = (on_exception(PaymentError, action="skip"),)

    assert [policy.action for policy in First._definition.policies] == ["skip", None]
    assert [policy.action for policy in Last._definition.policies] == [None, "skip"]


def listed(workflow_class):
    return [
        policy.handler(workflow_class(), None) for policy in workflow_class._definition.policies
    ]


class Listing(Workflow):
    @on_exception(PaymentError)
    def declined(self, _error):
        return "declined"

    @on_exception()
    def anything(self, _error):
        return "anything"

    @step(policies=[declined])
    def pay(self): ...


def test_a_method_listed_in_a_step_belongs_to_that_step_only():
    [own] = Listing._definition.step("pay").policies
    assert own.errors == (PaymentError,)
    assert own.handler(Listing(), None) == "declined"
    assert listed(Listing) == ["anything"]


def test_a_step_may_list_a_method_of_its_base():
    class Sub(Listing):
        @step(policies=[Listing.anything])
        def ship(self): ...

    [own] = Sub._definition.step("ship").policies
    assert own.handler(Sub(), None) == "anything"
    assert listed(Sub) == []
    assert listed(Listing) == ["anything"]


def test_a_step_keeps_its_methods_when_a_subclass_declares_it_again():
    class Sub(Listing):
        @step
        def pay(self): ...

    assert Sub._definition.step("pay").policies == ()
    assert listed(Sub) == ["anything"]


def test_a_step_may_list_a_decorated_function_defined_elsewhere():
    @on_exception(PaymentError)
    def shared(workflow, error):
        return (type(workflow).__name__, error)

    class Shared(Workflow):
        @step(policies=[shared])
        def pay(self): ...

    [own] = Shared._definition.step("pay").policies
    assert own.handler(Shared(), None) == ("Shared", None)


def test_an_override_of_a_deciding_method_decides():
    class Plain(Listing):
        def anything(self, _error):
            return "overridden"

        def declined(self, _error):
            return "overridden too"

    assert listed(Plain) == ["overridden"]
    assert Plain._definition.step("pay").policies[0].handler(Plain(), None) == "overridden too"


def test_a_deciding_method_declared_again_takes_the_place_of_its_bases():
    class Again(Listing):
        policies = (on_exception(KeyError, action="skip"),)

        @on_exception(ValueError)
        def anything(self, _error): ...

    assert [policy.errors for policy in Again._definition.policies] == [(KeyError,), (ValueError,)]


async def wait_later(attempt): ...


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"action": "explode"}, "action: 'explode' is unknown; choose from 'pause', 'cancel'"),
        ({"action": "reattempt", "wait": -1}, "wait: -1 is no duration"),
        ({"action": "reattempt", "wait": "3"}, "wait: '3' is no duration"),
        ({"action": "reattempt", "wait": lambda: 3}, r"wait: .*called with \(attempt\)"),
        ({"action": "reattempt", "wait": wait_later}, "wait: wait_later is async"),
        ({"action": "reattempt", "max_reattempts": 0}, "max_reattempts: 0 is no limit; give"),
        ({"action": "reattempt", "max_reattempts": -1}, "max_reattempts: -1 is no limit"),
        ({"action": "reattempt", "max_reattempts": 1.0}, "max_reattempts: 1.0 is no limit"),
        ({"action": "reattempt", "max_reattempts": True}, "max_reattempts: True is no limit"),
        ({"action": "reattempt", "terminal_action": "reattempt"}, "terminal_action: .*never end"),
        ({"action": "reattempt", "terminal_action": "x"}, "terminal_action: 'x' is unknown"),
        ({"action": "reattempt", "report": "x"}, "report: 'x' is unknown; choose from 'always'"),
        ({"action": "pause", "wait": 5}, "wait: action 'pause' never reattempts; leave wait out"),
        ({"action": "skip", "max_reattempts": 5}, "max_reattempts: action 'skip' never"),
        ({"action": "cancel", "terminal_action": "skip"}, "terminal_action: action 'cancel' never"),
        ({"wait": 5}, r"wait: .*write self\.reattempt\(wait=\.\.\.\) there"),
        ({"max_reattempts": 0}, "max_reattempts: 0 is no limit"),
    ],
)
def test_a_bad_option_is_named_with_the_errors_of_its_policy(options, problem):
    with pytest.raises(
        DefinitionError, match=rf"^on_exception\({__name__}\.PaymentError\): {problem}"
    ):
        on_exception(PaymentError, **options)


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (5, "5 is neither an exception class nor the name of one"),
        (int, "<class 'int'> is neither an exception class"),
        (ValueError("instance"), "is neither an exception class"),
        ("CardError", "'CardError' is no qualified class name; write 'module.Name'"),
        ("print", "<built-in function print> is neither an exception class nor the name of one"),
        ("builtins.SystemExit", "SystemExit is no error of a step"),
        ("stripe.card error", "'stripe.card error' is no qualified class name"),
        (KeyboardInterrupt, "KeyboardInterrupt is no error of a step; no policy ever sees it"),
        (SystemExit, "SystemExit is no error of a step"),
    ],
)
def test_what_names_no_error_is_refused(error, problem):
    with pytest.raises(DefinitionError, match=problem):
        on_exception(error, action="pause")


async def later(self, error): ...


def asks_too_little(self): ...


@pytest.mark.parametrize(
    ("method", "problem"),
    [
        (on_exception()(later), "later is async and would never run"),
        (
            on_exception()(asks_too_little),
            r"asks_too_little\(self\) is called with \(self, error\)",
        ),
    ],
)
@pytest.mark.parametrize("of_step", [True, False])
def test_a_method_that_could_not_decide_is_refused(method, problem, of_step):
    with pytest.raises(DefinitionError, match=f"Bad, on_exception method 'decide': {problem}"):

        class Bad(Workflow):
            decide = method

            @step(policies=[method] if of_step else [])
            def pay(self): ...


def test_a_shared_function_that_could_not_decide_is_refused_too():
    shared = on_exception(PaymentError)(lambda _workflow: None)
    with pytest.raises(DefinitionError, match=r"Bad, step 'pay': policies: .*\(self, error\)"):

        class Bad(Workflow):
            @step(policies=[shared])
            def pay(self): ...


@pytest.mark.parametrize("thing", [5, print, property(print), step(lambda _self: None)])
def test_only_a_method_decides(thing):
    with pytest.raises(DefinitionError, match=r"without action= stands once on a method"):
        on_exception(PaymentError)(thing)


def test_a_method_has_one_policy():
    with pytest.raises(DefinitionError, match="name all its errors in one on_exception"):

        @on_exception(KeyError)
        @on_exception(PaymentError)
        def declined(self, error): ...


@pytest.mark.parametrize(
    "policies", [on_exception(action="skip"), [ValueError], (on_exception()(lambda _s, _e: None),)]
)
def test_the_policies_of_a_class_are_a_sequence_of_policies(policies):
    with pytest.raises(DefinitionError, match=r"Bad: policies: .* is no "):
        type(Workflow)("Bad", (Workflow,), {"policies": policies})


@pytest.mark.parametrize(
    ("wait", "seconds"), [(7, 7), (timedelta(minutes=1), 60), (lambda attempt: 2**attempt, 8)]
)
def test_the_delay_is_the_wait_or_what_the_backoff_gives_for_the_attempt(wait, seconds):
    policy = on_exception(action="reattempt", wait=wait)
    assert policy.delay(3) == timedelta(seconds=seconds)


@pytest.mark.parametrize("result", [None, -1, "soon", float("nan"), timedelta(days=-1)])
def test_a_backoff_that_gives_no_duration_is_named(result):
    def gentle(_attempt):
        return result

    policy = on_exception(PaymentError, action="reattempt", wait=gentle)
    with pytest.raises(
        ValueError,
        match=r"^on_exception\(.*PaymentError\): wait=.*gentle gave, for reattempt 4: .*no d",
    ):
        policy.delay(4)
