"""The same promises, kept by SQLite and by PostgreSQL."""

import contextlib
import logging
import os
import random
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading

import psycopg
import pytest

from ravnest.errors import ServerError
from ravnest.server.changes import Event, Forget, Point, Put, Remove
from ravnest.server.store import open_store, postgres, sqlite, statements


@pytest.fixture
def store(store_url):
    store = open_store(store_url)
    yield store
    store.close()


def ask(store, question):
    return store.ask(question).result(timeout=30)


def records(store, kind):
    return ask(store, lambda db: db.records(kind))


def write(store, *changes):
    store.write(changes).result(timeout=30)


def point(number, value=0.5, series="train/loss", cluster=0, job="j"):
    return Point(number, job, series, cluster, number * 10, number / 100, 1000.0 + number, value)


def test_records_are_kept_by_kind_and_id(store):
    write(store, Put("job", "b", b'{"x":1}'), Put("job", "a", b"{}"), Put("token", "a", b"[]"))
    write(store, Put("job", "b", '{"x":"größer"}'.encode()))
    assert records(store, "job") == [("a", b"{}"), ("b", '{"x":"größer"}'.encode())]
    write(store, Remove("job", "a"), Remove("job", "never there"))
    assert [id for id, _ in records(store, "job")] == ["b"]
    assert ask(store, lambda db: db.record("token", "a")) == b"[]"
    assert ask(store, lambda db: db.record("token", "b")) is None


def test_of_several_changes_to_a_record_the_last_one_counts(store):
    write(store, Put("k", "a", b"1"), Remove("k", "a"), Put("k", "a", b"2"), Put("k", "b", b"1"))
    write(store, Put("k", "b", b"2"), Remove("k", "b"))
    assert records(store, "k") == [("a", b"2")]


def test_everything_is_there_after_a_restart(store_url):
    store = open_store(store_url)
    write(store, Put("job", "a", b"{}"), Event(3, 1.0, "info", "hello", "a", 7), point(9))
    store.close()
    again = open_store(store_url)
    assert records(again, "job") == [("a", b"{}")]
    assert ask(again, lambda db: db.last_numbers()) == (3, 9)
    assert ask(again, lambda db: db.events(10)) == [Event(3, 1.0, "info", "hello", "a", 7)]
    again.close()


def test_events_are_the_last_ones_oldest_first_of_a_job_or_of_all(store):
    write(store, *(Event(n, float(n), "info", f"e{n}", "ab"[n % 2]) for n in range(10)))
    assert [e.number for e in ask(store, lambda db: db.events(3))] == [7, 8, 9]
    assert [e.number for e in ask(store, lambda db: db.events(2, job="a"))] == [6, 8]
    assert [e.number for e in ask(store, lambda db: db.events(2, job="a", before=6))] == [2, 4]
    assert ask(store, lambda db: db.events(2, job="c")) == []


def test_old_events_are_forgotten_however_many_are_written_at_once(store, monkeypatch):
    monkeypatch.setattr(statements, "MOST_EVENTS", 100)
    for first in range(0, 3000, 2):
        write(store, Event(first, 0.0, "info", "x"), Event(first + 1, 0.0, "info", "x"))
    numbers = [event.number for event in ask(store, lambda db: db.events(10_000))]
    assert numbers[-1] == 2999
    assert 100 <= len(numbers) <= 1100


def test_writing_the_same_again_changes_nothing(store):
    changes = [Put("k", "a", b"1"), Event(1, 0.0, "info", "once"), point(1)]
    write(store, *changes)
    write(store, *changes)
    assert len(ask(store, lambda db: db.events(10))) == 1
    assert len(ask(store, lambda db: db.points("j", 10))) == 1


def test_a_long_curve_is_thinned_but_keeps_its_first_and_its_last_point(store):
    write(store, *(point(n) for n in range(1, 1001)), point(2000, None, "eval/accuracy", 1))
    found = ask(store, lambda db: db.points("j", 100))
    losses = [p.number for p in found if p.series == "train/loss"]
    assert losses[:3] == [1, 11, 21]
    assert losses[-1] == 1000
    assert len(losses) <= 101
    assert [p for p in found if p.cluster == 1] == [point(2000, None, "eval/accuracy", 1)]


def test_the_curves_of_a_job_can_be_forgotten(store):
    write(store, point(1), point(2, job="other"))
    write(store, point(3), Forget("j"))
    assert ask(store, lambda db: db.points("j", 10)) == []
    assert len(ask(store, lambda db: db.points("other", 10))) == 1


def test_what_is_to_be_written_is_written_also_if_nobody_waits_for_it_any_more(store):
    assert not store.write([Put("k", "a", b"{}")]).cancel()
    write(store, Put("k", "b", b"{}"))
    assert [id for id, _ in records(store, "k")] == ["a", "b"]


