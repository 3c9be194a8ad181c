"""`Database`: one connection for all threads of a host, which writes together what comes at once.

A step is durable when `write` returns: a commit that fails fails every step that it was to hold.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeAlias, TypeVar, cast

from heddle.errors import JournalError, WrongProcess

__all__ = ["Database", "Execute"]

T = TypeVar("T")
Execute: TypeAlias = Callable[..., sqlite3.Cursor]


class Database:
    """A connection that belongs to the process that made it.

    Attributes:
        name: Of the file, for messages.
    """

    def __init__(self, name: str, connection: sqlite3.Connection) -> None:
        self.name: str = name
        self._connection = connection
        self._pid = os.getpid()
        self._mutex = threading.Lock()
        self._waiting: deque[_Step[Any]] = deque()
        self._is_closed = False

    def write(self, function: Callable[[Execute], T]) -> T:
        """Return what `function` returns, once what it has written is durable. What it raises undoes what it wrote.

        Whoever finds the connection free takes along all that wait for it, so that they wait for the disk once.

        Raises:
            JournalError: It cannot be written, or is closed. Nothing was.
            WrongProcess: A child of the process that opened it.
        """
        self._refuse_children()
        mine = _Step(function)
        self._waiting.append(mine)
        with self._mutex:
            if not mine.is_over:
                self._take([self._waiting.popleft() for _ in range(len(self._waiting))])
        return mine.outcome()

    def read(self, function: Callable[[Execute], T]) -> T:
        """Return what `function` returns, to which nothing changes while it looks. No other host waits for it."""
        self._refuse_children()
        with self._mutex:
            return self._transaction("BEGIN", function)

    def close(self, last: Callable[[Execute], None]) -> bool:
        """Close it after a last step, which may fail. Return whether it was open; a child's is let be."""
        if self._pid != os.getpid():
            return False
        with self._mutex:
            if self._is_closed:
                return False
            with contextlib.suppress(JournalError):
                self._transaction("BEGIN IMMEDIATE", last)
            self._is_closed = True
            self._connection.close()
        return True

    def _refuse_children(self) -> None:
        if self._pid != os.getpid():
            raise WrongProcess(self._pid, os.getpid(), "journal")

    def _take(self, steps: list[_Step[Any]]) -> None:
        """Write steps in one transaction."""

        def take_all(execute: Execute) -> None:
            for step in steps:
                step.take(execute)

        try:
            self._transaction("BEGIN IMMEDIATE", take_all)
        except BaseException as error:
            for step in steps:
                step.fail(error)
            if not isinstance(error, JournalError):
                raise
        for step in steps:
            step.is_over = True

    def _transaction(self, begin: str, function: Callable[[Execute], T]) -> T:
        if self._is_closed:
            raise JournalError(f"the journal {self.name} is closed")
        execute = self._connection.execute
        try:
            execute(begin)
            value = function(execute)
            execute("COMMIT")
        except BaseException as error:
            with contextlib.suppress(sqlite3.Error):  # it may have been undone already
                execute("ROLLBACK")
            if not isinstance(error, sqlite3.Error):
                raise
            what = "read" if begin == "BEGIN" else "written"
            raise JournalError(f"the journal {self.name} cannot be {what}: {error}") from error
        return value


class _Step(Generic[T]):
    """Something that waits to be written, and what came of it."""

    def __init__(self, function: Callable[[Execute], T]) -> None:
        self.function = function
        self.is_over = False
        self._value: T | None = None
        self._error: Exception | None = None

    def take(self, execute: Execute) -> None:
        """Do it in a transaction that others have a part in. What goes wrong with the database is theirs as well."""
        execute("SAVEPOINT step")
        try:
            self._value = self.function(execute)
        except sqlite3.Error:
            raise
        except Exception as error:  # noqa: BLE001 - it belongs to whoever waits for this step
            execute("ROLLBACK TO step")
            self._error = error
        execute("RELEASE step")

    def fail(self, error: BaseException) -> None:
        """Note that nothing of it was written. Each has an error of its own: what is known of each is put into it."""
        self._error = JournalError(str(error) or type(error).__name__)
        self._error.__cause__ = error
        self.is_over = True

    def outcome(self) -> T:
        """Return what it has returned, or raise what it has raised."""
        if self._error is not None:
            raise self._error
        if not self.is_over:  # Ctrl-C in the thread that had taken it along
            raise JournalError("the journal was interrupted; it is not known whether this was written")
        return cast("T", self._value)
