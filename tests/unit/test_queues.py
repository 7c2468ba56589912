import pytest

from pgbus.engine.errors import DefinitionError
from pgbus.engine.queues import (
    MAX_PHYSICAL_LENGTH,
    PRIORITIES,
    PhysicalQueue,
    check_priority,
    check_queue_name,
    dead_letter_name,
    parse_physical_name,
    physical_name,
)


def test_every_priority_is_a_queue_of_its_own_and_the_default_has_the_plain_name():
    names = [physical_name("pgbus", "orders", priority) for priority in PRIORITIES]
    assert names == ["pgbus_orders_p0", "pgbus_orders", "pgbus_orders_p2"]
    assert physical_name("pgbus", "orders") == "pgbus_orders"
    assert dead_letter_name("pgbus", "orders") == "pgbus_orders_dlq"


@pytest.mark.parametrize(
    ("physical", "queue"),
    [
        ("pgbus_orders", PhysicalQueue("orders", 1, is_dead_letter=False)),
        ("pgbus_orders_p0", PhysicalQueue("orders", 0, is_dead_letter=False)),
        ("pgbus_orders_p2", PhysicalQueue("orders", 2, is_dead_letter=False)),
        ("pgbus_orders_dlq", PhysicalQueue("orders", 1, is_dead_letter=True)),
        ("pgbus_eu_orders_p1", PhysicalQueue("eu_orders_p1", 1, is_dead_letter=False)),
    ],
)
def test_a_physical_name_tells_what_it_stands_for(physical, queue):
    assert parse_physical_name("pgbus", physical) == queue


@pytest.mark.parametrize(
    "physical",
    ["orders", "pgbus", "pgbus_", "pgbusorders", "other_orders", "pgbus__dlq", "pgbus_a_p0_dlq"],
)
def test_a_name_that_is_not_one_of_ours_is_none(physical):
    assert parse_physical_name("pgbus", physical) is None


@pytest.mark.parametrize(
    ("logical", "mend"),
    [
        ("Orders", "write 'orders'"),
        ("", "lower-case letters"),
        ("a-b", "lower-case letters"),
        ("a b", "lower-case letters"),
        ("straße", "lower-case letters"),
        ("orders\n", "lower-case letters"),
        ("_orders", "beginning with a letter or digit"),
        ("orders_p0", "choose another ending"),
        ("orders_p2", "choose another ending"),
        ("orders_dlq", "choose another ending"),
        (7, "not int"),
    ],
)
def test_a_bad_queue_name_is_refused_with_the_mend(logical, mend):
    with pytest.raises(DefinitionError, match=mend) as caught:
        check_queue_name(logical)
    assert repr(logical) in str(caught.value)


@pytest.mark.parametrize("logical", ["orders", "2fa", "a_b_1", "orders_p1", "dlq", "p0"])
def test_a_good_queue_name_passes(logical):
    check_queue_name(logical, prefix="pgbus")


def test_the_longest_name_with_its_longest_suffix_is_just_what_pgmq_allows():
    longest = "a" * 37
    assert len(dead_letter_name("pgbus", longest)) == MAX_PHYSICAL_LENGTH == 47
    with pytest.raises(DefinitionError, match="38 characters, and 37 fit beside the prefix"):
        physical_name("pgbus", longest + "a")
    with pytest.raises(DefinitionError, match="37 fit"):
        dead_letter_name("pgbus", longest + "a")


def test_before_any_bus_exists_the_shortest_prefix_is_assumed():
    check_queue_name("a" * 41)
    with pytest.raises(DefinitionError, match="42 characters, and 41 fit"):
        check_queue_name("a" * 42)


def test_a_name_that_brings_the_prefix_along_is_refused():
    with pytest.raises(DefinitionError, match="write 'orders'"):
        physical_name("pgbus", "pgbus_orders")
    check_queue_name("pgbus_orders")


@pytest.mark.parametrize("priority", [-1, 3, 1.0, True, "1", None])
def test_a_priority_other_than_0_1_2_is_refused(priority):
    with pytest.raises(DefinitionError, match="use 0"):
        check_priority(priority)
