import dataclasses
from datetime import timedelta

import pytest
from sqlalchemy.engine import make_url

from pgbus.engine.errors import InvalidSetting
from pgbus.engine.settings import Settings

URL = "postgresql://app:secret@db/shop"


@pytest.fixture(autouse=True)
def _directory_without_a_revision_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def load(environ=None, /, **keywords):
    return Settings.load({} if environ is None else environ, **{"database_url": URL, **keywords})


def refused(setting, match, environ=None, /, **keywords):
    with pytest.raises(InvalidSetting, match=match) as caught:
        load(environ, **keywords)
    assert caught.value.setting == setting
    assert setting in str(caught.value)


def test_the_defaults_are_the_documented_ones():
    given = dataclasses.asdict(load())
    assert given == {
        "database_url": "postgresql+psycopg://app:secret@db/shop",
        "listen_url": None,
        "schema": "pgbus",
        "queue_prefix": "pgbus",
        "workflow_queue": "workflows",
        "workflow_retention": timedelta(days=30),
        "workflow_sweep_interval": timedelta(seconds=60),
        "workflow_stall_threshold": timedelta(hours=1),
        "workflow_stall_action": "pause",
        "workflow_waiting_visibility_threshold": timedelta(days=7),
        "workflow_max_payload_size": 131072,
        "workflow_error_backtrace_lines": 20,
        "workers": 1,
        "threads": 8,
        "queues": (),
        "visibility_timeout": timedelta(seconds=30),
        "visibility_heartbeat": True,
        "polling_interval": timedelta(seconds=1),
        "shutdown_timeout": timedelta(seconds=25),
        "batch_retention": timedelta(days=7),
        "archive_retention": timedelta(days=7),
        "app_revision": None,
        "time_zone": "UTC",
        "log_format": "text",
        "prepared_statements": True,
        "tracing": False,
        "metrics_backend": None,
        "metrics_enabled": True,
        "metrics_port": None,
        "statsd_host": "127.0.0.1",
        "statsd_port": 8125,
        "mcp_write_tools": False,
    }


def test_a_keyword_wins_over_a_variable_and_a_variable_over_the_default():
    environ = {"PGBUS_THREADS": "3", "PGBUS_WORKERS": "2"}
    settings = load(environ, threads=5)
    assert (settings.threads, settings.workers) == (5, 2)


def test_an_empty_variable_counts_as_absent():
    assert load({"PGBUS_LISTEN_URL": "", "PGBUS_NO_SUCH": ""}).listen_url is None


def test_an_unknown_keyword_is_named_with_its_nearest():
    refused("thread", "did you mean threads?", thread=3)
    refused("xyzzy", "does not exist$", xyzzy=3)


def test_an_unknown_variable_is_named_with_its_nearest():
    refused("PGBUS_THREAD", "did you mean PGBUS_THREADS?", {"PGBUS_THREAD": "3"})


def test_variables_reserved_for_other_parts_are_let_through():
    names = ["APP", "MCP_TOKEN", "TEST_DATABASE_URL"]
    assert load({f"PGBUS_{name}": "x" for name in names} | {"HOME": "/"}) == load()


@pytest.mark.parametrize("name", ["PGBUS_APPLICATION", "PGBUS_MCP", "PGBUS_TEST"])
def test_a_variable_that_only_begins_like_a_reserved_one_is_refused(name):
    refused(name, "does not exist", {name: "x"})


def test_a_database_url_is_required():
    with pytest.raises(InvalidSetting, match="PGBUS_DATABASE_URL") as caught:
        Settings.load({})
    assert caught.value.setting == "database_url"
    assert Settings.load({"PGBUS_DATABASE_URL": URL}) == load()


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg"])
def test_a_postgresql_url_is_made_one_for_psycopg_3_and_keeps_the_rest(scheme):
    rest = "app:p%40ss@db:5433/shop?host=/run/pg&sslmode=require"
    url = make_url(load(listen_url=f"{scheme}://{rest}").listen_url)
    assert url.drivername == "postgresql+psycopg"
    assert (url.username, url.password, url.host, url.port) == ("app", "p@ss", "db", 5433)
    assert dict(url.query) == {"host": "/run/pg", "sslmode": "require"}


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("mysql://u:secret@h/d", "not mysql://"),
        ("postgresql+psycopg2://u:secret@h/d", r"not postgresql\+psycopg2://.*any driver"),
        ("secret", "without a scheme"),
        ("postgresql://u:secret@h1:1,h2:2/d", "is no URL of the form"),
        (make_url("postgresql://u:secret@h/d"), "must be a str, not URL"),
        (None, "must be a str, not NoneType"),
    ],
)
def test_another_url_is_refused_without_telling_its_password(url, problem):
    with pytest.raises(InvalidSetting, match=problem) as caught:
        load(database_url=url)
    assert "secret" not in str(caught.value)


