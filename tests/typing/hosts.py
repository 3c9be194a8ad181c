"""One runner for each kind of host: what is awaited in one is not in the other."""

from pathlib import Path
from typing import assert_type

import heddle
from heddle.workspace import Changes

TOOLS = heddle.discover_tools("tools")


async def with_trio() -> None:
    async with heddle.Runner(TOOLS, mounts=["data:ro"], max_concurrent=4) as runner:
        assert_type(runner, heddle.Runner)
        assert_type(await runner.call("shout", {"text": "a"}), heddle.ToolResult)
        async with runner.scope("agent", mounts=[heddle.Mount("notes", mode="rw")], tools=["shout"]) as scope:
            assert_type(scope, heddle.Scope)
            assert_type(await scope.call("shout", '{"text": "a"}', cwd=Path("src")), heddle.ToolResult)
            assert_type(scope.workspace.path, Path)
            assert_type(await scope.workspace.changes(), Changes)
        assert_type(scope.report, heddle.ScopeReport)
        runner.call("shout")  # E: mypy[unused-coroutine] pyright[reportUnusedCoroutine]
    with heddle.Runner(TOOLS):  # E: mypy[attr-defined] pyright[reportGeneralTypeIssues]
        pass


async def with_asyncio() -> None:
    async with heddle.aio.Runner(TOOLS, mounts=["data:ro"], max_concurrent=4) as runner:
        assert_type(runner, heddle.aio.Runner)
        assert_type(await runner.call("shout", {"text": "a"}), heddle.ToolResult)
        async with runner.scope("agent", mounts=[heddle.Mount("notes", mode="rw")], tools=["shout"]) as scope:
            assert_type(scope, heddle.aio.Scope)
            assert_type(await scope.call("shout", '{"text": "a"}', cwd=Path("src")), heddle.ToolResult)
            assert_type(scope.workspace.path, Path)
            assert_type(await scope.workspace.changes(), Changes)
        assert_type(scope.report, heddle.ScopeReport)
        runner.call("shout")  # E: mypy[unused-coroutine] pyright[reportUnusedCoroutine]
        result = runner.call("shout")
        print(result.ok)  # E: mypy[attr-defined] pyright[reportAttributeAccessIssue]
        with runner.scope() as scope:  # E: mypy[attr-defined] pyright[reportGeneralTypeIssues]
            pass
    with heddle.aio.Runner(TOOLS):  # E: mypy[attr-defined] pyright[reportGeneralTypeIssues]
        pass


async def opened_and_closed_by_hand() -> heddle.aio.Runner:
    runner = await heddle.aio.Runner(TOOLS).open()
    await runner.close()
    return runner


def without_a_loop() -> None:
    with heddle.blocking.Runner(TOOLS, mounts=["data:ro"], max_concurrent=4) as runner:
        assert_type(runner, heddle.blocking.Runner)
        assert_type(runner.call("shout", {"text": "a"}), heddle.ToolResult)
        with runner.scope("agent", mounts=[heddle.Mount("notes", mode="rw")], tools=["shout"]) as scope:
            assert_type(scope, heddle.blocking.Scope)
            assert_type(scope.call("shout", '{"text": "a"}', cwd=Path("src")), heddle.ToolResult)
            assert_type(scope.workspace.path, Path)
            assert_type(scope.workspace.changes(), Changes)
        assert_type(scope.report, heddle.ScopeReport)
    assert_type(heddle.blocking.Runner(TOOLS).open(), heddle.blocking.Runner)


async def a_blocking_runner_is_not_awaited(runner: heddle.blocking.Runner) -> None:
    await runner.call("shout")  # E: mypy[misc] pyright[reportGeneralTypeIssues]
    async with runner:  # E: mypy[attr-defined] pyright[reportGeneralTypeIssues]
        pass
    async with runner.scope():  # E: mypy[attr-defined] pyright[reportGeneralTypeIssues]
        pass


async def a_workspace_of_ones_own(trio: heddle.Runner, asyncio: heddle.aio.Runner) -> None:
    async with heddle.Workspace.adopt("repository") as workspace, trio.scope(workspace=workspace):
        pass
    async with asyncio.workspace(heddle.Workspace.adopt("repository")) as other, asyncio.scope(workspace=other):
        pass
    async with asyncio.scope(workspace=workspace):  # E: mypy[arg-type] pyright[reportArgumentType]
        pass
    async with trio.scope(workspace=other):  # E: mypy[arg-type] pyright[reportArgumentType]
        pass


async def what_no_call_takes(runner: heddle.Runner) -> None:
    await runner.call("shout", 3)  # E: mypy[arg-type] pyright[reportArgumentType]
    await runner.call("shout", ["a"])  # E: mypy[arg-type] pyright[reportArgumentType]
    await runner.call("shout", {1: "a"})  # E: mypy[dict-item] pyright[reportArgumentType]
    await runner.call("shout", text="a")  # E: mypy[call-arg] pyright[reportCallIssue]
    await runner.call("shout", {}, limits=5)  # E: mypy[arg-type] pyright[reportArgumentType]
    await runner.call("shout", {}, heddle.Limits())  # E: mypy[call-arg] pyright[reportCallIssue]
