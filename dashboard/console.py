"""What all views share: the bus, the host's settings, and how a page is read and rendered."""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from importlib.metadata import version as installed
from typing import TYPE_CHECKING, ClassVar, Protocol

import jinja2
from babel.core import Locale
from flask import Response, current_app, request, url_for
from flask_wtf.csrf import generate_csrf

from pgbus.dashboard import assets, languages, toasts
from pgbus.dashboard.presenters import marks
from pgbus.dashboard.words import Words, breakable, code
from pgbus.engine.insights import queues, reading, stuck

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from zoneinfo import ZoneInfo

    from markupsafe import Markup

    from pgbus.dashboard.host import Host
    from pgbus.dashboard.toasts import Toast
    from pgbus.engine.bus import Pgbus
    from pgbus.engine.settings import Settings
    from pgbus.engine.storage.database import Connection

THEME_COOKIE = "pgbus_theme"
THEMES = ("auto", "light", "dark")


class Page(Protocol):
    """A frozen context, which names the template that shows it."""

    template: ClassVar[str]


@dataclass(frozen=True, slots=True)
class Viewer:
    """Who looks at a page: their words, what they may do, and what the host shows them."""

    words: Words
    settings: Settings
    may: Callable[[str], bool]
    shown: Callable[..., object]
    subject_url: Callable[[str, str], str | None]
    url: Callable[..., str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shell:
    """What stands around every page; `waiting` counts, by page, what waits there for somebody."""

    waiting: Mapping[str, int]
    database: str
    theme: str
    languages: Markup
    zone: str
    version: str
    here: str
    toasts: tuple[Toast, ...]
    csrf_field: str
    csrf_token: str


class Console:
    """One mounted dashboard."""

    def __init__(self, bus: Pgbus, host: Host) -> None:
        self.bus = bus
        self.host = host

    def show(self, load: Callable[[Connection, Viewer], Page], *, status: int = 200) -> Response:
        """Return a page that is read in one snapshot of the database."""
        with reading.reading(self.bus.services) as connection:
            self.bus.check_schema()
            viewer = self.viewer(reading.now(connection))
            page = load(connection, viewer)
            waiting = {
                "attention": stuck.count(connection, self.bus.settings),
                "dead_letters": sum(
                    one.messages for one in queues.dead_letters(connection, self.bus.settings)
                ),
            }
        return self.rendered(page, viewer, waiting=waiting, status=status)

    def viewer(self, now: datetime | None = None) -> Viewer:
        """Return who looks; without `now` for a page that asks nothing of the database."""
        language = languages.chosen(self.host.language(request))
        words = Words(
            languages.catalog(language),
            Locale.parse(language),
            self.zone(),
            now or datetime.fromtimestamp(time.time(), UTC),
        )
        return Viewer(
            words=words,
            settings=self.bus.settings,
            may=functools.cache(functools.partial(self.host.allows, request._get_current_object())),  # type: ignore[attr-defined]  # noqa: SLF001 (werkzeug's way to the request itself)
            shown=self.host.shown,
            subject_url=self.host.url_of_subject,
            url=functools.cache(self.url),
        )

    def url(self, endpoint: str, **values: object) -> str:
        """Return the URL of one of this blueprint's pages; values that are None are left out."""
        given = {name: value for name, value in values.items() if value is not None}
        return url_for(f"{request.blueprint}.{endpoint}", **given)  # type: ignore[arg-type]

    def rendered(
        self,
        page: Page,
        viewer: Viewer,
        *,
        waiting: Mapping[str, int] | None = None,
        status: int = 200,
    ) -> Response:
        """Return the page's template filled with it; without `waiting` where PostgreSQL was not asked."""
        words = viewer.words
        html = (
            environment()
            .get_template(f"pgbus/{page.template}")
            .render(
                page=page,
                shell=self._shell(words, waiting or {}, status),
                words=words,
                url=viewer.url,
                asset=functools.partial(self.url, "asset", version=assets.digest()),
                may=viewer.may,
                _=words.gettext,
                pgettext=words.pgettext,
                ngettext=words.ngettext,
                rich=words.rich,
                nrich=words.nrich,
            )
        )
        response = Response(html, status)
        response.headers["Content-Language"] = words.tag
        return response

    def _shell(self, words: Words, waiting: Mapping[str, int], status: int) -> Shell:
        theme = request.cookies.get(THEME_COOKIE)
        has_key = bool(current_app.secret_key)
        return Shell(
            waiting=waiting,
            database=self.bus.services.database.engine.url.database or "",
            theme=theme if theme in THEMES else THEMES[0],
            languages=languages.options(str(words.locale)),
            zone=str(words.zone),
            version=_release(),
            here=self.here(),
            toasts=_toasts(status) if has_key else (),
            csrf_field=self.csrf_field(),
            csrf_token=generate_csrf() if has_key else "",
        )

    def zone(self) -> ZoneInfo:
        """Return the zone of the page's times."""
        return self.host.zone(request, self.bus.settings.time_zone)

    def csrf_field(self) -> str:
        """Return the name of the field that carries the token; a host's own protection may name it."""
        name: str = current_app.config.get("WTF_CSRF_FIELD_NAME", "csrf_token")
        return name

    def here(self) -> str:
        """Return this page's address within the site, with its query."""
        query = request.query_string.decode("ascii", "replace")
        path = request.script_root + request.path
        return f"{path}?{query}" if query else path


def _toasts(status: int) -> tuple[Toast, ...]:
    """Return what is to be told; once, but for a page that gives way to the one that was asked for."""
    mount = request.blueprint or ""
    shown = toasts.taken(mount)
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        for toast in shown:
            toasts.add(mount, toast)
    return shown


@functools.cache
def _release() -> str:
    return installed("pgbus")


@functools.cache
def environment() -> jinja2.Environment:
    """Return the console's own template environment: nothing of the host's can change a page."""
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("pgbus.dashboard"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        auto_reload=False,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals.update(
        badge=marks.badge,
        breakable=breakable,
        class_name=marks.class_name,
        code=code,
        icon=marks.icon,
        short_id=marks.short_id,
    )
    return made
