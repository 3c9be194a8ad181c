"""A web application: one runner for all requests, and a client that goes away takes its tool with it.

python examples/hosts/web_app.py
curl --json '{"query": "looms"}' http://127.0.0.1:8000/tools/python_search
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING

import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import heddle

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from starlette.requests import Request

TOOLS = Path(__file__).parent.parent / "tools"
STATUS = {
    heddle.FailureKind.UNKNOWN_TOOL: HTTPStatus.NOT_FOUND,
    heddle.FailureKind.INVALID_INPUT: HTTPStatus.UNPROCESSABLE_ENTITY,
    heddle.FailureKind.TOO_LARGE: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    heddle.FailureKind.TIMED_OUT: HTTPStatus.GATEWAY_TIMEOUT,
}


class ClientIsGone(Exception):
    """Nobody waits for the answer any more."""


def make_app(tools: Path = TOOLS) -> Starlette:
    """Return an application that calls the tools of a folder."""

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[dict[str, object], None]:
        async with heddle.aio.Runner(heddle.discover_tools(tools)) as runner:
            yield {"runner": runner}

    return Starlette(routes=[Route("/tools/{name}", call_tool, methods=["POST"])], lifespan=lifespan)


async def call_tool(request: Request) -> Response:
    """Call a tool with the body of the request, for as long as the client waits."""
    runner: heddle.aio.Runner = request.state.runner
    arguments = (await request.body()).decode(errors="replace")
    result: heddle.ToolResult | None = None
    try:
        async with asyncio.TaskGroup() as group:
            watch = group.create_task(raise_when_gone(request))
            # Cancelled because the client is gone, this ends when the tool has.
            result = await runner.call(request.path_params["name"], arguments)
            watch.cancel()
    except* ClientIsGone:
        pass
    return answer(result)


async def raise_when_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    raise ClientIsGone


def answer(result: heddle.ToolResult | None) -> Response:
    match result:
        case heddle.Returned(data):
            return JSONResponse(data)
        case heddle.Failed() as failed:
            status = STATUS.get(failed.kind, HTTPStatus.BAD_GATEWAY)
            return JSONResponse({"error": failed.kind, "message": failed.message}, status)
        case None:
            return Response(status_code=499)  # nobody reads it


if __name__ == "__main__":
    uvicorn.run(make_app(), host="127.0.0.1", port=8000)
