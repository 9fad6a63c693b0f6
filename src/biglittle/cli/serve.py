"""`biglittle serve`: a pair behind OpenAI's API."""

from __future__ import annotations

import dataclasses
import ipaddress
import os
import socket
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ..errors import ParameterError
from .generate import check_policy
from .loading import load_pair, quiet_libraries
from .options import ModelOptions, ProfileOption, with_profile
from .screen import Screen

if TYPE_CHECKING:
    from ..pair import Pair
    from ..server import ServerLimits, Service

__all__ = ["LimitOptions", "make_service", "serve"]

EPILOG = """
**Examples**

`biglittle serve ./big --draft ./little`

`biglittle serve --host 0.0.0.0 --api-key key.txt --rows 32`

`curl http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type: application/json' -d '{"model":
"qwen2.5-coder-1.5b-instruct", "messages": [{"role": "user", "content": "Hello"}]}'`

The key is the first line of the file, or what is in `BIGLITTLE_API_KEY`. SIGTERM and Ctrl-C let
running requests finish.
"""

KEY = "BIGLITTLE_API_KEY"
NEEDED = ("fastapi", "uvicorn", "prometheus_client", "llguidance")
INSTALL = "pip install 'biglittle[serve]'"
_WHO: Any = {"rich_help_panel": "Who gets in"}
_LIMITS: Any = {"rich_help_panel": "Limits"}

PolicyOption = Annotated[
    str | None,
    typer.Option(
        "--policy",
        "-p",
        metavar="POLICY",
        help="Of requests that name none; as for `biglittle generate`.",
        show_default=False,
        rich_help_panel="Models",
    ),
]
LossyOption = Annotated[
    bool,
    typer.Option(
        "--allow-lossy",
        help="Allow for policies whose texts may differ from the target's own.",
        rich_help_panel="Models",
    ),
]
NameOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="What requests call the model. Default: the target, of a folder or file its name.",
        show_default=False,
        rich_help_panel="Models",
    ),
]
TargetArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="TARGET", help="The big model; the same as --target.", show_default=False
    ),
]


@dataclass(frozen=True, kw_only=True)
class LimitOptions:
    """How much at a time, and of one request."""

    rows: Annotated[
        int, typer.Option(min=1, help="Most texts that decode together.", **_LIMITS)
    ] = 16
    kv_tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Tokens of all texts in the K/V cache; others wait. Default: no limit.",
            show_default=False,
            **_LIMITS,
        ),
    ] = None
    chunk: Annotated[
        int, typer.Option(min=1, help="Tokens of prompts that are read a round.", **_LIMITS)
    ] = 256
    prefix_tokens: Annotated[
        int,
        typer.Option(
            min=0, help="Tokens kept for prompts that begin like an earlier one.", **_LIMITS
        ),
    ] = 4096
    max_prompt_tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Of one prompt. Default: what the context has room for.",
            show_default=False,
            **_LIMITS,
        ),
    ] = None
    max_new_tokens: Annotated[
        int,
        typer.Option(
            min=1, help="Of one answer, and of a chat's that asks for no limit.", **_LIMITS
        ),
    ] = 2048

    def limits(self, **more: Any) -> ServerLimits:
        """As the server takes them; `more` are other fields of its limits."""
        from ..server import ServerLimits

        return ServerLimits(
            rows=self.rows,
            kv_tokens=self.kv_tokens,
            chunk=self.chunk,
            prefix_tokens=self.prefix_tokens,
            prompt_tokens=self.max_prompt_tokens,
            new_tokens=self.max_new_tokens,
            **more,
        )


def serve(
    *,
    big: TargetArgument = None,
    models: ModelOptions,
    profile: ProfileOption = None,
    policy: PolicyOption = None,
    allow_lossy: LossyOption = False,
    name: NameOption = None,
    host: Annotated[str, typer.Option(help="Address to listen on.", **_WHO)] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free one.", **_WHO)] = 8000,
    api_key: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help=f"A file with the key that clients must send; or set {KEY}.",
            show_default=False,
            **_WHO,
        ),
    ] = None,
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ORIGIN",
            help="A web page's origin that may call, e.g. https://example.org; repeatable.",
            show_default=False,
            **_WHO,
        ),
    ] = None,
    limits: LimitOptions,
    queue: Annotated[
        int, typer.Option(min=1, help="Most texts that wait; more get 429.", **_LIMITS)
    ] = 256,
    timeout: Annotated[
        float, typer.Option(min=0.001, help="Seconds for a request, waiting included.", **_LIMITS)
    ] = 600.0,
    max_body: Annotated[int, typer.Option(min=1, help="Bytes of a request.", **_LIMITS)] = 4 << 20,
    grace: Annotated[
        float, typer.Option(min=0, help="Seconds to finish in after SIGTERM.", **_LIMITS)
    ] = 30.0,
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        typer.Option(help="debug logs prompts and texts, the others never do."),
    ] = "info",
) -> None:
    """Serve a pair over OpenAI's API, to many clients at once.

    `/v1/chat/completions`, `/v1/completions`, `/v1/models`, `/health`, and `/metrics` for
    Prometheus; a playground at `/`. Logs are lines of JSON on standard error.
    """
    screen = Screen()
    with screen.status("starting"):
        check_installed("serve")
        key = read_key(api_key)
        listener = bind(host, port)
        models = chosen(big, models)
        check_policy(policy, models)
        models = with_profile(models, profile)
        quiet_libraries()
    with listener:
        pair = load_pair(models, policy, screen, profile=profile)
        bounds = limits.limits(queue=queue, seconds=timeout, body_bytes=max_body)
        service = make_service(pair, models, name, bounds, allow_lossy=allow_lossy)
        address = listen(listener)
        greet(service, address, screen, open_to_all=key is None and not is_loopback(host))
        run(service, listener, key, cors_origin or [], grace=grace, log_level=log_level)


