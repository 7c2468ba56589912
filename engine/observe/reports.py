"""Errors of steps and jobs, handed to the host's reporters once the outcome is committed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping

from pgbus.engine.errors import InvalidSetting

#: Takes an error and the facts around it; see the guide for their names.
Reporter = Callable[[BaseException, Mapping[str, object]], object]

_log = logging.getLogger("pgbus.observe")


class Reporters:
    """The error reporters of one bus."""

    def __init__(self, reporters: Iterable[Reporter] = ()) -> None:
        if not isinstance(reporters, Iterable):
            raise InvalidSetting(
                "error_reporters", f"must be a list of callables, not {reporters!r}"
            )
        self._reporters = tuple(reporters)
        for reporter in self._reporters:
            if not callable(reporter):
                raise InvalidSetting(
                    "error_reporters",
                    f"holds {reporter!r}; each must be a callable of an error and its context",
                )

    def report(self, error: BaseException, context: Mapping[str, object]) -> None:
        """Hand the error to each reporter; what one raises is logged, and the others hear of it."""
        for reporter in self._reporters:
            try:
                reporter(error, dict(context))
            except BaseException:  # noqa: BLE001 (a reporter is the host's: whatever it raises, the outcome stands)
                _log.exception("An error reporter raised; %r was not reported by it.", type(error))
