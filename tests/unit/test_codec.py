import json
import sys
import types
from collections import OrderedDict, namedtuple
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import Enum, Flag, IntEnum, StrEnum
from uuid import UUID
from zoneinfo import ZoneInfo

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgbus.engine import subjects
from pgbus.engine.codec import decode, encode
from pgbus.engine.errors import PayloadError, PayloadTooLarge
from pgbus.engine.subjects import SubjectReference, register_subject

BERLIN = ZoneInfo("Europe/Berlin")


class Color(Enum):
    RED = (1, 2)
    CRIMSON = RED
    BLUE = "blue"


class Plan(StrEnum):
    PRO = "pro"


class Level(IntEnum):
    HIGH = 3


class Access(Flag):
    READ = 1
    WRITE = 2


class Shelf:
    class Size(Enum):
        SMALL = 1


class Order:
    def __init__(self, key):
        self.key = key


def same(left, right):
    """Tell whether two values are equal with all their types and hidden parts."""
    if type(left) is not type(right):
        return False
    match left:
        case dict():
            return left.keys() == right.keys() and all(same(left[k], right[k]) for k in left)
        case list() | tuple():
            return len(left) == len(right) and all(map(same, left, right))
        case set() | frozenset():
            return left == right and _typed(left) == _typed(right)
        case float() | Decimal():
            return repr(left) == repr(right)
        case datetime() | time():
            parts = (left.isoformat(), left.fold, left.tzinfo)
            return parts == (right.isoformat(), right.fold, right.tzinfo)
        case _:
            return left == right


def _typed(members):
    return sorted((repr(type(member)), repr(member)) for member in _flat(members))


def _flat(members):
    for member in members:
        yield from _flat(member) if isinstance(member, frozenset) else [member]


text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
keys = text | st.sampled_from(["$", "$$", "$int", "$$tuple", "$subject", "id"])
zones = (
    st.none()
    | st.timezones()
    | st.builds(
        lambda seconds: timezone(timedelta(seconds=seconds)),
        st.integers(-86_399, 86_399),
    )
)
folds = st.sampled_from([0, 1])
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**2100), 2**2100)
    | st.floats(allow_nan=False, allow_infinity=False)
    | text
    | st.binary()
    | st.decimals(allow_nan=False, allow_infinity=False)
    | st.uuids()
    | st.dates()
    | st.builds(lambda t, z, f: t.replace(tzinfo=z, fold=f), st.times(), zones, folds)
    | st.builds(lambda d, f: d.replace(fold=f), st.datetimes(timezones=zones.filter(bool)), folds)
    | st.timedeltas()
    | st.sampled_from([*Color, *Plan, *Level, *Access, Access(3), Access(0), *Shelf.Size])
    | st.builds(SubjectReference, text, text)
)
members = scalars.filter(lambda value: not isinstance(value, float | Decimal)) | st.frozensets(
    st.integers()
)
values = st.recursive(
    scalars | st.sets(members, max_size=4) | st.frozensets(members, max_size=4),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(keys, inner, max_size=4)
    ),
    max_leaves=12,
)


@pytest.fixture(scope="module")
def connection(server):
    with psycopg.connect(server.admin_url) as connection:
        yield connection


def through_jsonb(connection, document):
    return connection.execute("SELECT %s::text::jsonb::text", [document]).fetchone()[0]


def round_trip(value):
    return decode(encode(value, name="output"))


@given(values)
def test_any_value_comes_back_exactly(value):
    assert same(round_trip(value), value)


@settings(deadline=None)
@given(values)
def test_any_value_comes_back_exactly_through_a_jsonb_column(connection, value):
    assert same(decode(through_jsonb(connection, encode(value, name="output"))), value)


