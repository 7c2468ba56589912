"""Documents as instances of dataclasses and models, and where they do not fit."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Any, Optional, TypeVar, Union

import pytest

from pgbus.engine.definition.options import OptionError
from pgbus.engine.definition.payload import reader_of
from pgbus.engine.errors import PayloadError


def read(cls, payload):
    return reader_of(cls)(payload, "payload")


@dataclass
class Line:
    sku: str
    weight: float = 1.5


@dataclass
class Shipment:
    carrier: str
    line: Line
    sent_at: datetime | None = None
    notes: list[str] = field(default_factory=list)
    total: int = field(init=False)

    def __post_init__(self):
        self.total = 7


@dataclass
class Node:
    name: str
    children: list["Node"] = field(default_factory=list)


MOMENT = datetime(2030, 1, 1, tzinfo=UTC)


def test_a_dataclass_is_built_with_the_dataclasses_in_it():
    payload = {"carrier": "dhl", "line": {"sku": "a"}, "sent_at": MOMENT, "notes": ["x"]}
    assert read(Shipment, payload) == Shipment("dhl", Line("a", 1.5), MOMENT, ["x"])


def test_what_has_a_default_may_be_missing():
    made = read(Shipment, {"carrier": "dhl", "line": {"sku": "a", "weight": 2.5}})
    assert made == Shipment("dhl", Line("a", 2.5), None, [])


def test_a_dataclass_may_hold_itself():
    made = read(Node, {"name": "a", "children": [{"name": "b", "children": [{"name": "c"}]}]})
    assert made == Node("a", [Node("b", [Node("c")])])


def test_a_dataclass_may_hold_dataclasses_by_name():
    @dataclass
    class Parcel:
        lines: dict[str, Line]

    assert read(Parcel, {"lines": {"first": {"sku": "a"}}}) == Parcel({"first": Line("a")})


def test_an_instance_that_is_there_already_is_taken():
    line = Line("a")
    assert read(Shipment, {"carrier": "dhl", "line": line}).line is line


@pytest.mark.parametrize(
    ("payload", "path", "problem"),
    [
        ({"line": {"sku": "a"}}, "payload", "has no 'carrier', which Shipment needs"),
        (
            {"carrier": "dhl", "line": {"sku": "a"}, "colour": 1},
            "payload",
            "has 'colour', which Shipment has not (carrier, line, sent_at, notes)",
        ),
        (
            {"carrier": "dhl", "line": {"sku": "a"}, "total": 1},
            "payload",
            "has 'total', which Shipment has not (carrier, line, sent_at, notes)",
        ),
        ({"carrier": 5, "line": {"sku": "a"}}, "payload.carrier", "is 5, not str"),
        ({"carrier": "dhl", "line": "a"}, "payload.line", "is 'a', not Line"),
        ({"carrier": "dhl", "line": {}}, "payload.line", "has no 'sku', which Line needs"),
        (
            {"carrier": "dhl", "line": {"sku": "a", "weight": "3"}},
            "payload.line.weight",
            "is '3', not float",
        ),
        (
            {"carrier": "dhl", "line": {"sku": "a"}, "sent_at": "today"},
            "payload.sent_at",
            "is 'today', not datetime.datetime | None",
        ),
        (
            {"carrier": "dhl", "line": {"sku": "a"}, "notes": ["x", 5]},
            "payload.notes[1]",
            "is 5, not str",
        ),
        ({"carrier": "dhl", "line": {"sku": "a"}, "notes": "x"}, "payload.notes", "is 'x', not list"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named_with_its_path(payload, path, problem):
    with pytest.raises(PayloadError) as raised:
        read(Shipment, payload)
    assert raised.value.path == path
    assert str(raised.value) == f"{path}: {problem}"


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (str, "a"),
        (int, 5),
        (float, 5),
        (float, 5.5),
        (bool, True),
        (Decimal, Decimal("1.10")),
        (Any, object),
        (object, 5),
        (None, None),
        (list, [1, "a"]),
        (dict, {"a": 1}),
        (int | str, "a"),
        (Optional[int], None),  # noqa: UP045 # how older code writes it
        (Union[int, str], 5),  # noqa: UP007 # how older code writes it
        (Annotated[str, "a note"], "a"),
        (list[int | None], [1, None]),
        (dict[str, list[int]], {"a": [1]}),
        (Sequence, [1]),
    ],
)
def test_values_are_taken_as_they_are(annotation, value):
    kept = read(holder(annotation), {"it": value}).it
    assert (kept, type(kept)) == (value, type(value))


def holder(annotation):
    return dataclass(type("Holder", (), {"__annotations__": {"it": annotation}}))


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (int, True),
        (float, False),
        (int, 5.0),
        (bool, 1),
        (None, 0),
        (int | None, "a"),
        (list[int], ["a"]),
        (list[int], (1,)),
        (dict[str, int], {"a": "b"}),
        (dict[str, int], [1]),
    ],
)
def test_nothing_is_converted(annotation, value):
    with pytest.raises(PayloadError, match=r"^payload\.it"):
        read(holder(annotation), {"it": value})


def test_a_member_of_a_dict_is_named_by_its_key():
    with pytest.raises(PayloadError) as raised:
        read(holder(dict[str, int]), {"it": {"a b": "c"}})
    assert raised.value.path == "payload.it['a b']"


def test_of_a_union_the_first_class_that_fits_is_built():
    made = read(holder(Line | Node), {"it": {"name": "n"}})
    assert made.it == Node("n")
    assert read(holder(Optional[Line]), {"it": {"sku": "a"}}).it == Line("a")  # noqa: UP045 # older


def test_a_class_that_refuses_its_values_refuses_the_payload():
    @dataclass
    class Amount:
        cents: int

        def __post_init__(self):
            if self.cents < 0:
                raise ValueError("cents must not be negative")

    assert read(Amount, {"cents": 1}) == Amount(1)
    with pytest.raises(PayloadError, match=r"payload: is no .*Amount: cents must not be negative"):
        read(Amount, {"cents": -1})


def test_a_payload_that_is_no_mapping_is_refused():
    with pytest.raises(PayloadError, match=r"payload: is \[1\], not Line"):
        read(Line, [1])


def test_a_long_value_is_cut_in_the_error():
    with pytest.raises(PayloadError) as raised:
        read(Line, {"sku": ["x" * 1000]})
    assert len(str(raised.value)) < 300


@pytest.mark.parametrize("annotation", [tuple[int, ...], set[int], dict[int, str], TypeVar("T")])
def test_an_annotation_that_cannot_be_checked_is_refused_at_once(annotation):
    with pytest.raises(OptionError, match=r"Holder\.it: .* cannot be checked here; use plain"):
        reader_of(holder(annotation))


def test_an_annotation_in_a_nested_class_is_named_with_its_place():
    with pytest.raises(OptionError, match=r"Holder\.it: Holder\.it: .* cannot be checked"):
        reader_of(holder(holder(set[int])))


def test_an_annotation_that_names_nothing_is_refused_at_once():
    with pytest.raises(
        OptionError, match=r"Holder: name 'Nowhere' is not defined; .* top of its m"
    ):
        reader_of(holder("Nowhere"))


class Model:
    """As pydantic's models are, for what is asked of them."""

    def __init__(self, sku):
        self.sku = sku

    @classmethod
    def model_validate(cls, document):
        if not isinstance(document, dict):
            raise ValueError("1 validation error")  # noqa: TRY004 # as pydantic's is
        return cls(document["sku"].upper())