def test_the_repr_holds_no_password_wherever_the_url_has_it():
    settings = load(listen_url="postgresql:///shop?password=secret")
    assert "secret" not in repr(settings)
    assert "threads=8" in repr(settings)


@pytest.mark.parametrize("setting", ["schema", "queue_prefix"])
@pytest.mark.parametrize(
    "value", ["", "Shop", "1a", "_a", "a-b", "a b", 'a"b', "ä", "a\n", 7, None]
)
def test_an_identifier_is_lower_case_letters_digits_and_underscores(setting, value):
    refused(setting, "must be lower-case letters", **{setting: value})


def test_identifiers_have_their_longest():
    assert load(schema="s" * 63).schema == "s" * 63
    refused("schema", "64 characters; at most 63", schema="s" * 64)
    assert load(queue_prefix="q" * 30).queue_prefix == "q" * 30
    refused("queue_prefix", "31 characters; at most 30", queue_prefix="q" * 31)


@pytest.mark.parametrize("value", ["pg_mine", "pgmq", "information_schema"])
def test_a_schema_of_postgresql_or_pgmq_is_refused(value):
    refused("schema", "belongs to", schema=value)


def test_a_reserved_word_is_no_schema():
    refused("schema", "reserved word", schema="user")


def test_queues_are_names_in_a_list_or_separated_by_commas():
    assert load(queues=["mail", "orders", "mail"]).queues == ("mail", "orders")
    assert load({"PGBUS_QUEUES": "mail, orders"}).queues == ("mail", "orders")
    refused("queues", "write 'mail'", queues=["Mail"])
    refused("queues", "must be names", queues=7)


def test_queue_names_must_fit_beside_the_prefix():
    refused("queues", "12 fit beside", queue_prefix="q" * 30, queues=["a" * 13])
    refused("workflow_queue", "13 characters", queue_prefix="q" * 30, workflow_queue="a" * 13)
    refused("workflow_queue", "write 'workflows'", workflow_queue="pgbus_workflows")
    refused("workflow_queue", "choose another ending", workflow_queue="a_dlq")


@pytest.mark.parametrize(
    ("given", "duration"),
    [
        (timedelta(minutes=2), timedelta(minutes=2)),
        (90, timedelta(seconds=90)),
        (1.5, timedelta(seconds=1.5)),
        ("90", timedelta(seconds=90)),
        ("1.5", timedelta(seconds=1.5)),
        (" 90s ", timedelta(seconds=90)),
        ("15 m", timedelta(minutes=15)),
        ("1h", timedelta(hours=1)),
        ("7d", timedelta(days=7)),
    ],
)
def test_a_duration_is_a_timedelta_seconds_or_text_with_a_unit(given, duration):
    assert load(visibility_timeout=given).visibility_timeout == duration


@pytest.mark.parametrize(
    "given", ["", "soon", "-5", "5w", "1h30m", "nan", float("nan"), float("inf"), 1e300, True, None]
)
def test_what_is_no_duration_is_refused(given):
    refused("polling_interval", "must be a timedelta", polling_interval=given)


@pytest.mark.parametrize(
    "setting",
    [
        "workflow_retention",
        "workflow_sweep_interval",
        "workflow_stall_threshold",
        "workflow_waiting_visibility_threshold",
        "polling_interval",
        "shutdown_timeout",
        "batch_retention",
        "archive_retention",
    ],
)
@pytest.mark.parametrize("given", [0, -1, timedelta(0), "0s"])
def test_a_duration_is_positive(setting, given):
    refused(setting, "at least 0.001 seconds", **{setting: given})
    assert getattr(load(**{setting: 0.001}), setting) == timedelta(milliseconds=1)


@pytest.mark.parametrize("setting", ["workflow_retention", "batch_retention", "archive_retention"])
def test_a_retention_of_none_keeps_everything(setting):
    assert getattr(load(**{setting: None}), setting) is None
    for text in ("none", " None "):
        assert getattr(load({f"PGBUS_{setting.upper()}": text}), setting) is None
    refused(setting, "must be a timedelta", **{setting: "never"})


