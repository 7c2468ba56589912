"""What came of a press on many, beside how many it did."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pgbus.dashboard.words import Words
    from pgbus.engine.runner.bulk import BulkResult

#: Of an error's text an outcome shows this much.
_LONGEST_TEXT = 200


def besides(
    result: BulkResult, failure: str | None, words: Words, *, in_doubt: str
) -> Iterator[str]:
    """Say what failed, what is not known, and that there may be more.

    `failure` is the first, as it may be shown; `in_doubt` the message for the one that was in hand.
    """
    if failure is not None:
        yield words.ngettext(
            "%(num)s failed: %(reason)s",
            "%(num)s failed, the first one: %(reason)s",
            result.failed,
            reason=cut(failure),
        )
    if result.in_doubt is not None:
        yield words.gettext(in_doubt, id=result.in_doubt)
    if result.may_be_more:
        yield words.gettext("More may wait: press again for them.")


def is_nothing(result: BulkResult) -> bool:
    """Tell whether none was found any more."""
    return result.in_doubt is None and not (result.done or result.moved_on or result.failed)


def tone(result: BulkResult) -> str:
    """Return the tone of the outcome."""
    if result.failed or result.in_doubt is not None:
        return "bad"
    return "good" if result.done else "warn"


def cut(text: str, longest: int = _LONGEST_TEXT) -> str:
    """Return the beginning of a text that is longer."""
    return text if len(text) <= longest else f"{text[:longest]}…"
