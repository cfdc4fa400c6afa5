"""Stores the cluster's state in one SQLite file: every write is in it before it is acknowledged.

The write-ahead log reaches the operating system at each commit, so a killed process loses nothing. It is not synced
to disk each time, so a power cut may lose the last moments.
"""

import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

from colocate.errors import UserError, system_reason
from colocate.lab.api.changes import Stored, StoreKey

_FORMAT = 1
_APPLICATION = 0x434F4C4F  # "COLO": marks our files
_TABLES = """
CREATE TABLE object (resource TEXT, namespace TEXT, name TEXT, revision INTEGER NOT NULL, body BLOB NOT NULL,
                     PRIMARY KEY (resource, namespace, name)) WITHOUT ROWID;
CREATE TABLE kept (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
"""


class Disk:
    """An open state file, for one process at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            # The file holds the CA's key and the key of every token.
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        except OSError as error:
            raise UserError(
                f"the state file {path} cannot be opened ({system_reason(error)}); name another"
            ) from error
        self._sql = sqlite3.connect(path, isolation_level=None, timeout=0)
        try:
            self._open()
        except sqlite3.DatabaseError as error:
            self._sql.close()
            raise UserError(self._refusal(error)) from error
        except UserError:
            self._sql.close()
            raise

    def _open(self) -> None:
        self._sql.execute("PRAGMA locking_mode = EXCLUSIVE")
        found = self._sql.execute("PRAGMA application_id").fetchone()[0]
        tables = self._sql.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if tables and found != _APPLICATION:
            raise UserError(f"{self.path} is a database of another program; name another state file")
        self._sql.execute("PRAGMA journal_mode = WAL")
        self._sql.execute("PRAGMA synchronous = NORMAL")
        self._sql.execute("BEGIN EXCLUSIVE")
        if not tables:
            for statement in _TABLES.split(";")[:-1]:
                self._sql.execute(statement)
            self._sql.execute(f"PRAGMA application_id = {_APPLICATION}")
            self._sql.execute(f"PRAGMA user_version = {_FORMAT}")
        self._sql.execute("COMMIT")
        format = self._sql.execute("PRAGMA user_version").fetchone()[0]
        if format != _FORMAT:
            raise UserError(
                f"the state file {self.path} has format {format}, this version reads {_FORMAT}; remove it"
            )

    def _refusal(self, error: sqlite3.DatabaseError) -> str:
        if "locked" in str(error):
            return (
                f"the state file {self.path} is in use by another process; stop that one or name another file"
            )
        if isinstance(error, sqlite3.OperationalError):
            return f"the state file {self.path} cannot be written ({error}); make room, or name another file"
        return f"{self.path} is not a state file ({error}); remove it or name another"

    def revision(self) -> int:
        """The newest revision that was written."""
        row = self._sql.execute("SELECT value FROM kept WHERE name = 'revision'").fetchone()
        return int(row[0]) if row else 0

    def objects(self) -> Iterator[tuple[StoreKey, int, bytes]]:
        rows = self._sql.execute("SELECT resource, namespace, name, revision, body FROM object")
        for resource, namespace, name, revision, body in rows:
            yield StoreKey(resource, namespace, name), revision, bytes(body)

    def begin(self) -> None:
        self._execute("BEGIN")

    def commit(self, revision: int) -> None:
        self._execute("INSERT OR REPLACE INTO kept VALUES ('revision', ?)", (str(revision).encode(),))
        self._execute("COMMIT")

    def _execute(self, statement: str, values: tuple[object, ...] = ()) -> None:
        """UserError where the disk is full or broken: the caller must roll back the transaction."""
        try:
            self._sql.execute(statement, values)
        except sqlite3.OperationalError as error:
            raise UserError(self._refusal(error)) from error

    def roll_back(self) -> None:
        if self._sql.in_transaction:
            self._sql.execute("ROLLBACK")

    def write(self, stored: Stored, removed: bool) -> None:
        if removed:
            self._execute("DELETE FROM object WHERE resource = ? AND namespace = ? AND name = ?", stored.key)
        else:
            self._execute(
                "INSERT OR REPLACE INTO object VALUES (?, ?, ?, ?, ?)",
                (*stored.key, stored.revision, stored.encoded),
            )

    def keep(self, name: str, make: Callable[[], bytes]) -> bytes:
        row = self._sql.execute("SELECT value FROM kept WHERE name = ?", (name,)).fetchone()
        if row:
            return bytes(row[0])
        value = make()
        self._execute("INSERT INTO kept VALUES (?, ?)", (name, value))
        return value

    def close(self) -> None:
        self._sql.close()
