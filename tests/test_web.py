"""A web server with real sockets: requests at once, clients that go away, and nothing left after a thousand calls."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import attrs
import pytest

from tests.hosting import host, runs
from tests.support import Toolbox, wait_until

# The example, and beside it: what it holds, a runner for each request, and a handler that does not watch its client.
SERVER = """
    import json, os, sys
    import heddle, uvicorn
    from starlette.responses import JSONResponse
    from starlette.routing import Route
    sys.path.insert(0, "examples/hosts")
    from web_app import answer, make_app
    from tests.hosting import held, runs, owner_of

    async def show_held(request):
        own = [run for run in runs() if owner_of(run) == os.getpid()]
        now = held()
        now["descriptors"] = len(now["descriptors"])
        now["runs"] = sorted(str(path) for run in own for path in run.rglob("*"))
        return JSONResponse(now)

    async def one_each(request):
        async with heddle.aio.Runner(request.state.runner.registry) as runner:
            return answer(await runner.call(request.path_params["name"], (await request.body()).decode()))

    async def careless(request):
        return answer(await request.state.runner.call(request.path_params["name"]))

    app = make_app(sys.argv[1])
    app.router.routes += [
        Route("/held", show_held, methods=["POST"]),
        Route("/one_each/{name}", one_each, methods=["POST"]),
        Route("/careless/{name}", careless, methods=["POST"]),
    ]
    uvicorn.run(app, fd=int(sys.argv[2]), log_level="warning")
"""


@attrs.frozen
class Server:
    """A server that runs, and where to reach it."""

    process: subprocess.Popen[str]
    address: tuple[str, int]

    async def post(self, path: str, body: object = None) -> tuple[int, Any]:
        """Send one request on a connection of its own; return the status and the JSON of the answer."""
        reader, writer = await self.ask(path, body)
        try:
            head, _, content = (await reader.read()).partition(b"\r\n\r\n")
        finally:
            writer.close()
            await writer.wait_closed()
        return int(head.split()[1]), json.loads(content)

    async def ask(self, path: str, body: object = None) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Send one request, and do not wait for the answer."""
        content = json.dumps({} if body is None else body).encode()
        reader, writer = await asyncio.open_connection(*self.address)
        head = f"POST {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\nContent-Length: {len(content)}\r\n\r\n"
        writer.write(head.encode() + content)
        await writer.drain()
        return reader, writer

    async def post_all(self, path: str, bodies: list[Any], at_once: int) -> list[tuple[int, Any]]:
        """Send many requests, so many at once; return the answers in their order."""
        places = asyncio.Semaphore(at_once)

        async def post(body: object) -> tuple[int, Any]:
            async with places:
                return await self.post(path, body)

        return await asyncio.gather(*map(post, bodies))

    async def held(self, expected: object = None) -> object:
        """Return what the server holds, when that is `expected` or, without it, when it does not change any more."""
        before: object = expected
        for _ in range(50):
            _, now = await self.post("/held")
            if now == before:
                break
            if expected is None:
                before = now
            await asyncio.sleep(0.1)  # a connection may still be closing
        return now


@pytest.fixture
def server(toolbox: Toolbox, tmp_path: Path) -> Iterator[Server]:
    """A server in a process of its own, and the socket that it listens on: who connects early waits there."""
    toolbox.sh("echo", "cat")
    toolbox.sh("late", "setsid sleep {long} & sleep {long}")
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    with closing(listener), host(SERVER, toolbox.folder, listener.fileno(), pass_fds=[listener.fileno()]) as process:
        address = listener.getsockname()
        listener.close()  # so that a server that has ended is no longer waited for
        yield Server(process, address)
    assert wait_until(lambda: not toolbox.strays(), 1)


def numbers(count: int) -> list[dict[str, int]]:
    return [{"n": n} for n in range(count)]


def test_two_hundred_requests_at_once_are_each_answered_rightly(server: Server) -> None:
    answers = asyncio.run(server.post_all("/tools/echo", numbers(200), at_once=200))

    assert answers == [(200, {"n": n}) for n in range(200)]


def test_failures_have_a_status_and_the_message_for_whoever_asked(server: Server) -> None:
    async def ask() -> list[tuple[int, Any]]:
        return [await server.post("/tools/echos"), await server.post("/tools/echo", ["no object"])]

    assert asyncio.run(ask()) == [
        (404, {"error": "unknown_tool", "message": 'there is no tool "echos". Did you mean echo?'}),
        (
            422,
            {
                "error": "invalid_input",
                "message": 'the arguments of tool "echo" must be an object, not an array.',
            },
        ),
    ]


def test_a_client_that_goes_away_takes_its_tool_with_it(server: Server, toolbox: Toolbox) -> None:
    async def go_away(path: str, clients: int) -> bool:
        """Ask, leave when all tools run, and return whether they end then."""
        writers = [(await server.ask(path))[1] for _ in range(clients)]
        assert await asyncio.to_thread(wait_until, lambda: len(toolbox.strays()) == 2 * clients, 10)
        for writer in writers:
            writer.close()
        return await asyncio.to_thread(wait_until, lambda: not toolbox.strays(), 5 if "tools" in path else 0.5)

    async def clients() -> tuple[bool, bool, tuple[int, Any]]:
        gone = await go_away("/tools/late", 10)
        # The check sees it where nobody watches the client.
        gone_carelessly = await go_away("/careless/late", 1)
        return gone, gone_carelessly, await server.post("/tools/echo", {"n": 1})

    assert asyncio.run(clients()) == (True, False, (200, {"n": 1}))


def test_a_thousand_calls_leave_nothing(server: Server) -> None:
    """Children, descriptors, threads and folders are what they were when the first hundred had filled the pools."""

    async def load() -> tuple[object, object, set[int]]:
        await server.post_all("/tools/echo", numbers(100), at_once=16)
        before = await server.held()
        answers = await server.post_all("/tools/echo", numbers(1000), at_once=16)
        return before, await server.held(before), {status for status, _ in answers}

    before, after, statuses = asyncio.run(load())

    assert statuses == {200}
    assert after == before


def test_a_runner_may_be_opened_for_each_request(server: Server) -> None:
    """It costs a supervisor each time, and leaves nothing either."""

    async def load() -> tuple[list[tuple[int, Any]], object, object]:
        await server.post("/one_each/echo")
        before = await server.held()
        answers = await server.post_all("/one_each/echo", numbers(20), at_once=5)
        return answers, before, await server.held(before)

    answers, before, after = asyncio.run(load())

    assert answers == [(200, {"n": n}) for n in range(20)]
    assert after == before


def test_a_server_that_is_told_to_end_closes_its_runner(server: Server, toolbox: Toolbox) -> None:
    before = runs()

    async def end() -> None:
        await server.post("/tools/echo")
        _, writer = await server.ask("/tools/late")
        assert await asyncio.to_thread(wait_until, lambda: len(toolbox.strays()) == 2, 10)
        server.process.send_signal(signal.SIGTERM)
        writer.close()
        await asyncio.to_thread(server.process.wait, 20)

    asyncio.run(end())

    _, complained = server.process.communicate()
    assert (server.process.returncode, complained) == (-signal.SIGTERM, "")
    assert toolbox.strays() == []
    assert runs() <= before