def test_many_writes_share_transactions_and_each_is_acknowledged(store):
    futures = [store.write([Put("k", str(n), b"{}")]) for n in range(3000)]
    for future in futures:
        future.result(timeout=60)
    assert len(records(store, "k")) == 3000


def test_a_second_server_on_the_same_store_is_refused(store_url):
    store = open_store(store_url)
    with pytest.raises(ServerError, match="another server is running"):
        open_store(store_url)
    store.close()
    open_store(store_url).close()


def test_a_store_of_a_newer_release_is_refused(store_url):
    open_store(store_url).close()
    if store_url.startswith("postgresql"):
        with psycopg.connect(store_url) as connection:
            connection.execute("INSERT INTO ravnest_schema VALUES (99)")
    else:
        connection = sqlite3.connect(store_url)
        connection.execute("PRAGMA user_version = 99")
        connection.close()
    with pytest.raises(ServerError, match="newer release"):
        open_store(store_url)


def test_a_store_that_fails_acknowledges_nothing_any_more(store):
    with pytest.raises(ServerError, match="the store has failed"):
        write(store, Event(1, 0.0, "info", object()))
    with pytest.raises(ServerError, match="the store has failed"):
        write(store, Put("k", "a", b"{}"))


class Hears(logging.Handler):
    """Does something as soon as the store says this; `said` holds all that it says."""

    def __init__(self, words, do):
        super().__init__()
        self.words, self.do, self.said = words, do, []

    def emit(self, record):
        self.said.append(record.getMessage())
        if self.words in self.said[-1]:
            self.do()

    def __enter__(self):
        logging.getLogger("ravnest.server").addHandler(self)
        return self

    def __exit__(self, *_):
        logging.getLogger("ravnest.server").removeHandler(self)


def fill(store):
    """As if the disk were full; what makes room again."""
    connection = store._database._connection
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count = {pages}")
    return lambda: connection.execute("PRAGMA max_page_count = 1000000")


def test_records_wait_for_room_on_the_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(sqlite, "_PAUSE_S", 0.0)
    store = open_store(tmp_path / "server.sqlite")
    write(store, Put("k", "a", b"{}"))
    make_room = fill(store)
    with Hears("wait for room on the disk", make_room):
        write(store, Put("k", "b", b"x" * 100_000), Put("k", "c", b"{}"))
    assert [id for id, _ in records(store, "k")] == ["a", "b", "c"]
    store.close()


def test_a_store_that_waits_for_room_can_be_closed(tmp_path):
    store = open_store(tmp_path / "s.sqlite")
    write(store, Put("k", "a", b"{}"))
    fill(store)
    closing = threading.Thread(target=store.close)
    with Hears("wait for room", closing.start):
        written = store.write([Put("k", "b", b"x" * 100_000)])
        with pytest.raises(ServerError, match="full"):
            written.result(30)  # less than records wait for room
    closing.join(30)
    assert not closing.is_alive()


