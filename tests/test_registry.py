"""The catalogue: what is registered, what is refused, and what is told when catalogues are put together."""

from __future__ import annotations

import time
from typing import Any

import attrs
import pytest

from heddle.errors import DefinitionError
from heddle.limits import PROCESS_LIMITS, Limits
from heddle.tools.definition import Function, Notice, Program, ToolDef
from heddle.tools.registry import Registry

SEARCH = ToolDef(name="search", description="Search the web", origin="/tools/search.py")
PAY = ToolDef(
    name="pay", input_schema={"type": "object", "properties": {"n": {"type": "integer"}}}, origin="/tools/pay"
)
FETCH = ToolDef(name="fetch_api", implementation=Program("/tools/fetch_api.py"))
OTHER_SEARCH = attrs.evolve(SEARCH, description="Search the shelf", origin="/plugin/manifest.yaml")
LEFT_OUT = Notice("/tools/my tool", "bad_name", "it is left out")


def test_a_registry_iterates_in_the_order_of_registration() -> None:
    registry = Registry([SEARCH, PAY, FETCH])

    assert list(registry) == [SEARCH, PAY, FETCH]
    assert len(registry) == 3
    assert registry["pay"] == PAY
    assert "pay" in registry
    assert "nothing" not in registry
    assert registry.notices == ()


def test_an_empty_registry_is_one_too() -> None:
    registry = Registry()

    assert list(registry) == []
    assert not registry
    assert repr(registry) == "Registry()"


def test_a_missing_name_is_a_key_error_with_the_name() -> None:
    with pytest.raises(KeyError) as caught:
        Registry([SEARCH])["serach"]

    assert caught.value.args == ("serach",)
    with pytest.raises(KeyError, match="serach"):
        Registry([SEARCH]).compiled("serach")


def test_two_tools_of_one_name_are_refused_with_both_origins() -> None:
    with pytest.raises(DefinitionError) as caught:
        Registry([SEARCH, PAY, OTHER_SEARCH])

    assert str(caught.value) == (
        'two tools are named "search": the one from /tools/search.py and the one from /plugin/manifest.yaml; rename one'
    )


def test_adding_a_tool_gives_a_new_registry() -> None:
    old = Registry([SEARCH], notices=[LEFT_OUT])

    new = old.with_tool(PAY)

    assert list(old) == [SEARCH]
    assert list(new) == [SEARCH, PAY]
    assert new.notices == (LEFT_OUT,)


def test_adding_a_tool_whose_name_is_taken_is_refused() -> None:
    with pytest.raises(DefinitionError) as caught:
        Registry([FETCH]).with_tool(FETCH)

    assert str(caught.value) == (
        'two tools are named "fetch_api": one without a stated origin and one without a stated origin; rename one'
    )


def test_a_registry_cannot_be_changed() -> None:
    registry: Any = Registry([SEARCH])

    with pytest.raises(AttributeError):
        registry.notices = (LEFT_OUT,)
    with pytest.raises(AttributeError):
        registry.tools = []
    with pytest.raises(TypeError):
        registry["pay"] = PAY
    with pytest.raises(TypeError):
        del registry["search"]


def test_restricting_keeps_the_order_of_registration_and_the_notices() -> None:
    registry = Registry([SEARCH, PAY, FETCH], notices=[LEFT_OUT])

    few = registry.restrict(["fetch_api", "search", "search"])

    assert list(few) == [SEARCH, FETCH]
    assert few.notices == (LEFT_OUT,)
    assert list(registry.restrict([])) == []


def test_restricting_to_an_unknown_name_is_refused_with_near_ones() -> None:
    registry = Registry([SEARCH, PAY])

    with pytest.raises(DefinitionError) as near:
        registry.restrict(["pay", "serach"])
    with pytest.raises(DefinitionError) as far:
        registry.restrict(["\x1b" + "z" * 10_000])

    assert str(near.value) == 'there is no tool "serach"; did you mean "search"?'
    assert str(far.value) == rf'there is no tool "\x1b{"z" * 39}…"'


def test_composing_lets_the_stronger_win_and_says_so() -> None:
    weak = Registry([OTHER_SEARCH, PAY], notices=[LEFT_OUT])
    strong = Registry([FETCH, SEARCH])

    both = Registry.compose(weak, strong)

    assert list(both) == [SEARCH, PAY, FETCH]
    assert both.notices == (
        LEFT_OUT,
        Notice(
            "/plugin/manifest.yaml",
            "shadowed",
            'tool "search": the one from /tools/search.py takes the place of the one from /plugin/manifest.yaml',
        ),
    )
    assert list(weak) == [OTHER_SEARCH, PAY]