@pytest.mark.parametrize(
    "value",
    [
        1e16,
        -1e16,
        1e-7,
        5e-324,
        1.7976931348623157e308,
        0.0,
        -0.0,
        1.0,
        123456789012345.6,
        9999999999999998.0,
        2**2048 - 1,
        2**2048,
        -(2**20000),
        Decimal("1.10"),
        Decimal("-0"),
        Decimal("1E+400"),
        '\x01\x1f\x7f\u2028\ufffe😀\\"',
        {"$int": "ff"},
        {"$$int": "ff"},
        {"$": 1},
        {"$a": 1, "b": 2},
        {"a": {"$tuple": [1]}},
        {"": None},
        (),
        [[], {}, (), set(), frozenset()],
        {(1, frozenset({(2,)})), "a"},
        datetime.max.replace(tzinfo=UTC),
        datetime(2026, 3, 29, 2, 30, tzinfo=BERLIN),
        datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN),
        datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=BERLIN),
        datetime(2026, 1, 2, tzinfo=timezone(timedelta(seconds=-61))),
        time(1, 2, 3, 4),
        time(1, fold=1),
        time(1, tzinfo=BERLIN),
        time(1, tzinfo=UTC),
        timedelta.min,
        timedelta.max,
    ],
    ids=lambda value: hex(value)[:40] if isinstance(value, int) else repr(value)[:40],
)
def test_what_json_or_jsonb_would_change_comes_back_exactly(connection, value):
    for document in (value, [value], {"k": value}):
        encoded = encode(document, name="output")
        assert same(decode(encoded), document)
        assert same(decode(through_jsonb(connection, encoded)), document)


def test_plain_values_are_plain_compact_json():
    value = {"a": [1, 1.5, None, True, False, "é"], "b": {"c": "d"}}
    assert encode(value, name="output") == '{"a":[1,1.5,null,true,false,"é"],"b":{"c":"d"}}'


def test_the_text_of_a_document_is_readable_in_sql():
    documents = {
        Decimal("1.10"): '{"$decimal":"1.10"}',
        date(2026, 1, 2): '{"$date":"2026-01-02"}',
        datetime(2026, 1, 2, tzinfo=UTC): '{"$datetime":"2026-01-02T00:00:00+00:00"}',
        Plan.PRO: f'{{"$enum":["{__name__}","Plan","PRO"]}}',
        b"ab": '{"$bytes":"YWI="}',
        SubjectReference("Order", "7"): '{"$subject":["Order","7"]}',
    }
    assert {value: encode(value, name="output") for value in documents} == documents


def test_equal_sets_have_equal_texts():
    numbers = [*range(8, 20), 0, 1024]
    texts = {encode(set(order), name="o") for order in (numbers, numbers[::-1])}
    assert texts == {encode(frozenset(numbers), name="o").replace("frozenset", "set")}
    assert decode(texts.pop()) == set(numbers)


def test_an_alias_comes_back_as_the_member_it_names():
    assert round_trip(Color.CRIMSON) is Color.RED


def test_a_foreign_time_zone_comes_back_as_its_offset():
    class Somewhere(tzinfo):
        def utcoffset(self, _when):
            return timedelta(hours=2)

    moment = datetime(2026, 1, 2, tzinfo=Somewhere())
    back = round_trip(moment)
    assert back == moment
    assert back.tzinfo == timezone(timedelta(hours=2))


