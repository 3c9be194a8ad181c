"""What a host does with a result."""

from typing import assert_never, assert_type

import heddle
from heddle.strictjson import JSON


def every_case(result: heddle.ToolResult) -> str:
    match result:
        case heddle.Returned(data):
            assert_type(data, JSON)
            return "returned"
        case heddle.Failed(kind, message):
            assert_type(kind, heddle.FailureKind)
            return message
        case _:
            assert_never(result)


def every_case_returns(result: heddle.ToolResult) -> str:
    match result:
        case heddle.Returned():
            return "returned"
        case heddle.Failed() as failed:
            return failed.message


def a_missing_case(result: heddle.ToolResult) -> str:
    match result:
        case heddle.Returned():
            return "returned"
        case _:
            assert_never(result)  # E: mypy[arg-type] pyright[reportArgumentType]


def a_missing_return(result: heddle.ToolResult) -> str:  # E: mypy[return] pyright[reportReturnType]
    match result:  # E: pyright[reportMatchNotExhaustive]
        case heddle.Returned():
            return "returned"


def told_apart_by_ok(result: heddle.ToolResult) -> JSON:
    if result.ok is True:
        assert_type(result, heddle.Returned)
        return result.data
    assert_type(result, heddle.Failed)
    return result.message


def told_apart_by_what_is_not_ok(result: heddle.ToolResult) -> JSON:
    if result.ok is False:
        return result.message
    return result.data


def told_apart_by_class(result: heddle.ToolResult) -> JSON:
    if isinstance(result, heddle.Failed):
        return result.for_model()
    return result.data


def told_apart_by_truth(result: heddle.ToolResult) -> JSON:
    """Mypy tells them apart by the truth of ``ok``; Pyright does not, hence ``is``."""
    if result.ok:
        return result.data  # E: pyright[reportAttributeAccessIssue]
    return result.message  # E: pyright[reportAttributeAccessIssue]


def not_told_apart(result: heddle.ToolResult) -> None:
    print(result.data)  # E: mypy[union-attr] pyright[reportAttributeAccessIssue]
    print(result.kind)  # E: mypy[union-attr] pyright[reportAttributeAccessIssue]
    print(result.ok, result.report.tier, result.as_json(), result.for_model(max_chars=100))


def unwrapped(result: heddle.ToolResult) -> JSON:
    assert_type(result.unwrap(), JSON)
    return result.unwrap()


def unwrapped_as_what_it_may_not_be(result: heddle.ToolResult) -> str:
    return result.unwrap()  # E: mypy[return-value] pyright[reportReturnType]


def a_result_cannot_be_changed(returned: heddle.Returned, failed: heddle.Failed) -> None:
    returned.data = 1  # E: mypy[misc] pyright[reportAttributeAccessIssue]
    failed.report.tier = "none"  # E: mypy[misc] pyright[reportAttributeAccessIssue]


def kinds(failed: heddle.Failed) -> str:
    if failed.kind == "timed_out":
        return "too slow"
    if failed.kind is heddle.FailureKind.CRASHED:
        return "broken"
    match failed.kind:
        case heddle.FailureKind.INVALID_INPUT | heddle.FailureKind.TOO_LARGE:
            return "wrongly called"
        case heddle.FailureKind.TIMED_OT:  # E: mypy[attr-defined] pyright[reportAttributeAccessIssue]
            return "misspelt"
        case _:
            return str(failed.kind)


def a_failure_that_a_host_makes() -> heddle.ToolResult:
    return heddle.Failed("denied", "the budget is spent")


def what_a_failure_may_be_told(failed: heddle.Failed) -> None:
    heddle.Failed(kind="slow")  # E: mypy[call-arg] pyright[reportCallIssue]
    heddle.Failed("denied", "no", retry="maybe")  # E: mypy[arg-type] pyright[reportArgumentType]
    assert_type(failed.code, str | None)


def what_is_raised(error: heddle.ToolFailed) -> str:
    return error.result.message