def run(
    service: Service,
    listener: socket.socket,
    key: str | None,
    origins: list[str],
    *,
    grace: float,
    log_level: str,
) -> None:
    """Serve until a signal comes."""
    from ..server import create_app
    from ..server.logs import log_to_stderr
    from ..server.run import serve as until_signal

    log_to_stderr(log_level)
    app = create_app(service, api_key=key, origins=origins)
    if until_signal(app, service, listener, grace=grace):
        raise typer.Exit(130)


def check_installed(command: str) -> None:
    """Refuse without the extra."""
    for package in NEEDED:
        if find_spec(package) is None:
            raise ParameterError(f"{command} needs {package}: {INSTALL}")


def chosen(target: str | None, models: ModelOptions) -> ModelOptions:
    """The options with the target of the argument."""
    return models if target is None else dataclasses.replace(models, target=target)


def make_service(
    pair: Pair, models: ModelOptions, name: str | None, limits: ServerLimits, *, allow_lossy: bool
) -> Service:
    """What answers requests, not started yet."""
    from ..server import ServerSettings, Service

    path = Path(models.target).expanduser()
    own = path.resolve().name if path.exists() else models.target
    settings = ServerSettings(name=name or own, allow_lossy=allow_lossy, limits=limits)
    return Service(pair, settings)


def read_key(path: Path | None) -> str | None:
    """The API key: the first line of the file, else the environment's."""
    if path is None:
        key = os.environ.get(KEY)
        return None if key is None else checked_key(key, KEY)
    try:
        text = path.expanduser().read_text(encoding="utf8")
    except OSError as cause:
        raise ParameterError(f"--api-key {path} cannot be read: {cause.strerror}") from cause
    except UnicodeDecodeError as cause:
        raise ParameterError(f"--api-key {path} is no text file") from cause
    return checked_key(text.partition("\n")[0].strip(), f"--api-key {path}")


def checked_key(key: str, source: str) -> str:
    """The key, if a header can carry it."""
    if not key:
        raise ParameterError(f"{source} holds no key")
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise ParameterError(f"{source}: a key is made of ASCII letters, digits and signs")
    return key


def bind(host: str, port: int) -> socket.socket:
    """A socket at the address, not listening yet."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        found = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as cause:
        raise ParameterError(f"--host {host} is no address of this machine: {cause}") from cause
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
    except OSError as cause:
        found.close()
        raise _cannot_listen(address, cause) from cause
    return found


def listen(listener: socket.socket) -> str:
    """Start to listen; the address as a URL."""
    address = listener.getsockname()
    try:
        listener.listen(2048)
    except OSError as cause:  # somebody else came in between
        raise _cannot_listen(address, cause) from cause
    host = f"[{address[0]}]" if listener.family == socket.AF_INET6 else address[0]
    return f"http://{host}:{address[1]}"


def _cannot_listen(address: Any, cause: OSError) -> ParameterError:
    return ParameterError(
        f"cannot listen on {address[0]}, port {address[1]}: {cause.strerror}; choose another with "
        "--port or --host"
    )


def is_loopback(host: str) -> bool:
    """Whether only this machine can call."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def greet(service: Service, address: str, screen: Screen, *, open_to_all: bool) -> None:
    """Say where it is and how it answers."""
    pair, name = service.pair, service.settings.name
    screen.warn_if_lossy(pair.policy)
    if open_to_all:
        screen.note("whoever reaches this machine may ask: there is no --api-key", "yellow")
    screen.note(f"{name} at {address}/v1, policy {pair.policy}; Ctrl-C ends it")
    screen.note(f"a page to try it on: {address}/")
