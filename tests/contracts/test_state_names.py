"""States have one home, `engine/states.py`; SQL, which cannot import it, is held against it."""

import ast
import re
from functools import cache

import pytest
from contracts.documents import ROOT

from pgbus.engine.states import (
    AttemptStatus,
    Event,
    MemberStatus,
    Outcome,
    RunStatus,
    SignalStatus,
)
from pgbus.engine.storage.claims import ClaimVerdict
from pgbus.engine.storage.endings import EndVerdict
from pgbus.engine.storage.starts import StartVerdict

ENGINE = ROOT / "engine"
FUNCTIONS = sorted((ENGINE / "storage" / "functions").glob("*.sql"))
MODULES = [path for path in sorted(ENGINE.rglob("*.py")) if path != ENGINE / "states.py"]
KINDS = (RunStatus, AttemptStatus, Outcome, Event, SignalStatus, MemberStatus)
STATES = {member.value for kind in KINDS for member in kind}

#: What the database functions answer with, and in which files they do.
VERDICTS = {
    StartVerdict: ["20_start_run.sql"],
    ClaimVerdict: ["30_claim.sql", "31_take.sql"],
    EndVerdict: ["39_finalize_moved.sql", "40_finalize.sql"],
}
KNOWN = STATES | {member.value for kind in VERDICTS for member in kind}

#: Words in single quotes that SQL has beside the states and verdicts, by what they are.
OTHER_WORDS = {
    "gone",  # what claim() found before it knows better
    "moving",  # a lane, of two states
    *("policy", "stall", "system"),  # causes, and an actor
    *("dead_letter", "error", "error_class", "error_message", "failed_at"),  # keys in JSON
    *("message_id", "outcome", "queue", "read_count", "workflow_id"),  # more of them
    *("batch", "batch_id", "body", "name", "not_before", "wait", "wait_until"),  # and more
    *("q", "pgmq", "pg_namespace", "trigger", "c"),  # names of PGMQ and of catalogs
    "worker",  # a kind of process
    "string",  # a kind of JSON value
    *("q_", "read_"),  # what names of tables and functions of a queue begin with
}

#: Where a word that is also a state's means something else.
NO_STATES = {
    ("cli/answers.py", "started"): "the head of a column",
    ("cli/migrate.py", "pending"): "a key in JSON",
    **{
        ("cli/stats.py", word): "the head of a column or a line"
        for word in (
            "cancelled",
            "failed",
            "finished",
            "paused",
            "reattempted",
            "skipped",
            "started",
        )
    },
    ("storage/claims.py", "claimed"): "a verdict of claim()",
    ("storage/claims.py", "waiting"): "a verdict of claim()",
    **{
        ("storage/schema.py", str(status)): "a column that counts such members"
        for status in MemberStatus
    },
    ("storage/starts.py", "started"): "a verdict of start_run()",
}

_SQL = re.compile(r"\b(SELECT|UPDATE|INSERT|DELETE)\b[^;]*\b(FROM|SET|INTO)\b")


@cache
def _strings(module):
    nodes = ast.walk(ast.parse(module.read_text()))
    constants = (node.value for node in nodes if isinstance(node, ast.Constant))
    return {value for value in constants if isinstance(value, str)}


def _named(path):
    return path.relative_to(ENGINE).as_posix()


@pytest.mark.parametrize("module", MODULES, ids=_named)
def test_a_module_names_states_by_their_members(module):
    spelt_out = {text for text in _strings(module) if text in STATES}
    assert {text for text in spelt_out if (_named(module), text) not in NO_STATES} == set()


@pytest.mark.parametrize("file", FUNCTIONS, ids=lambda file: file.name)
def test_a_function_file_names_states_that_exist(file):
    assert _words_of(file) - KNOWN - OTHER_WORDS == set()


@pytest.mark.parametrize("module", MODULES, ids=_named)
def test_a_statement_names_states_that_exist(module):
    assert _words_of(module) - KNOWN - OTHER_WORDS == set()


@pytest.mark.parametrize("kind", VERDICTS, ids=lambda kind: kind.__name__)
def test_the_verdicts_of_a_function_are_those_of_its_enum(kind):
    words = set().union(
        *(_words_of(ENGINE / "storage/functions" / name) for name in VERDICTS[kind])
    )
    verdicts = {member.value for member in kind}
    assert verdicts <= words
    assert words - verdicts - STATES - OTHER_WORDS == set()


@pytest.mark.parametrize("module", MODULES, ids=_named)
def test_a_verdict_is_compared_as_a_member(module):
    comparisons = (
        node for node in ast.walk(ast.parse(module.read_text())) if isinstance(node, ast.Compare)
    )
    spelt_out = [
        ast.unparse(one)
        for one in comparisons
        if getattr(one.left, "attr", None) == "verdict"
        and any(
            isinstance(part, ast.Constant) for right in one.comparators for part in ast.walk(right)
        )
    ]
    assert spelt_out == []


def test_each_exception_is_still_one():
    assert set().union(*map(_words_of, [*FUNCTIONS, *MODULES])) >= OTHER_WORDS
    assert all(text in _strings(ENGINE / name) for name, text in NO_STATES)


def _words_of(file):
    """The words in single quotes in a file's SQL."""
    if file.suffix == ".sql":
        statements = [re.sub(r"--.*", "", file.read_text())]
    else:
        statements = [text for text in _strings(file) if _SQL.search(text)]
    return {word for sql in statements for word in re.findall(r"'([a-z_]+)'", sql)}


@pytest.mark.parametrize("file", FUNCTIONS, ids=lambda file: file.name)
def test_a_function_file_begins_with_its_purpose(file):
    first, *_ = file.read_text().splitlines()
    assert re.match(r"-- [A-Z].{20,}", first), "say what the function is for in its first line"
    assert len(re.findall(r"^CREATE FUNCTION", file.read_text(), re.MULTILINE)) == 1
