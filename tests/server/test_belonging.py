"""Records and a folder that belong together, and those that do not: no mistake costs results."""

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from servers import running_server

from ravnest.api.limits import encode
from ravnest.errors import ServerError
from ravnest.server.belonging import belong_together, shown
from ravnest.server.changes import Put, Remove
from ravnest.server.folders import FUSED_RUN, Folders
from ravnest.server.state.records import Job, Run
from ravnest.server.store import open_store


@pytest.fixture
def folders(tmp_path):
    found = Folders(tmp_path / "data")
    found.make()
    return found


def meet(folders, url, *changes):
    store = open_store(url)
    try:
        store.write(changes).result()
        belong_together(folders, store, url)
    finally:
        store.close()


def trained(folders, job):
    folders.result(job).mkdir(parents=True)
    (folders.result(job) / "weights").write_bytes(b"dear")


def record(id, **more):
    job = Job(id=id, name=id, owner="t", owner_name="o", submitted_at=1.0, epochs=1, **more)
    job.state = "stopped"
    return Put("job", id, encode(job))


def test_those_that_have_met_are_taken_also_without_any_job(folders, store_url):
    meet(folders, store_url)
    written = folders.identity.read_bytes()
    meet(folders, store_url)
    assert folders.identity.read_bytes() == written


def test_other_records_are_refused_by_name_and_nothing_is_touched(folders, store_url, tmp_path):
    meet(folders, store_url, record("j"))
    trained(folders, "j")
    before = folders.identity.read_bytes()
    for _ in range(2):  # they do not become the right ones by being tried
        with pytest.raises(ServerError) as refused:
            meet(folders, str(tmp_path / "wrong.sqlite"))
        said = str(refused.value)
        assert f"{folders.root} holds the files of 1 job and belongs to the records in" in said
        assert shown(store_url) in said
        assert f"{tmp_path / 'wrong.sqlite'}, which are new" in said
        assert "--data DIR" in said
        assert str(folders.identity) in said
    assert folders.identity.read_bytes() == before
    meet(folders, store_url)


def test_used_records_of_another_folder_are_refused(folders, store_url, tmp_path):
    meet(folders, str(tmp_path / "own.sqlite"))
    other = Folders(tmp_path / "other")
    other.make()
    meet(other, store_url, record("k"))
    with pytest.raises(ServerError, match=f"belong to the folder {other.root}"):
        meet(folders, store_url)


def test_records_that_were_emptied_do_not_begin_anew_without_a_word(folders):
    meet(folders, str(folders.database), Put("token", "t", b"{}"))
    folders.database.write_bytes(b"")
    for beside in folders.root.glob("server.sqlite-*"):
        beside.unlink()
    with pytest.raises(ServerError, match="which are new"):
        meet(folders, str(folders.database))
    folders.identity.unlink()  # as the message says
    meet(folders, str(folders.database))


def test_a_folder_of_an_earlier_release_is_taken_with_its_records(folders, store_url):
    trained(folders, "j")
    trained(folders, "half deleted")
    meet(folders, store_url, Put("token", "t", b"{}"), record("j"))
    meet(folders, store_url)


def test_a_folder_of_an_earlier_release_is_not_given_to_records_of_others(folders, store_url):
    trained(folders, "j")
    with pytest.raises(ServerError, match="know none of these jobs"):
        meet(folders, store_url, Put("token", "t", b"{}"), record("k"))
    assert not folders.identity.exists()


def test_a_submission_that_was_cut_off_is_no_stranger(folders, store_url):
    (folders.job("j") / "model").mkdir(parents=True)
    meet(folders, store_url, Put("token", "t", b"{}"))


def test_records_restored_from_before_they_met_are_known_by_their_jobs(folders, store_url):
    meet(folders, store_url, record("j"))
    trained(folders, "j")
    meet(folders, store_url, Remove("identity", "store"))


def test_records_do_not_begin_with_an_empty_folder_instead_of_theirs(folders, store_url, tmp_path):
    meet(folders, store_url, record("j"))
    empty = Folders(tmp_path / "mistyped")
    empty.make()
    with pytest.raises(ServerError, match=f"belong to the folder {folders.root}"):
        meet(empty, store_url)


def test_a_first_start_that_was_cut_off_is_made_again(folders, store_url):
    meet(folders, store_url)
    folders.identity.unlink()
    meet(folders, store_url)


@pytest.mark.parametrize("name", [".", "jobs"])
def test_a_folder_that_is_a_link_to_nowhere_is_named(tmp_path, name):
    """A disk that is not mounted, for example."""
    link = (tmp_path / "data" / name).resolve()
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(tmp_path / "disk")
    with pytest.raises(ServerError, match=rf"{link} is a link to .*disk, which is not there"):
        Folders(tmp_path / "data").make()


