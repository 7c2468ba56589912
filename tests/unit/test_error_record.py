import json

import pytest

from pgbus.engine.definition.policy import qualified_name
from pgbus.engine.runner.error_record import MESSAGE_LENGTH, record_error


class ShopError(Exception):
    class Nested(Exception): ...


def raised(error, cause=None):
    with pytest.raises(type(error)):
        raise error from cause
    return error


def recorded(error, lines=20):
    entry = record_error(error, backtrace_lines=lines)
    return entry.error_class, entry.message, json.loads(entry.document)


def causes_of(error):
    return [(cause["class"], cause["message"]) for cause in recorded(error)[2]["causes"]]


def test_an_error_is_recorded_by_its_qualified_class_and_message():
    name, message, document = recorded(raised(ShopError.Nested("no")))
    assert (name, message) == (f"{__name__}.ShopError.Nested", "no")
    assert document["causes"] == []


def test_a_builtin_error_is_recorded_without_its_module():
    assert recorded(ValueError("no"))[0] == "ValueError"
    assert qualified_name(type("X", (Exception,), {"__module__": "builtins.y"})) == "y.X"


def test_an_error_that_was_never_raised_has_no_backtrace():
    assert recorded(ValueError("no"))[2] == {"backtrace": [], "causes": []}


def test_text_that_postgresql_cannot_store_is_made_storable():
    odd = type("Odd", (Exception,), {"__qualname__": "Odd\0", "__module__": "shop\ud800"})
    document = recorded(raised(ValueError(), odd("b\0c\udfffd")))[2]
    (cause,) = document["causes"]
    assert cause["class"] == "shop\\ud800.Odd␀"
    assert cause["message"] == "b␀c\\udfffd"


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_an_error_that_cannot_be_printed_is_still_recorded(error):
    class MuteError(Exception):
        def __str__(self):
            raise error

    assert recorded(raised(MuteError()))[1] == (
        f"<unprintable: its __str__ raised {error.__qualname__}>"
    )


def test_an_error_whose_text_is_no_string_is_still_recorded():
    class OddError(Exception):
        def __str__(self):
            return 5  # noqa: PLE0307 (what a host may do)

    assert recorded(raised(OddError()))[1] == "<unprintable: its __str__ raised TypeError>"


def test_a_huge_message_is_cut():
    assert recorded(ValueError("x" * 10**6))[1] == "x" * MESSAGE_LENGTH


def test_the_cause_chain_is_recorded_from_the_nearest_on():
    error = raised(ValueError("a"), raised(KeyError("b"), OSError("c")))
    assert causes_of(error) == [("KeyError", "'b'"), ("OSError", "c")]


def while_handling(first, second, *, suppressed=False):
    try:
        raise first
    except KeyError:
        if suppressed:
            raise second from None
        raise second  # noqa: B904 (its context is the point)


def test_a_context_counts_as_a_cause_unless_it_was_suppressed():
    with pytest.raises(ValueError, match="second") as caught:
        while_handling(KeyError("first"), ValueError("second"))
    assert causes_of(caught.value) == [("KeyError", "'first'")]
    with pytest.raises(ValueError, match="second") as caught:
        while_handling(KeyError("first"), ValueError("second"), suppressed=True)
    assert causes_of(caught.value) == []


def test_an_explicit_cause_goes_before_the_context():
    error = raised(ValueError("a"), KeyError("cause"))
    error.__context__ = OSError("context")
    assert causes_of(error) == [("KeyError", "'cause'")]


def test_a_cause_that_is_falsy_or_refuses_to_say_is_still_a_cause():
    class EmptyError(Exception):
        def __len__(self):
            return 0

    class StubbornError(Exception):
        def __bool__(self):
            raise RuntimeError

    assert [name for name, _ in causes_of(raised(ValueError(), EmptyError("x")))] != []
    assert [name for name, _ in causes_of(raised(ValueError(), StubbornError("x")))] != []


def test_a_cycle_of_causes_ends():
    first, second = ValueError("1"), KeyError("2")
    first.__cause__, second.__cause__ = second, first
    assert causes_of(first) == [("KeyError", "'2'")]


def test_a_long_chain_of_causes_is_cut_at_ten():
    error = ValueError("0")
    for number in range(1, 30):
        error = raised(ValueError(str(number)), error)
    assert [message for _, message in causes_of(error)] == [str(n) for n in range(28, 18, -1)]


def test_what_a_group_holds_is_among_its_causes():
    inner = ExceptionGroup("inner", [OSError("x")])
    group = ExceptionGroup("outer", [raised(ValueError("a"), KeyError("k")), inner])
    name, message, _ = recorded(raised(group))
    assert (name, message) == ("ExceptionGroup", "outer (2 sub-exceptions)")
    assert sorted(causes_of(group)) == [
        ("ExceptionGroup", "inner (1 sub-exception)"),
        ("KeyError", "'k'"),
        ("OSError", "x"),
        ("ValueError", "a"),
    ]


def outermost(function):
    function()


def innermost():
    raise ShopError("deep")


def test_the_backtrace_begins_with_the_innermost_of_the_hosts_frames():
    with pytest.raises(ShopError) as caught:
        outermost(innermost)
    backtrace = recorded(caught.value)[2]["backtrace"]
    assert [line.rpartition(" in ")[2] for line in backtrace[:3]] == [
        "innermost",
        "outermost",
        "test_the_backtrace_begins_with_the_innermost_of_the_hosts_frames",
    ]
    line = innermost.__code__.co_firstlineno + 1
    assert backtrace[0] == f"{__file__}:{line} in innermost"


def test_library_frames_are_dropped_and_the_hosts_kept():
    with pytest.raises(json.JSONDecodeError) as caught:
        outermost(lambda: json.loads("nonsense"))
    backtrace = recorded(caught.value)[2]["backtrace"]
    assert len(backtrace) == 3
    assert all(line.startswith(f"{__file__}:") for line in backtrace)


def test_an_error_of_libraries_alone_keeps_their_frames():
    with pytest.raises(json.JSONDecodeError) as caught:
        json.loads("nonsense")
    error = caught.value.with_traceback(caught.value.__traceback__.tb_next)
    backtrace = recorded(error)[2]["backtrace"]
    assert backtrace[0].endswith("in JSONDecoder.raw_decode")


@pytest.mark.parametrize("lines", [0, 1, 2])
def test_the_backtrace_has_at_most_as_many_lines_as_the_setting_allows(lines):
    with pytest.raises(ShopError) as caught:
        outermost(innermost)
    assert len(recorded(raised(ValueError(), caught.value), lines)[2]["backtrace"]) <= lines
    document = recorded(raised(ValueError(), caught.value), lines)[2]
    assert len(document["causes"][0]["backtrace"]) == lines


def test_a_recursion_error_is_recorded():
    def forever():
        forever()

    with pytest.raises(RecursionError) as caught:
        forever()
    assert recorded(caught.value)[0] == "RecursionError"
    assert len(recorded(caught.value)[2]["backtrace"]) == 20
