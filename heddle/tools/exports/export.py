"""What an export gives: `Export`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from heddle import strictjson
from heddle.errors import StrictJsonError
from heddle.tools.definition import Notice
from heddle.tools.exports.nulls import Nulls
from heddle.tools.exports.published import RESULT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from heddle.strictjson import JSON

__all__ = ["Export", "Exported"]


@attrs.frozen(eq=False, kw_only=True)
class Exported:
    """One tool in one format.

    Attributes:
        ours: The tool's name.
        theirs: Its name in the format.
        tool: What the format has of it.
        nulls: Where a model says null for what it leaves out.
        wraps: Whether a result goes under ``result``, as the format wants an object. None: when it is none.
        notice: What is not as it was asked for.
    """

    ours: str
    theirs: str
    tool: dict[str, Any]
    nulls: Nulls | None = None
    wraps: bool | None = False
    notice: Notice | None = None


class Export:
    """Tools in one format, and the way back from what is said in it.

    Attributes:
        tools: In the order of the registry, as the format has them: plain JSON values, yours to change.
        notices: Which tools are not as strict as was asked for, and why.
    """

    __slots__ = ("_by_name", "notices", "tools")
    tools: list[dict[str, Any]]
    notices: tuple[Notice, ...]
    _by_name: Mapping[str, Exported]

    def __init__(self, exported: Iterable[Exported]) -> None:
        """Put together what `heddle.Registry` makes."""
        self._by_name = {each.theirs: each for each in exported}
        self.tools = [each.tool for each in self._by_name.values()]
        self.notices = tuple(each.notice for each in self._by_name.values() if each.notice is not None)

    def __repr__(self) -> str:
        return f"Export({', '.join(self._by_name)})"

    def name_of(self, exported_name: str) -> str:
        """Return the name in the registry of a tool that was exported under `exported_name`.

        Raises:
            KeyError: None was. A model may make names up: answer it, do not look elsewhere for a tool of that name.
        """
        return self._by_name[exported_name].ours

    def arguments_of(self, exported_name: str, arguments: Mapping[str, object] | str) -> Mapping[str, object] | str:
        """Return what a runner is given for the arguments that a model has given.

        In strict mode a model says null for a property that it leaves out: those are dropped. Null where the tool's own
        schema takes it stays. What is no JSON object comes back as it is, for the runner to refuse with a reason.

        Args:
            exported_name: Of the tool.
            arguments: An object, or the text of one.

        Raises:
            KeyError: No tool was exported under that name.
        """
        nulls = self._by_name[exported_name].nulls
        if nulls is None:
            return arguments
        try:
            value = strictjson.loads(arguments) if isinstance(arguments, str) else strictjson.normalized(arguments)
        except StrictJsonError:
            return arguments
        dropped = nulls.dropped(value)
        return dropped if isinstance(dropped, dict) else arguments

    def result_of(self, exported_name: str, data: JSON) -> JSON:
        """Return what a tool has returned as the format has it: under ``result`` where it wants an object.

        Raises:
            KeyError: No tool was exported under that name.
        """
        wraps = self._by_name[exported_name].wraps
        if wraps is None:
            wraps = not isinstance(data, dict)
        return {RESULT: data} if wraps else data