@dataclass
class Holding:
    model: Model


def test_a_model_validates_by_itself():
    assert read(Model, {"sku": "a"}).sku == "A"
    assert read(Holding, {"model": {"sku": "a"}}).model.sku == "A"


def test_what_a_model_refuses_is_named_with_its_path_and_its_own_words():
    with pytest.raises(
        PayloadError, match=r"payload\.model: is no Model: 1 validation error"
    ) as told:
        read(Holding, {"model": 5})
    assert isinstance(told.value.__cause__, ValueError)


def test_a_pydantic_model_is_a_model():
    pydantic = pytest.importorskip("pydantic")

    class Parcel(pydantic.BaseModel):
        weight: float

    assert read(Parcel, {"weight": "1.5"}) == Parcel(weight=1.5)
    with pytest.raises(
        PayloadError, match=r"payload: is no .*Parcel: 1 validation error"
    ) as raised:
        read(Parcel, {"weight": "heavy"})
    assert isinstance(raised.value.__cause__, pydantic.ValidationError)


@pytest.mark.parametrize("thing", [dict, "Shipment", Line("a"), Model("a"), list[Line], None])
def test_only_a_dataclass_or_model_can_be_read(thing):
    with pytest.raises(OptionError, match="is neither a dataclass nor a pydantic model; give such"):
        reader_of(thing)
