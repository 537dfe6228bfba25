"""How many files a server and an agent may have open."""

import resource

from ravnest.descriptors import allow_many_files, for_callers


def test_a_process_may_open_as_many_files_as_the_system_allows():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
        allow_many_files()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_callers_get_half_of_what_a_process_may_open():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (600, hard))
        assert for_callers() == 300
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
