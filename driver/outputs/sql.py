"""The output to a database table: each batch is one transaction, with the output marker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from driver.batches.job.batch import Batch
from driver.batches.job.work import Written
from driver.outputs.output import noted
from driver.outputs.rows import pieces
from driver.outputs.run import OutputRun, check_output_name, reason_to_skip, run_of
from forebay.model.errors import StoreError, UsageError
from forebay.process import failpoints

if TYPE_CHECKING:
    import pyarrow as pa
    from sqlalchemy import Connection, Engine, Table

MARKERS = "forebay_batches"
_UPSERTS = ("postgresql", "sqlite")


class SqlOutput:
    """``SqlOutput("postgresql+psycopg://user@host/db", "flights", key=("carrier", "day"))``; needs ``forebay[sql]`` and the
    database's driver (``forebay[postgresql]`` brings PostgreSQL's). Tested with PostgreSQL and SQLite.

    ``url``: as for SQLAlchemy. ``table``: must exist, with columns named like those of the rows. ``name``: the output's name;
    default: the table's name. How rows are written:

    * By default they are inserted: each batch once; a replay adds its rows to those of the first run.
    * ``key``: columns of a primary key or unique index. A new row replaces the row with the same key (PostgreSQL, SQLite).
    * ``batch_column``: a text column that gets ``<stream>/<output>/<batch id>``. A replay deletes the rows of earlier runs of its
      batch, in the same transaction. Create an index on the column.

    The marker is one row for each output in the table ``forebay_batches``, in the schema of the data. It is read first and
    written last, under a lock, in the transaction of the rows. Rows go through the driver's process, ``chunk_rows`` at a
    time.

    **Crash window**: none. Rows and marker are committed together or not at all; if the answer to a commit is lost, the retry
    learns from the marker whether it succeeded. If the database itself loses a commit (for instance with ``synchronous_commit
    = off``), it loses rows and marker, although the journal calls the batch completed. A driver that is suspended in a
    transaction holds its lock. PostgreSQL ends its session after ``idle_seconds`` without a statement; this must be longer
    than it takes to get the rows of one chunk.
    """

    def __init__(
        self,
        url: str,
        table: str,
        *,
        name: str | None = None,
        schema: str | None = None,
        key: Sequence[str] = (),
        batch_column: str | None = None,
        chunk_rows: int = 1_000,
        connect_seconds: float = 10.0,
        idle_seconds: float = 300.0,
    ) -> None:
        """Connect to nothing yet. Raises UsageError for a url that SQLAlchemy can't read, or if the database's driver is
        missing."""
        try:
            import sqlalchemy
        except ImportError:
            raise UsageError("SqlOutput needs SQLAlchemy: pip install 'forebay[sql]'") from None
        if chunk_rows < 1:
            raise UsageError(f"SqlOutput: chunk_rows = {chunk_rows}: must be 1 or more")
        self.name = check_output_name(name or table)
        self._wanted = (schema, table)
        self._key = tuple(key)
        self._batch_column = batch_column
        self._chunk_rows = chunk_rows
        self._idle_seconds = idle_seconds
        try:
            parsed = sqlalchemy.make_url(url)
            waits = {"postgresql": "connect_timeout", "sqlite": "timeout"}.get(parsed.get_backend_name())
            self._engine: Engine = sqlalchemy.create_engine(
                parsed,
                pool_pre_ping=True,
                hide_parameters=True,  # errors must not contain rows
                connect_args={waits: max(1, round(connect_seconds))} if waits and waits not in parsed.query else {},
            )
        except sqlalchemy.exc.ArgumentError:
            raise UsageError(
                "SqlOutput: the url is not one of SQLAlchemy's, such as sqlite:////data/flights.db"
            ) from None
        except ImportError as error:
            raise UsageError(f"SqlOutput: the database's driver is not installed: {error}") from None
        if self._key and self._engine.dialect.name not in _UPSERTS:
            raise UsageError(
                f"SqlOutput: rows are replaced by key on PostgreSQL and SQLite, not on {self._engine.dialect.name}: "
                "leave key out, or use batch_column"
            )
        self._tables: tuple[Table, Table] | None = None

    def write(self, batch: Batch, data: Any) -> Written:
        """Write as ``Output.write``."""
        run = run_of(batch, self.name)
        table, markers = self._asked(self._find_tables)
        return noted(batch, self._asked(lambda: self._write(run, batch, data, table, markers)))

    def close(self) -> None:
        """Close the connections. The output can be used again."""
        self._engine.dispose()

    # ---- inner parts -------------------------------------------------------------------------------------------------

    def _write(self, run: OutputRun, batch: Batch, data: Any, table: Table, markers: Table) -> Written:
        with self._engine.begin() as connection:
            if self._engine.dialect.name == "postgresql":
                milliseconds = round(self._idle_seconds * 1000)
                connection.exec_driver_sql(f"SET LOCAL idle_in_transaction_session_timeout = {milliseconds:d}")
            last = self._locked(connection, run, markers)
            skipped = reason_to_skip(run, last)
            if skipped:
                connection.rollback()
                return Written(self.name, 0, skipped)
            failpoints.hit("output.before-write")
            rows = self._write_rows(connection, run, batch, data, table)
            connection.execute(_of(markers.update(), markers, run).values(**_columns(run.after(last)), row_count=rows))
            failpoints.hit("output.before-commit")
        failpoints.hit("output.after-commit")
        return Written(self.name, rows)

    @staticmethod
    def _locked(connection: Connection, run: OutputRun, markers: Table) -> OutputRun | None:
        """Return the marker. Lock its row (on SQLite the whole database) until the transaction ends, because the first
        statement is a write."""
        if not connection.execute(_of(markers.update(), markers, run).values(epoch=markers.c.epoch)).rowcount:
            # if two drivers insert at the same time, one fails because of the primary key
            connection.execute(markers.insert().values(**_columns(run), row_count=0))
            return None
        row = connection.execute(_of(markers.select(), markers, run)).one()._mapping
        return msgspec.convert({column: row[column] for column in OutputRun.__struct_encode_fields__}, OutputRun)

    def _write_rows(self, connection: Connection, run: OutputRun, batch: Batch, data: Any, table: Table) -> int:
        statement: Any = table.insert()
        label = f"{run.stream}/{run.output}/{run.batch_id}"
        if self._batch_column and batch.replay:
            connection.execute(table.delete().where(table.c[self._batch_column] == label))
        rows = 0
        prepared: tuple[str, ...] = ()
        for piece in pieces(data, self._chunk_rows):
            if tuple(piece.schema.names) != prepared:
                prepared = tuple(piece.schema.names)
                statement = self._statement(table, piece.schema)
            values = piece.to_pylist()
            if self._batch_column:
                for row in values:
                    row[self._batch_column] = label
            connection.execute(statement, values)
            rows += piece.num_rows
            failpoints.hit("output.mid-write")
        return rows

    def _statement(self, table: Table, schema: pa.Schema) -> Any:
        unknown = [name for name in schema.names if name not in table.c]
        if unknown:
            raise UsageError(f"output {self.name!r}: table {table.name} has no column {', '.join(unknown)}")
        lacking = [name for name in self._key if name not in schema.names]
        if lacking:
            raise UsageError(
                f"output {self.name!r}: the rows have no column {', '.join(lacking)}, which is part of the key"
            )
        if not self._key:
            return table.insert()
        from sqlalchemy.dialects import postgresql, sqlite

        make: Any = postgresql.insert if self._engine.dialect.name == "postgresql" else sqlite.insert
        insert = make(table)
        names = [*schema.names, *([self._batch_column] if self._batch_column else [])]
        others = {name: insert.excluded[name] for name in names if name not in self._key}
        if not others:
            return insert.on_conflict_do_nothing(index_elements=self._key)
        return insert.on_conflict_do_update(index_elements=self._key, set_=others)

    def _find_tables(self) -> tuple[Table, Table]:
        """Return the user's table and the table of markers, which is created if it does not exist."""
        if self._tables is not None:
            return self._tables
        import sqlalchemy as sa

        schema, name = self._wanted
        metadata = sa.MetaData()
        markers = sa.Table(
            MARKERS,
            metadata,
            sa.Column("stream", sa.String(64), primary_key=True),
            sa.Column("output", sa.String(64), primary_key=True),
            sa.Column("lineage", sa.Integer, nullable=False),
            sa.Column("replay", sa.Integer, nullable=False),
            sa.Column("number", sa.BigInteger, nullable=False),
            sa.Column("batch_id", sa.BigInteger, nullable=False),
            sa.Column("epoch", sa.BigInteger, nullable=False),
            sa.Column("newest", sa.BigInteger, nullable=False),
            sa.Column("row_count", sa.BigInteger, nullable=False),
            schema=schema,
        )
        try:
            table = sa.Table(name, metadata, schema=schema, autoload_with=self._engine)
        except sa.exc.NoSuchTableError:
            raise UsageError(f"output {self.name!r}: the database has no table {name}: create it first") from None
        for column in (*self._key, *([self._batch_column] if self._batch_column else [])):
            if column not in table.c:
                raise UsageError(f"output {self.name!r}: table {name} has no column {column}")
        if self._key and not self._is_unique(table):
            raise UsageError(
                f"output {self.name!r}: table {name} has no primary key, unique constraint or unique index over "
                f"({', '.join(self._key)}), so rows can't be replaced by this key: create one"
            )
        metadata.create_all(self._engine, [markers])
        self._tables = table, markers
        return self._tables

    def _is_unique(self, table: Table) -> bool:
        import sqlalchemy as sa

        inspector = sa.inspect(self._engine)
        found: list[list[Any]] = [inspector.get_pk_constraint(table.name, table.schema)["constrained_columns"]]
        found += [index["column_names"] for index in inspector.get_indexes(table.name, table.schema) if index["unique"]]
        found += [[*made["column_names"]] for made in inspector.get_unique_constraints(table.name, table.schema)]
        return any(sorted(map(str, columns)) == sorted(self._key) for columns in found)

    def _asked(self, ask: Callable[[], Any]) -> Any:
        import sqlalchemy as sa

        try:
            return ask()
        except sa.exc.SQLAlchemyError as error:
            with suppress(sa.exc.SQLAlchemyError):
                self._engine.dispose()  # the next attempt opens a new connection
            cause = getattr(error, "orig", None) or error
            raise StoreError(
                f"output {self.name!r}: the database reported {type(cause).__name__}: {' '.join(str(cause).split())}"
            ) from error


def _of(statement: Any, markers: Table, run: OutputRun) -> Any:
    return statement.where(markers.c.stream == run.stream, markers.c.output == run.output)


def _columns(run: OutputRun) -> dict[str, Any]:
    columns: dict[str, Any] = msgspec.to_builtins(run)
    return columns
