"""What a tool that was made of a function still is."""

from collections.abc import Awaitable, Callable
from typing import assert_type

import heddle


@heddle.tool
def shout(text: str, *, times: int = 1) -> str:
    return text.upper() * times


@heddle.tool(name="count", description="Counts", limits=heddle.Limits(wall_seconds=2), side_effects="read")
async def count_words(text: str) -> int:
    return len(text.split())


@heddle.tool()
def with_context(context: heddle.ToolContext, text: str) -> dict[str, str]:
    return {"at": str(context.workspace), "text": text}


class Shop:
    def pay(self, amount: int) -> bool:
        return amount > 0


pay = heddle.tool(Shop().pay, name="pay")

registry = heddle.Registry([shout, count_words, with_context, pay])
restricted = registry.with_tool(heddle.ToolDef(name="declared")).restrict(["shout"])


async def a_tool_is_called_as_its_function() -> None:
    assert_type(shout("a", times=2), str)
    assert_type(await count_words("a b"), int)
    assert_type(pay(3), bool)
    takes: Callable[[str], str] = shout
    waits: Callable[[str], Awaitable[int]] = count_words
    print(takes("a"), await waits("a b"))


async def and_takes_what_that_takes() -> None:
    shout(1)  # E: mypy[arg-type] pyright[reportArgumentType]
    shout("a", 2)  # E: mypy[call-arg] pyright[reportCallIssue]
    shout("a", time=2)  # E: mypy[call-arg] pyright[reportCallIssue]
    shout()  # E: mypy[call-arg] pyright[reportCallIssue]
    await count_words()  # E: mypy[call-arg] pyright[reportCallIssue]
    count_words("a b")  # E: mypy[unused-coroutine] pyright[reportUnusedCoroutine]
    number: int = shout("a")  # E: mypy[assignment] pyright[reportAssignmentType]
    print(number)


def a_tool_is_a_definition_too() -> None:
    plain: heddle.ToolDef = shout
    assert_type(shout.name, str)
    shout.name = "whisper"  # E: mypy[misc] pyright[reportAttributeAccessIssue]
    assert_type(registry["shout"], heddle.ToolDef)
    assert_type("shout" in registry, bool)
    print([tool.description for tool in registry], plain)


def what_no_tool_is_made_of() -> None:
    heddle.tool(3)  # E: mypy[call-overload] pyright[reportArgumentType]
    heddle.tool(names="shout")  # E: mypy[call-overload] pyright[reportCallIssue]
    heddle.tool(name="shout", retry="twice")  # E: mypy[call-overload] pyright[reportArgumentType]


def plain(text: str) -> str:
    return text


def what_no_registry_takes() -> None:
    heddle.Registry([plain])  # E: mypy[list-item] pyright[reportArgumentType]
    heddle.Registry(shout)  # E: mypy[arg-type] pyright[reportArgumentType]
    heddle.Registry(["shout"])  # E: mypy[list-item] pyright[reportArgumentType]


def fields() -> heddle.ToolDef:
    return heddle.ToolDef.from_fields(
        "pay",
        input={"amount": heddle.FieldDef("number", required=True)},
        output={"paid": heddle.FieldDef("boolean")},
    )


def a_program(path: str) -> heddle.ToolDef:
    heddle.Program(path, protocol="jsonrpc")  # E: mypy[arg-type] pyright[reportArgumentType]
    return heddle.ToolDef(name="count", implementation=heddle.Program(path, protocol="envelope"))
