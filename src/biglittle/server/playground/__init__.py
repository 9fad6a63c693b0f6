"""The page at `/`: what it is made of, and what it has to know of the server."""

from .facts import describe_server
from .files import PageFiles

__all__ = ["PageFiles", "describe_server"]
