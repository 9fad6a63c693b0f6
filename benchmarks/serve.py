"""The server under load: many clients at once, with speculation and without, and `transformers
serve` beside it.

    python -m benchmarks.serve --target smollm2-135m-instruct --draft early-exit:layers=8

Every system is a server in a process of its own, one after another; the clients are in this one and
share the processor with it. Each client asks its share of the prompts, one after another, greedily,
and reads a stream. Answers are compared with those that one client got from the same system: in
float32 they are the same; in 16 bits a near-tie may fall otherwise beside other rows.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any
from urllib.error import URLError
from urllib.request import urlopen

import numpy as np
import transformers
import typer
from openai import AsyncOpenAI
from rich.console import Console
from rich.table import Table

from benchmarks.results import append, check_names, configuration, read
from biglittle import catalogue
from biglittle.diagnosis.prompts import builtin_prompts

CLIENTS = (1, 4, 16, 64)
PATIENCE = 600.0  # seconds for a server to come up

Command = Callable[[str, str, str, int], list[str]]
"""(target, draft, dtype, port) → what starts a server."""


def ours(policy: str) -> Command:
    """biglittle, under a policy."""

    def command(target: str, draft: str, dtype: str, port: int) -> list[str]:
        options = ["--rows", "64", "--log-level", "warning", "--port", str(port), "--name", target]
        models = [target, "--draft", draft, "--dtype", dtype]
        return [sys.executable, "-m", "biglittle", "serve", *models, "-p", policy, *options]

    return command


def theirs(*options: str) -> Command:
    """transformers' own server."""

    def command(target: str, draft: str, dtype: str, port: int) -> list[str]:
        program = Path(sys.executable).with_name("transformers")
        where = ["--port", str(port), "--dtype", dtype, "--log-level", "warning"]
        return [str(program), "serve", target, *where, *options]

    return command


SYSTEMS: dict[str, Command] = {
    "plain": ours("none"),
    "cost-aware": ours("cost-aware"),
    "transformers": theirs(),
    "transformers batching": theirs("--continuous-batching"),
}


@contextmanager
def serving(command: list[str], port: int) -> Iterator[str]:
    """A server, ready; its address."""
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=dict(os.environ))
        url = f"http://127.0.0.1:{port}"
        try:
            _wait(process, url, log)
            yield url
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait(process: subprocess.Popen[bytes], url: str, log: Any) -> None:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if process.poll() is not None:
            log.seek(0)
            raise SystemExit(f"the server ended: {log.read().decode(errors='replace')[-500:]}")
        try:
            urlopen(f"{url}/health").close()
            return
        except (URLError, ConnectionError):
            time.sleep(0.2)
    raise SystemExit("the server does not come up")


async def ask(client: AsyncOpenAI, model: str, prompt: str, new: int) -> dict[str, Any]:
    """One answer: its text, seconds to the first piece of text, between pieces, and in all."""
    began = last = time.perf_counter()
    first, gaps, text = 0.0, [], ""
    stream = await client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": prompt}],
        max_tokens=new,
        temperature=0,
        stream=True,
    )
    async for chunk in stream:
        piece = chunk.choices[0].delta.content if chunk.choices else None
        if not piece:
            continue
        now = time.perf_counter()
        if text:
            gaps.append(now - last)
        else:
            first = now - began
        text, last = text + piece, now
    return {"text": text, "first": first, "gaps": gaps, "seconds": time.perf_counter() - began}


async def load(url: str, model: str, prompts: list[str], clients: int, new: int) -> dict[str, Any]:
    """All prompts, asked by so many clients; wall-clock seconds, and the answers."""
    left = iter(enumerate(prompts))
    answers: dict[int, dict[str, Any]] = {}
    async with AsyncOpenAI(
        base_url=f"{url}/v1", api_key="none", timeout=3600, max_retries=0
    ) as client:
        await ask(client, model, "Warm up.", 4)

        async def one() -> None:
            for index, prompt in left:
                answers[index] = await ask(client, model, prompt, new)

        began = time.perf_counter()
        await asyncio.gather(*(one() for _ in range(clients)))
        seconds = time.perf_counter() - began
    return {"seconds": seconds, "answers": [answers[index] for index in range(len(prompts))]}