def test_messages_stay_invisible_for_at_least_a_second():
    assert load(visibility_timeout=1).visibility_timeout == timedelta(seconds=1)
    refused("visibility_timeout", "at least 1 seconds", visibility_timeout=0.9)


@pytest.mark.parametrize(
    ("setting", "least", "most"),
    [
        ("workers", 1, 1000),
        ("threads", 1, 1000),
        ("workflow_error_backtrace_lines", 0, 10000),
        ("workflow_max_payload_size", 1, 268435455),
    ],
)
def test_a_number_has_its_range(setting, least, most):
    for value in (least, most, str(most)):
        assert getattr(load(**{setting: value}), setting) == int(value)
    for value in (least - 1, most + 1, str(most + 1), 1.5, "1.5", "many", "9" * 5000, True, None):
        refused(setting, f"a whole number from {least} to {most}", **{setting: value})


@pytest.mark.parametrize(
    ("given", "value"),
    [(True, True), (False, False)]
    + [(text, True) for text in ("true", "1", "YES", "on")]
    + [(text, False) for text in ("false", "0", "no", "Off")],
)
def test_a_boolean_has_its_usual_texts(given, value):
    assert load(visibility_heartbeat=given).visibility_heartbeat is value


@pytest.mark.parametrize("given", ["maybe", 1, 0, None])
def test_what_is_no_boolean_is_refused(given):
    refused("visibility_heartbeat", "true or false", visibility_heartbeat=given)


@pytest.mark.parametrize(
    ("setting", "choices"),
    [("workflow_stall_action", ["pause", "reattempt", "cancel"]), ("log_format", ["text", "json"])],
)
def test_a_choice_names_what_there_is(setting, choices):
    for choice in choices:
        assert getattr(load(**{setting: choice}), setting) == choice
    refused(setting, f"one of {', '.join(choices)}", **{setting: "other"})


@pytest.mark.parametrize("given", ["Mars/Base", "", "../etc", "/etc", 7, None])
def test_an_unknown_time_zone_is_refused(given):
    refused("time_zone", "no time zone known here", time_zone=given)


def test_a_known_time_zone_is_taken():
    assert load({"PGBUS_TIME_ZONE": "Europe/Paris"}).time_zone == "Europe/Paris"


def test_the_revision_comes_from_the_first_that_has_one(tmp_path):
    environ = {"PGBUS_APP_REVISION": "b", "PGBUS_REVISION": "c", "GIT_REVISION": "d"}
    (tmp_path / "REVISION").write_text("e\n")
    found = [load(environ, app_revision="a").app_revision]
    for variable in list(environ):
        found.append(load(environ).app_revision)
        del environ[variable]
    found.append(load(environ).app_revision)
    assert found == ["a", "b", "c", "d", "e"]


def test_a_revision_is_a_line_of_text():
    for value in ("", "  ", "a\nb", "a\0", 7):
        refused("app_revision", "line of text", app_revision=value)


def test_an_empty_revision_file_is_no_revision(tmp_path):
    (tmp_path / "REVISION").write_text("\n")
    assert load().app_revision is None


def test_settings_made_without_load_are_checked_too():
    with pytest.raises(InvalidSetting, match="threads"):
        Settings(database_url=URL, threads=0)


def test_a_metrics_backend_is_a_name_or_an_object_with_the_three_methods():
    class Backend:
        def count(self, name, labels): ...

        def observe(self, name, seconds, labels): ...

        def gauge(self, name, value, labels): ...

    backend = Backend()
    assert load(metrics_backend=backend).metrics_backend is backend
    assert load({"PGBUS_METRICS_BACKEND": "statsd"}).metrics_backend == "statsd"
    refused("metrics_backend", "'graphite' must be one of prometheus", metrics_backend="graphite")
    del Backend.gauge
    refused("metrics_backend", "the methods count, observe, gauge", metrics_backend=backend)


def test_the_metrics_port_is_prometheuss():
    given = load({"PGBUS_METRICS_PORT": "9100", "PGBUS_METRICS_BACKEND": "prometheus"})
    assert given.metrics_port == 9100
    refused("metrics_port", "set metrics_backend to 'prometheus'", metrics_port=9100)
    refused("metrics_port", "65535", metrics_port=70_000, metrics_backend="prometheus")
