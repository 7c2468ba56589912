import functools
import re
from datetime import UTC, datetime, timedelta

import pytest

from pgbus import current_delivery, job
from pgbus.engine import active
from pgbus.engine.errors import DefinitionError, PayloadError, UnknownJob
from pgbus.engine.jobs import envelope, registry

LATER = datetime(2040, 1, 1, tzinfo=UTC)


class RecordingBus:
    def __init__(self):
        self.calls = []

    def enqueue_job(self, options, args, kwargs):
        self.calls.append((options, args, kwargs))
        return 42


@pytest.fixture
def bus(monkeypatch):
    recording = RecordingBus()
    monkeypatch.setattr(active, "_buses", [recording])
    return recording


@job
def notify(vendor_id, *, copy=False):
    """Tell the vendor."""
    return vendor_id, copy


def test_a_job_is_called_like_its_function():
    assert notify(7, copy=True) == (7, True)
    assert (notify.__name__, notify.__doc__) == ("notify", "Tell the vendor.")


def test_a_job_without_options_has_the_defaults():
    assert notify.name == f"{__name__}.notify"
    assert (notify.queue, notify.max_retries, notify.priority) == ("default", 5, 1)


def test_declared_options_are_the_jobs():
    @job(queue="mail", max_retries=0, priority=0)
    def send(): ...

    assert (send.queue, send.max_retries, send.priority) == ("mail", 0, 0)


def test_a_plain_enqueue_is_handed_to_the_bus_with_the_jobs_own_options(bus):
    assert notify.enqueue(7, copy=True) == 42
    [(options, args, kwargs)] = bus.calls
    assert (options, args, kwargs) == (notify.options(), (7,), {"copy": True})
    assert (options.job, options.queue, options.priority) == (notify, "default", 1)
    assert (options.session, options.wait, options.wait_until) == (None, timedelta(0), None)


def test_options_of_a_call_go_before_the_jobs(bus):
    session = object()
    options = notify.options(queue="slow", priority=0, wait=1.5, wait_until=LATER, session=session)
    assert options.enqueue(7) == 42
    assert bus.calls == [(options, (7,), {})]
    assert (options.queue, options.priority, options.session) == ("slow", 0, session)
    assert (options.wait, options.wait_until) == (timedelta(seconds=1.5), LATER)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"queue": "Mail"}, "queue: queue 'Mail': PGMQ folds names to lower case; write 'mail'"),
        ({"queue": "mail_dlq"}, "choose another ending"),
        ({"queue": "x" * 48}, "shorten it"),
        ({"priority": 3}, "priority: priority 3: use 0 (first), 1 (the default) or 2 (last)"),
        ({"priority": True}, "priority True"),
        ({"max_retries": -1}, "max_retries: -1 is no number of retries; give 0 (run once) or more"),
        ({"max_retries": 1.5}, "1.5 is no number of retries"),
        ({"max_retries": True}, "True is no number of retries"),
        ({"retries": 1}, "unknown option 'retries'; there are queue, max_retries, priority"),
    ],
)
def test_a_bad_option_of_a_declaration_is_refused_by_name(options, problem):
    def send(): ...

    with pytest.raises(DefinitionError, match=re.escape(problem)) as refused:
        job(**options)(send)
    assert str(refused.value).startswith(f"job {__name__}.")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"queue": "Mail"}, "write 'mail'"),
        ({"priority": 3}, "priority 3"),
        ({"wait": -1}, "wait: -1 is no duration"),
        ({"wait_until": datetime(2040, 1, 1)}, "give a datetime with a time zone"),  # noqa: DTZ001 (naive)
        ({"max_retries": 1}, "unknown option 'max_retries'"),
    ],
)
def test_a_bad_option_of_a_call_is_refused_by_name(options, problem):
    with pytest.raises(DefinitionError, match=re.escape(problem)) as refused:
        notify.options(**options)
    assert str(refused.value).startswith(f"{__name__}.notify.options: ")


@pytest.mark.parametrize("function", [print, functools.partial(notify), notify, int, None, 7])
def test_only_a_function_can_be_a_job(function):
    with pytest.raises(DefinitionError, match="write @job on a def"):
        job()(function)


