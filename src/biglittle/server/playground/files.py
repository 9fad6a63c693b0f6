"""The page's files, which are part of the package."""

from __future__ import annotations

from importlib.resources import files

from starlette.responses import Response

from ..errors import ApiError

__all__ = ["PageFiles"]

KINDS = {
    "index.html": "text/html; charset=utf-8",
    "style.css": "text/css; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",  # another version of the server has another page
}


class PageFiles:
    """The files by their names; nothing else is ever read."""

    def __init__(self) -> None:
        folder = files(__package__) / "page"
        self._files = {name: (folder / name).read_bytes() for name in KINDS}

    def response(self, name: str) -> Response:
        """A file.

        Raises:
            ApiError: There is none of that name.
        """
        if name not in self._files:
            raise ApiError(404, "there is no such file")
        return Response(self._files[name], media_type=KINDS[name], headers=HEADERS)