def test_a_damaged_identity_is_named(folders, store_url):
    folders.identity.write_bytes(b"\xff")
    with pytest.raises(ServerError, match=r"identity\.json.*remove it"):
        meet(folders, store_url)


@pytest.mark.needs("postgres")
def test_a_database_that_is_made_anew_under_a_server_is_not_written_to(folders, postgres_url):
    store = open_store(postgres_url)
    belong_together(folders, store, postgres_url)
    parts = conninfo_to_dict(postgres_url)
    with psycopg.connect(make_conninfo(**parts | {"dbname": "postgres"}), autocommit=True) as other:
        other.execute(f"DROP DATABASE {parts['dbname']} WITH (FORCE)")
        other.execute(f"CREATE DATABASE {parts['dbname']}")
    with pytest.raises(ServerError, match="back with another database"):
        store.write([record("j")]).result(30)
    store.close()
    with psycopg.connect(postgres_url) as other:
        assert other.execute("SELECT to_regclass('ravnest_records')").fetchone() == (None,)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        (
            "postgresql://me:secret@db.example.org:5432/x",
            "PostgreSQL at db.example.org, database x",
        ),
        ("postgresql:///x?password=secret", "PostgreSQL at this machine, database x"),
        ("postgresql://me:secret@[no address]:5432/x", "PostgreSQL"),  # it may be one to PostgreSQL
    ],
)
def test_no_password_is_kept_or_shown(url, said):
    assert shown(url) == said


def test_what_was_trained_for_jobs_that_are_not_in_the_records_is_set_aside(folders, caplog):
    """As after records were restored from an old backup. What can be had again is removed."""
    meet(folders, str(folders.database), record("known"))
    for job in ("known", "new"):
        trained(folders, job)
    brought = folders.results("unfused", 1, 7)
    brought.mkdir(parents=True)
    (brought / "trained.json").write_bytes(b"{}")
    (folders.job("submitted") / "model").mkdir(parents=True)
    (folders.aside / "new").mkdir(parents=True)  # of an earlier time
    with running_server(folders.root):
        left = {path.name for path in folders.jobs.iterdir()}
    assert left == {"known"}
    assert (folders.aside / "new-2" / "result" / "weights").read_bytes() == b"dear"
    assert (folders.aside / "unfused" / "runs" / "1" / "results" / "7" / "trained.json").exists()
    assert f"what was trained for it is in {folders.aside / 'new-2'} now" in caplog.text
    assert not (folders.aside / "submitted").exists()


def written(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def found(folder):
    """Files in it, by their paths, and what is in them."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


@pytest.mark.parametrize("fused_run", [0, 1])
def test_what_was_trained_after_the_records_is_set_aside_and_not_replaced(
    folders, caplog, fused_run
):
    """The records are of a backup that knows the job, and less of it than there is."""
    meet(folders, str(folders.database), record("j", run=fused_run, fused_run=fused_run))
    written(folders.result("j") / "weights", b"dear")
    written(folders.result("j") / FUSED_RUN, b"2")
    written(folders.results("j", 2, 7) / "trained.json", b"{}")
    written(folders.run("j", fused_run + 1) / "planjob.json", b"a plan")
    for _ in range(2):  # once is enough
        with running_server(folders.root):
            pass
    [place] = folders.aside.iterdir()
    kept = found(place)
    assert kept["result/weights"] == b"dear"
    assert "runs/2/results/7/trained.json" in kept
    assert f"is in {place} now" in caplog.text
    assert (folders.result("j") / "weights").read_bytes() == b"dear"  # to go on from
    if not fused_run:
        assert (folders.run("j", 1) / "planjob.json").exists()


@pytest.mark.parametrize("case", ["as recorded", "of an earlier release", "being fused"])
def test_what_the_records_know_of_stays_in_its_place(folders, case):
    job = {"run": 2, "fused_run": 1 if case == "being fused" else 2}
    changes = [record("j", **job)]
    if case == "being fused":
        run = Run(job="j", number=2, state="fusing", began_at=1.0, fuses=0)
        changes.append(Put("run", run.key, encode(run)))
    meet(folders, str(folders.database), *changes)
    written(folders.result("j") / "weights", b"dear")
    if case != "of an earlier release":
        written(folders.result("j") / FUSED_RUN, b"2")
    written(folders.results("j", 2, 7) / "trained.json", b"{}")
    with running_server(folders.root):
        pass
    assert not folders.aside.exists()
