from uuid import RFC_4122, UUID

from pgbus.engine.identifiers import new_uuid


def test_an_id_is_a_uuid_of_version_seven_that_begins_with_its_milliseconds(monkeypatch):
    monkeypatch.setattr("time.time_ns", lambda: 0x0123456789AB * 1_000_000 + 500_000)
    made = UUID(new_uuid())
    assert (made.version, made.variant) == (7, RFC_4122)
    assert str(made).startswith("01234567-89ab-7800-")


def test_ids_of_one_millisecond_are_in_the_order_in_which_they_were_made(monkeypatch):
    moments = iter(range(1_700_000_000_000_000_000, 1_700_000_000_001_000_000, 250))
    monkeypatch.setattr("time.time_ns", lambda: next(moments))
    ids = [new_uuid() for _ in range(4_000)]
    assert ids == sorted(ids)


def test_ids_of_one_moment_differ(monkeypatch):
    monkeypatch.setattr("time.time_ns", lambda: 1_700_000_000_000_000_000)
    assert len({new_uuid() for _ in range(1_000)}) == 1_000