def test_a_generator_is_refused_because_it_would_never_run():
    def lazy():
        yield

    async def lazy_too():
        yield

    for function in (lazy, lazy_too):
        with pytest.raises(DefinitionError, match="take out its yield"):
            job(function)


def test_arguments_that_do_not_fit_are_refused_before_anything_is_sent(bus):
    for args, kwargs in [((), {}), ((1, 2), {}), ((1,), {"cc": True})]:
        with pytest.raises(
            TypeError, match=re.escape(f"{__name__}.notify(vendor_id, *, copy=False)")
        ):
            notify.enqueue(*args, **kwargs)
    assert bus.calls == []


def test_a_decorators_wrapper_decides_what_fits(bus):
    def with_client(function):
        @functools.wraps(function)
        def call(*args):
            return function("client", *args)

        return call

    @job
    @with_client
    def charge(client, amount):
        return client, amount

    charge.enqueue(5)
    assert [call[1] for call in bus.calls] == [(5,)]
    assert charge(5) == ("client", 5)


def test_no_name_of_an_argument_is_reserved(bus):
    @job
    def greedy(**anything):
        return anything

    arguments = {"self": 1, "function": 2, "session": 3, "queue": 4}
    greedy.enqueue(**arguments)
    greedy.options(wait=1).enqueue(**arguments)
    assert [call[2] for call in bus.calls] == [arguments, arguments]
    assert greedy(**arguments) == arguments


def test_a_job_is_known_by_its_dotted_name_and_a_new_one_takes_its_place():
    def declare():
        @job(queue="again")
        def task(): ...

        return task

    first = declare()
    assert registry.find(first.name) is first
    second = declare()
    assert registry.find(first.name) is second
    assert {"default", "again"} <= registry.queues()


def test_a_name_that_is_not_declared_is_not_imported():
    with pytest.raises(UnknownJob, match=r"json\.dumps; import its module"):
        registry.find("json.dumps")


def test_a_call_survives_its_envelope():
    args = (2**70, "é", (1, 2), [{"$x": 1}])
    kwargs = {"$set": {1}, "at": LATER, "self": None}
    body = envelope.encode("shop.send", args, kwargs, limit=1000)
    assert envelope.job_name(body) == "shop.send"
    assert envelope.arguments(body, load=lambda _: None) == (list(args), kwargs)


def test_what_cannot_be_stored_is_named_by_its_path():
    with pytest.raises(PayloadError, match=r"^arguments\.args\[1\]\.price: is nan"):
        envelope.encode("job", (1, {"price": float("nan")}), {}, limit=1000)
    with pytest.raises(PayloadError, match=r"^arguments\.kwargs\.at: is a datetime without"):
        envelope.encode("job", (), {"at": LATER.replace(tzinfo=None)}, limit=1000)


def test_the_limit_is_of_the_encoded_arguments():
    exactly = len('{"args":["é"],"kwargs":{}}'.encode())
    envelope.encode("job", ("é",), {}, limit=exactly)
    with pytest.raises(PayloadError, match="arguments: 27 bytes encoded"):
        envelope.encode("job", ("é",), {}, limit=exactly - 1)


@pytest.mark.parametrize("body", ["[]", "5", '"text"', "null", "{}", '{"job": 5}', '{"job": null}'])
def test_a_body_without_a_jobs_name_is_no_envelope(body):
    with pytest.raises(PayloadError, match=re.escape(f"message: {body} is no job's envelope")):
        envelope.job_name(body)


def test_a_body_that_cannot_be_read_is_no_envelope_either():
    for body in ("1" * 5000, "[" * 100_000):
        with pytest.raises(PayloadError, match="message: cannot be read"):
            envelope.job_name(body)


@pytest.mark.parametrize(
    "arguments", ["", ', "arguments": []', ', "arguments": {"args": [], "kwargs": null}',
                  ', "arguments": {"args": {"$tuple": [1]}, "kwargs": {}}',
                  ', "arguments": {"kwargs": {}}']
)  # fmt: skip
def test_arguments_of_another_shape_are_no_envelope(arguments):
    with pytest.raises(PayloadError, match="is no job's envelope"):
        envelope.arguments(f'{{"job": "x"{arguments}}}', load=lambda _: None)


def test_outside_of_a_job_there_is_no_delivery():
    assert current_delivery() is None
