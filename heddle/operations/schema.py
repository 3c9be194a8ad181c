"""The tables of a journal, and how an older file becomes a newer one."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
import threading
import time
from typing import TYPE_CHECKING, Final

from heddle.errors import JournalError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["VERSION", "connect"]

# 10 ms: what is waited for takes another host about as long.
RETRY_SECONDS = 0.01
# Each step takes a file from its place in the list to the next; the version is how many were taken.
STEPS: Final = (
    (
        """CREATE TABLE owners (
            owner TEXT PRIMARY KEY, pid INTEGER NOT NULL, host TEXT NOT NULL, opened_at TEXT NOT NULL
        ) STRICT""",
        """CREATE TABLE operations (
            operation_id TEXT PRIMARY KEY, tool TEXT NOT NULL, revision TEXT NOT NULL, digest TEXT NOT NULL,
            side_effects TEXT NOT NULL, retry TEXT NOT NULL,
            state TEXT NOT NULL CHECK (state IN ('open', 'succeeded', 'needs_attention')),
            created_at TEXT NOT NULL, data TEXT, report TEXT, note TEXT NOT NULL,
            CHECK ((state = 'succeeded') = (data IS NOT NULL))
        ) STRICT""",
        """CREATE TABLE attempts (
            attempt_id TEXT PRIMARY KEY, operation_id TEXT NOT NULL REFERENCES operations, number INTEGER NOT NULL,
            state TEXT NOT NULL, owner TEXT NOT NULL, prepared_at TEXT NOT NULL, started_at TEXT, ended_at TEXT,
            kind TEXT, message TEXT NOT NULL
        ) STRICT""",
        # One try at a time, whatever hosts and threads do.
        """CREATE UNIQUE INDEX one_live_attempt ON attempts (operation_id)
            WHERE state IN ('prepared', 'starting')""",
        "CREATE INDEX attempts_of_operation ON attempts (operation_id, number)",
        "CREATE INDEX attempts_in_flight ON attempts (owner) WHERE state IN ('prepared', 'starting')",
    ),
    (
        """CREATE TABLE approvals (
            operation_id TEXT NOT NULL REFERENCES operations, arguments TEXT NOT NULL, asked_at TEXT NOT NULL,
            approved INTEGER CHECK (approved IN (0, 1)), decided_by TEXT NOT NULL, note TEXT NOT NULL, decided_at TEXT,
            attempt_id TEXT REFERENCES attempts, CHECK ((approved IS NULL) = (decided_at IS NULL)),
            CHECK (attempt_id IS NULL OR approved = 1)
        ) STRICT""",
        # What is approved is approved once.
        "CREATE UNIQUE INDEX one_standing_approval ON approvals (operation_id) WHERE attempt_id IS NULL",
        "CREATE INDEX approvals_of_operation ON approvals (operation_id)",
        "CREATE INDEX approvals_by_attempt ON approvals (attempt_id) WHERE attempt_id IS NOT NULL",
    ),
)
VERSION: Final = len(STEPS)
# "hedj": by it a journal is told from the databases of others, which number their versions from 1 as well.
APPLICATION: Final = 0x6865646A


def connect(path: Path, busy_seconds: float) -> sqlite3.Connection:
    """Return a connection to a journal whose commits survive a loss of power; its tables are there.

    Raises:
        JournalError: The file is something else, or was written by a newer heddle. It is as it was.
        OSError: It cannot be made.
    """
    with _connecting:
        _make(path)
        database = sqlite3.connect(path, timeout=busy_seconds, isolation_level=None, check_same_thread=False)
    try:
        _refuse_others(path, database)
        # Two hosts that open a new file at once are in each other's way here, and SQLite does not wait by itself.
        _patiently(database, "PRAGMA journal_mode = WAL", busy_seconds)
        # NORMAL may lose the last commits with the power, and each of ours stands for an effect.
        database.execute("PRAGMA synchronous = FULL")
        database.execute("PRAGMA foreign_keys = ON")
        _migrate(database)
    except sqlite3.Error as error:
        database.close()
        raise JournalError(f"{path.name} cannot be used as a journal: {error}") from error
    except BaseException:
        database.close()
        raise
    return database


_connecting = threading.Lock()


def _make(path: Path) -> None:
    """Make the file, readable by this user alone, if it is not there.

    One that is there is not opened: SQLite's locks belong to the process, and to close any descriptor of the file lets
    go of all of them, those of other journals of this process as well.
    """
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        with contextlib.suppress(FileExistsError):  # another host was faster
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        return
    if not stat.S_ISREG(mode):
        raise JournalError(f"{path.name} is no file: a journal is a file itself, and no link to one")


def _refuse_others(path: Path, database: sqlite3.Connection) -> None:
    database.execute("BEGIN")  # all at one time: another host may be making the tables
    (version,) = database.execute("PRAGMA user_version").fetchone()
    (application,) = database.execute("PRAGMA application_id").fetchone()
    (tables,) = database.execute("SELECT count(*) FROM sqlite_master").fetchone()
    database.execute("COMMIT")
    is_new = not (version or application or tables)
    if not is_new and application != APPLICATION:
        raise JournalError(f"{path.name} is a database and no journal; give another path")
    if version > VERSION:
        raise JournalError(
            f"the journal {path.name} is of version {version}, and this heddle knows {VERSION}: use a newer one"
        )


def _patiently(database: sqlite3.Connection, statement: str, seconds: float) -> None:
    give_up = time.monotonic() + seconds
    while True:
        try:
            database.execute(statement)
        except sqlite3.OperationalError:
            if time.monotonic() > give_up:
                raise
            time.sleep(RETRY_SECONDS)
        else:
            return


def _migrate(database: sqlite3.Connection) -> None:
    """Take the steps that the file has not seen, all or none; several hosts may do so at once."""
    database.execute("BEGIN IMMEDIATE")
    (version,) = database.execute("PRAGMA user_version").fetchone()
    for step in STEPS[version:]:
        for statement in step:
            database.execute(statement)
    if version < VERSION:
        database.execute(f"PRAGMA application_id = {APPLICATION}")
        database.execute(f"PRAGMA user_version = {VERSION}")
    database.execute("COMMIT")