def measure(
    url: str, model: str, prompts: list[str], clients: int, new: int, tokenizer: Any
) -> dict[str, Any]:
    """One run, in the numbers that are kept."""
    found = asyncio.run(load(url, model, prompts, clients, new))
    answers = found["answers"]
    texts = [answer["text"] for answer in answers]
    tokens = sum(len(tokenizer(text, add_special_tokens=False).input_ids) for text in texts)
    return {
        "seconds": found["seconds"],
        "tokens": tokens,
        "first": [answer["first"] for answer in answers],
        "gaps": [gap for answer in answers for gap in answer["gaps"]],
        "texts": texts,
    }


def report(rows: list[dict[str, Any]], console: Console) -> None:
    """A table: a line for every system and number of clients."""
    table = Table(title="tokens/s over all clients; milliseconds to and between pieces of text")
    columns = ("clients", "tokens/s", "× one client", "× plain", "first p50", "p99")
    for column in ("system", *columns, "between p50", "p99", "same texts"):
        table.add_column(column, justify="left" if column == "system" else "right")
    rate = {(row["system"], row["clients"]): row["tokens"] / row["seconds"] for row in rows}
    alone = {row["system"]: row["texts"] for row in rows if row["clients"] == 1}
    for row in sorted(rows, key=lambda row: (list(SYSTEMS).index(row["system"]), row["clients"])):
        system, clients = row["system"], row["clients"]
        own, plain = rate.get((system, 1)), rate.get(("plain", clients))
        speed = rate[system, clients]
        pairs = zip(row["texts"], alone.get(system, []), strict=False)
        same = sum(text == other for text, other in pairs)
        table.add_row(
            system,
            str(clients),
            f"{speed:.1f}",
            f"{speed / own:.2f}" if own else "",
            f"{speed / plain:.2f}" if plain else "",
            *_percentiles(row["first"]),
            *_percentiles(row["gaps"]),
            f"{same} of {len(row['texts'])}" if system in alone else "",
        )
    console.print(table)


def _percentiles(seconds: list[float]) -> tuple[str, str]:
    if not seconds:
        return "", ""
    return tuple(f"{1000 * value:.0f}" for value in np.percentile(seconds, [50, 99]))  # type: ignore[return-value]


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def main(
    target: Annotated[str, typer.Option(help="A folder, or a name from `biglittle models`.")] = (
        "smollm2-135m-instruct"
    ),
    draft: Annotated[str, typer.Option(help="As for `biglittle serve`.")] = "prompt-lookup",
    dtype: Annotated[str, typer.Option(help="Of the models.")] = "float32",
    systems: Annotated[list[str] | None, typer.Option(help="Of " + ", ".join(SYSTEMS))] = None,
    clients: Annotated[list[int] | None, typer.Option(help="How many at once.")] = None,
    count: Annotated[int, typer.Option("--prompts", help="Asked by all clients together.")] = 64,
    new_tokens: Annotated[int, typer.Option(help="New tokens a prompt, at most.")] = 48,
    out: Annotated[Path, typer.Option(help="Results file; gone on with.")] = Path(
        "bench-serve.jsonl"
    ),
    only_report: Annotated[bool, typer.Option("--report", help="Measure nothing.")] = False,
) -> None:
    """Throughput and waiting times of servers, by the number of clients."""
    console = Console(width=150)
    chosen, numbers = systems or list(SYSTEMS), clients or list(CLIENTS)
    check_names(system=(chosen, SYSTEMS))
    setting = {
        "target": target,
        "draft": draft,
        "dtype": dtype,
        "prompts": count,
        "new_tokens": new_tokens,
    }
    console.print(configuration() | setting)
    kept = [row for row in read(out) if row["setting"] == setting]
    if not only_report:
        entry = catalogue.find(target)
        folder = str(catalogue.fetch(entry)) if entry is not None else target
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        own = [prompt.text for prompt in builtin_prompts()]
        prompts = [f"{own[i % len(own)]} ({i})" for i in range(count)]
        done = {(row["system"], row["clients"]) for row in kept}
        for system in chosen:
            todo = [number for number in numbers if (system, number) not in done]
            if not todo:
                continue
            port = free_port()
            with serving(SYSTEMS[system](folder, draft, dtype, port), port) as url:
                for number in todo:
                    row = measure(url, folder, prompts, number, new_tokens, tokenizer)
                    row |= {"system": system, "clients": number, "setting": setting}
                    append(out, row)
                    kept.append(row)
                    rate = row["tokens"] / row["seconds"]
                    console.print(f"[dim]{system}, {number} clients: {rate:.1f} tokens/s[/]")
    report(kept, console)


if __name__ == "__main__":
    typer.run(main)
