"""The server: a pair behind OpenAI's API."""

from .app import create_app
from .scheduler import Scheduler, ServerLimits, Ticket
from .service import ServerSettings, Service

__all__ = ["Scheduler", "ServerLimits", "ServerSettings", "Service", "Ticket", "create_app"]
