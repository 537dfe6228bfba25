import itertools

import psycopg
import pytest
from postgres import database_url, running_postgres

_numbers = itertools.count()


@pytest.fixture(scope="session")
def postgres_server():
    with running_postgres() as socket:
        yield socket


@pytest.fixture
def postgres_url(postgres_server):
    """A fresh database."""
    name = f"test_{next(_numbers)}"
    with psycopg.connect(database_url(postgres_server, "postgres"), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return database_url(postgres_server, name)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.needs("postgres"))])
def store_url(request, tmp_path):
    if request.param == "sqlite":
        return str(tmp_path / "server.sqlite")
    return request.getfixturevalue("postgres_url")