def test_composing_tools_without_an_origin_names_the_tool() -> None:
    both = Registry.compose(Registry([FETCH]), Registry([attrs.evolve(FETCH, title="Fetch")]))

    assert both.notices == (
        Notice(
            "fetch_api",
            "shadowed",
            'tool "fetch_api": one without a stated origin takes the place of one without a stated origin',
        ),
    )


def test_composing_a_registry_with_one_derived_from_it_shadows_nothing() -> None:
    registry = Registry([SEARCH], notices=[LEFT_OUT])

    both = Registry.compose(registry, registry.with_tool(PAY))

    assert list(both) == [SEARCH, PAY]
    assert both.notices == (LEFT_OUT,)
    assert list(Registry.compose()) == []


def test_compiled_schemas_are_shared_by_derived_registries() -> None:
    """Compiling is what registering costs; deriving a registry for each scope must be cheap."""
    registry = Registry([SEARCH, PAY])
    compiled = registry.compiled("pay")

    derived = [registry.restrict(["pay"]), registry.with_tool(FETCH), Registry.compose(Registry([FETCH]), registry)]

    assert [each.compiled("pay") is compiled for each in derived] == [True, True, True]


def test_a_bad_schema_is_refused_when_its_tool_is_registered() -> None:
    """With the tool and, where it is known, the file that it comes from."""
    bad = ToolDef(name="bad_one", input_schema={"type": "object", "properties": {"n": {"type": "whole"}}})

    with pytest.raises(DefinitionError, match=r'^tool "bad_one": .*whole'):
        Registry([SEARCH, bad])
    with pytest.raises(DefinitionError, match=r'^/tools/bad\.tool\.yaml: tool "bad_one": .*whole'):
        Registry([SEARCH]).with_tool(attrs.evolve(bad, origin="/tools/bad.tool.yaml"))


@pytest.mark.parametrize("limit", PROCESS_LIMITS)
def test_a_python_function_cannot_ask_for_a_process_limit(limit: str) -> None:
    """It shares the host's process, so the kernel would hold the host to it."""
    limits: dict[str, Any] = {limit: 5}
    tool = ToolDef(name="count", implementation=Function(len), limits=Limits(**limits))

    with pytest.raises(DefinitionError) as caught:
        Registry([tool])

    assert str(caught.value) == (
        f'tool "count" (one without a stated origin): {limit} cannot be held for a Python function, '
        "which shares the host's process; leave the limit out, or make the tool a program"
    )


def test_all_the_process_limits_that_a_function_asks_for_are_named() -> None:
    tool = ToolDef(name="count", implementation=Function(len), limits=Limits(memory_bytes=5, cpu_seconds=1))

    with pytest.raises(DefinitionError, match="cpu_seconds and memory_bytes cannot be held"):
        Registry([tool])


def test_a_function_may_limit_its_time_and_a_program_everything() -> None:
    function = ToolDef(name="count", implementation=Function(len), limits=Limits(wall_seconds=5, stdout_bytes=9))
    program = attrs.evolve(FETCH, limits=Limits(cpu_seconds=1, open_files=20))

    assert list(Registry([function, program])) == [function, program]


def test_what_is_no_tool_is_refused() -> None:
    tools: Any = [len]

    with pytest.raises(DefinitionError) as caught:
        Registry(tools)

    assert str(caught.value) == "<built-in function len> is no ToolDef; a Python function becomes one with @tool"


def test_near_names_are_found() -> None:
    registry = Registry([SEARCH, PAY, FETCH])

    assert registry.near("serach") == ("search",)
    assert registry.near("fetch_api.py") == ("fetch_api",)
    assert registry.near("functions.fetch_api") == ("fetch_api",)
    assert registry.near("zzz") == ()
    assert registry.near("") == ()


def test_near_names_of_a_long_name_are_found_at_once() -> None:
    """A model may send anything as a name."""
    registry = Registry([ToolDef(name=f"a{'ab' * 50}{number}") for number in range(200)])
    started = time.perf_counter()

    assert registry.near("ab" * 5_000) == ()
    assert registry.near("ab" * 5_000_000) == ()

    assert time.perf_counter() - started < 1


def test_the_repr_names_some_tools_and_counts_the_rest() -> None:
    registry = Registry([ToolDef(name=f"t{number}") for number in range(10)], notices=[LEFT_OUT])

    assert repr(registry) == "Registry(t0, t1, t2, t3, t4, t5, t6, t7 and 2 more; notices: 1)"
    assert repr(Registry([SEARCH, PAY])) == "Registry(search, pay)"


def test_a_folder_is_no_list_of_tools_and_a_text_no_list_of_names() -> None:
    with pytest.raises(DefinitionError, match=r"discover_tools\('tools'\)"):
        Registry("tools")  # type: ignore[arg-type]
    with pytest.raises(DefinitionError, match="a list, not the one text 'shout'"):
        Registry().restrict("shout")