@pytest.mark.parametrize(
    ("value", "path", "problem"),
    [
        ({"items": [0, 0, 0, {"price": object()}]}, "arguments.items[3].price", "builtins.object"),
        ({"a b": [object()]}, 'arguments["a b"][0]', "no JSON form"),
        ({'q"': object()}, r'arguments["q\""]', "no JSON form"),
        (object(), "arguments", "register_subject"),
        (({"x": object()},), "arguments[0].x", "object"),
        ({"s": {object()}}, "arguments.s", "object"),
        ({"k": {1: 2}}, "arguments.k", "has a key of type int; keys must be str"),
        ({"k": {10**5000: 2}}, "arguments.k", "keys must be str"),
        ({"k": {Plan.PRO: 2}}, "arguments.k", "keys must be str"),
        ({"k": {"a\0": 2}}, "arguments.k", r"has the key 'a\x00', which holds a NUL"),
        ({"k": {"\udc00": 2}}, "arguments.k", "lone surrogate"),
        ({"k": "a\0"}, "arguments.k", "NUL"),
        ({"k": "é\0"}, "arguments.k", "NUL"),
        ({"k": "\ud800"}, "arguments.k", "lone surrogate"),
        ([float("nan")], "arguments[0]", "is nan"),
        ([float("inf")], "arguments[0]", "is inf"),
        ([float("-inf")], "arguments[0]", "is -inf"),
        ([Decimal("NaN")], "arguments[0]", "only finite"),
        ([Decimal("sNaN")], "arguments[0]", "only finite"),
        ([Decimal("-Infinity")], "arguments[0]", "only finite"),
        ({"at": datetime(2026, 1, 2)}, "arguments.at", "without a time zone (2026-01-02"),  # noqa: DTZ001 # naive on purpose
        (
            [datetime(2026, 1, 2, tzinfo=timezone(timedelta(microseconds=1)))],
            "arguments[0]",
            "only whole seconds",
        ),
        ([SubjectReference("a\0", "b")], "arguments[0]", "NUL"),
        ([SubjectReference("a", "b\0")], "arguments[0]", "NUL"),
        ([bytearray()], "arguments[0]", "builtins.bytearray"),
    ],
)
def test_what_cannot_be_stored_is_refused_with_its_path(value, path, problem):
    with pytest.raises(PayloadError) as caught:
        encode(value, name="arguments")
    assert caught.value.path == path
    assert str(caught.value).startswith(f"{path}: ")
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (type("Name", (str,), {})(), "str"),
        (type("Number", (int,), {})(), "int"),
        (type("Real", (float,), {})(), "float"),
        (type("Moment", (datetime,), {})(2026, 1, 2, tzinfo=UTC), "datetime"),
        (OrderedDict(a=1), "dict"),
        (type("Rows", (list,), {})(), "list"),
        (namedtuple("Point", "x")(1), "tuple"),  # noqa: PYI024 # the plainest there is
    ],
)
def test_a_subclass_of_a_plain_type_is_refused_because_it_would_come_back_as_another(value, plain):
    with pytest.raises(PayloadError, match=f"would come back as {plain}; convert it"):
        encode([value], name="output")


def test_a_time_in_an_unnamed_zone_is_refused():
    class Somewhere(tzinfo):
        def utcoffset(self, when):
            return when and timedelta(hours=2)

        def __repr__(self):
            return "Somewhere()"

        __str__ = __repr__

    with pytest.raises(PayloadError, match=r"unnamed zone \(Somewhere\(\)\)"):
        encode(time(1, tzinfo=Somewhere()), name="output")


def test_a_value_that_contains_itself_is_refused_at_the_point_where_it_recurs():
    value = {"a": {"b": [0]}}
    value["a"]["b"].append(value["a"])
    with pytest.raises(PayloadError) as caught:
        encode(value, name="output")
    assert str(caught.value) == "output.a.b[1]: contains itself: it is output.a again"


@pytest.mark.parametrize("wrap", [lambda v: [v], lambda v: (v,), lambda v: {"k": v}, None])
def test_a_hundred_levels_are_stored_and_one_more_is_refused(connection, wrap):
    wrap = wrap or (lambda v: frozenset({v}))
    value = wrap(1)
    for _ in range(99):
        value = wrap(value)
    assert decode(through_jsonb(connection, encode(value, name="output"))) == value
    with pytest.raises(PayloadError, match="nested deeper than 100 levels"):
        encode(wrap(value), name="output")


def test_absurd_nesting_is_no_recursion_error():
    value = []
    for _ in range(100_000):
        value = [value]
    with pytest.raises(PayloadError, match="nested deeper"):
        encode(value, name="output")