def test_records_wait_for_whoever_has_locked_them(tmp_path, monkeypatch):
    """A backup that is being made, or somebody who looks at them with another program."""
    monkeypatch.setattr(sqlite, "_BUSY_S", 0.0)
    store = open_store(tmp_path / "server.sqlite")
    other = sqlite3.connect(tmp_path / "server.sqlite", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    let_go = threading.Event()
    with Hears("wait for somebody else who has locked them", let_go.set):
        written = store.write([Put("k", "a", b"{}")])
        assert let_go.wait(30)
        other.rollback()
        written.result(30)
    other.close()
    assert records(store, "k") == [("a", b"{}")]
    store.close()


def test_records_do_not_wait_for_room_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(sqlite, "ROOM_S", 0.0)
    store = open_store(tmp_path / "server.sqlite")
    fill(store)
    with pytest.raises(ServerError, match="the store has failed: database or disk is full"):
        write(store, Put("k", "b", b"x" * 100_000))
    store.close()


@pytest.mark.needs("postgres")
def test_postgres_that_was_gone_for_a_moment_is_found_again(postgres_url):
    store = open_store(postgres_url)
    write(store, Put("k", "a", b"{}"))
    with psycopg.connect(postgres_url, autocommit=True) as other:
        other.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    write(store, Put("k", "b", b"{}"))
    assert [id for id, _ in records(store, "k")] == ["a", "b"]
    store.close()


@contextlib.contextmanager
def frozen(url):
    """The process of PostgreSQL that serves the writing connection answers nothing; yields what
    makes it go on."""
    with psycopg.connect(url) as connection:
        [(pid,)] = connection.execute(
            "SELECT pid FROM pg_locks JOIN pg_database ON oid = database "
            "WHERE locktype = 'advisory' AND datname = current_database()"
        ).fetchall()

    def thaw():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    os.kill(pid, signal.SIGSTOP)
    try:
        yield thaw
    finally:
        thaw()


@pytest.mark.needs("postgres")
def test_postgres_that_does_not_answer_is_given_up_and_found_again(postgres_url, monkeypatch):
    store = open_store(postgres_url)
    monkeypatch.setattr(postgres, "ANSWER_S", 0.5)
    with frozen(postgres_url) as thaw, Hears("PostgreSQL does not answer", thaw) as heard:
        write(store, Put("k", "a", b"{}"))
    assert any("trying again" in said for said in heard.said)
    assert records(store, "k") == [("a", b"{}")]
    store.close()


@pytest.mark.needs("postgres")
def test_a_store_that_waits_for_an_answer_of_postgres_can_be_closed(postgres_url, monkeypatch):
    monkeypatch.setattr(postgres, "_HURRIED_S", 0.1)
    store = open_store(postgres_url)
    with frozen(postgres_url):
        written = store.write([Put("k", "a", b"{}")])
        closing = threading.Thread(target=store.close, daemon=True)
        closing.start()
        with pytest.raises(ServerError, match="the store has failed"):
            written.result(20)  # less than an answer is waited for otherwise
        closing.join(20)
        assert not closing.is_alive()


@pytest.mark.needs("postgres")
def test_whoever_locks_the_records_is_waited_for(postgres_url, monkeypatch):
    """As VACUUM FULL does, for longer than a server waits for one before it."""
    monkeypatch.setattr(postgres, "_LOCKED_S", 0.1)
    store = open_store(postgres_url)
    with psycopg.connect(postgres_url) as other:
        other.execute("LOCK TABLE ravnest_records IN ACCESS EXCLUSIVE MODE")
        with Hears("cannot do this now, trying again", other.rollback) as heard:
            write(store, Put("k", "a", b"{}"))
    assert "lock timeout" in heard.said[0]
    assert records(store, "k") == [("a", b"{}")]
    store.close()


@pytest.mark.needs("postgres")
def test_the_wait_for_a_server_before_this_one_is_no_limit_for_what_comes_after(
    postgres_url, monkeypatch
):
    monkeypatch.setattr(postgres, "_LOCK_WAIT_S", 0.001)
    store = open_store(postgres_url)
    connection = store._database._connection
    assert connection.execute("SHOW lock_timeout").fetchone() == ("10s",)
    store.close()


@pytest.mark.needs("postgres")
@pytest.mark.parametrize("state", ["53100", "40P01", "57014"])
def test_what_passes_by_itself_is_waited_for(postgres_url, state):
    """A full disk, a deadlock, a statement that was cancelled."""
    store = open_store(postgres_url)
    with psycopg.connect(postgres_url, autocommit=True) as other:
        other.execute(
            "CREATE FUNCTION fails() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$ BEGIN RAISE EXCEPTION 'it is so' USING ERRCODE = '{state}'; END $$"
        )
        other.execute(
            "CREATE TRIGGER fails BEFORE INSERT ON ravnest_records "
            "FOR EACH ROW EXECUTE FUNCTION fails()"
        )

        def mend():
            other.execute("DROP TRIGGER IF EXISTS fails ON ravnest_records")

        with Hears("cannot do this now, trying again: it is so", mend):
            write(store, Put("k", "a", b"{}"))
    assert records(store, "k") == [("a", b"{}")]
    store.close()


def test_an_unknown_kind_of_store_is_named():
    with pytest.raises(ServerError, match="mysql://"):
        open_store("mysql://localhost/x")


WRITER = """
    import sys
    from ravnest.server.store import open_store
    from ravnest.server.changes import Put, Event
    store = open_store(sys.argv[1])
    first = int(sys.argv[2])
    waiting = []
    for n in range(first, first + 30_000):
        waiting.append((n, store.write([Put("k", str(n), b"{}"), Event(n, 0.0, "info", "x")])))
        if len(waiting) == 8:
            for number, future in waiting:
                future.result()
                print(number, flush=True)
            waiting = []
"""


def test_what_was_acknowledged_survives_kill_9_at_any_moment(store_url):
    acknowledged, dice = [], random.Random(5)
    for first in range(0, 150_000, 30_000):
        command = [sys.executable, "-c", textwrap.dedent(WRITER), store_url, str(first)]
        writer = subprocess.Popen(command, stdout=subprocess.PIPE)
        lines = dice.randrange(1, 400)
        acknowledged += [int(writer.stdout.readline()) for _ in range(lines)]
        os.kill(writer.pid, signal.SIGKILL)
        acknowledged += [int(line) for line in writer.stdout if line.endswith(b"\n")]
        writer.stdout.close()
        writer.wait(timeout=30)
    store = open_store(store_url)
    there = {int(id) for id, _ in records(store, "k")}
    events = {event.number for event in ask(store, lambda db: db.events(10**6))}
    store.close()
    assert len(acknowledged) > 5
    assert set(acknowledged) <= there
    assert there == events  # whole transactions or nothing


def test_whoever_lacks_psycopg_is_told_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(ServerError, match=r"needs psycopg: pip install 'psycopg\[binary\]'"):
        open_store("postgresql://somebody@127.0.0.1/jobs")