def test_the_limit_counts_encoded_bytes():
    assert encode("éé", name="payload", limit=6) == '"éé"'
    with pytest.raises(PayloadTooLarge, match=r"payload: 6 bytes.*workflow_max_payload_size.* 5;"):
        encode("éé", name="payload", limit=5)


@pytest.fixture
def loaded_module(monkeypatch):
    module = types.ModuleType("shop_enums")
    monkeypatch.setitem(sys.modules, "shop_enums", module)
    module.Size = Enum("Size", "S M", module="shop_enums")
    return module


def test_an_enum_is_refused_when_its_module_is_not_loaded(loaded_module, monkeypatch):
    document = encode({"size": loaded_module.Size.S}, name="output")
    monkeypatch.delitem(sys.modules, "shop_enums")
    with pytest.raises(PayloadError, match=r"shop_enums\.Size, which is not loaded"):
        decode(document)


def test_an_enum_that_lost_the_member_is_refused(loaded_module):
    document = encode(loaded_module.Size.S, name="output")
    loaded_module.Size = Enum("Size", "M", module="shop_enums")
    with pytest.raises(PayloadError, match=r"shop_enums.*cannot be read here: KeyError\('S'\)"):
        decode(document)


def test_looking_for_an_enum_runs_no_code_of_the_module(loaded_module):
    loaded_module.__getattr__ = pytest.fail
    for name in ("Lazy", "Size.Inner", "Size.S", "os", "__getattr__"):
        with pytest.raises(PayloadError, match="not loaded"):
            decode(json.dumps({"$enum": ["shop_enums", name, "S"]}))


def test_only_enums_are_taken_from_a_module():
    with pytest.raises(PayloadError, match=r"subprocess\.Popen, which is not loaded"):
        decode('{"$enum": ["subprocess", "Popen", "x"]}')


def test_an_enum_that_cannot_be_found_again_is_refused_when_encoded():
    local = Enum("Local", "A")
    with pytest.raises(PayloadError, match="define the enum at the top of a module") as caught:
        encode({"e": local.A}, name="output")
    assert caught.value.path == "output.e"


@pytest.mark.parametrize(
    "document", ['{"$no": 1}', '{"$decimal": "x"}', '{"$uuid": 5}', '{"$datetime": ["x", 1]}']
)
def test_a_tag_that_cannot_be_read_is_refused_with_the_document(document):
    with pytest.raises(PayloadError, match="cannot be read here") as caught:
        decode(document)
    assert repr(json.loads(document)) in str(caught.value)


@pytest.fixture
def _registered(monkeypatch):
    monkeypatch.setattr(subjects, "_by_name", {})
    monkeypatch.setattr(subjects, "_by_class", {})
    register_subject(Order, id_of=lambda order: order.key, load=lambda *_: None)


@pytest.mark.usefixtures("_registered")
def test_a_registered_object_is_stored_as_its_reference():
    document = encode({"orders": [Order("7")]}, name="output")
    assert decode(document) == {"orders": [SubjectReference("Order", "7")]}


@pytest.mark.usefixtures("_registered")
def test_load_turns_references_into_records_wherever_they_stand():
    document = encode([Order("7"), (Order("8"), {Order("9")})], name="output")
    assert decode(document, load=lambda ref: ref.id) == ["7", ("8", {"9"})]


@pytest.mark.usefixtures("_registered")
def test_a_registered_object_without_a_key_is_refused_with_its_path():
    with pytest.raises(PayloadError, match=r"cannot be referred to: .*returned None") as caught:
        encode({"order": Order(None)}, name="arguments")
    assert caught.value.path == "arguments.order"


def test_an_error_of_load_comes_through():
    def load(_reference):
        raise ValueError("the database is away")

    with pytest.raises(ValueError, match="the database is away"):
        decode('{"$subject": ["Order", "7"]}', load=load)


def test_a_uuid_is_no_text():
    value = UUID(int=7)
    assert same(round_trip({"a": value, "b": str(value)}), {"a": value, "b": str(value)})
