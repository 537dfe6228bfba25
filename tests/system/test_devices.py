"""One machine with two devices: one process, two providers, one pipeline between them."""

import re

from cast import cast
from digits import accuracy, submit


def test_a_machine_with_two_devices_trains_two_stages_of_one_run(tmp_path):
    with cast(tmp_path) as made:
        joined = made.join("ada", "--devices", "cpu:0,cpu:1", "--memory", "6", "--no-listen")
        now = made.wait_for_pool(2)
        names = ["ada/cpu:0", "ada/cpu:1"]
        assert sorted(one.name for one in now.providers) == names
        # Each of them may have half of what the owner allows.
        assert all(one.worker_limit_bytes <= 3e9 for one in now.providers)
        with made.session() as session:
            job = submit(session, epochs=2, max_clusters=1, min_cluster_size=2)
            made.wait_for_job(job.id, "done")
            for device in ("cpu:0", "cpu:1"):
                assert re.search(f"{device}: assigned .*one of 2 stages", joined.log)
            assert accuracy(job.result()) > 0.5
            # Nothing went through the server, although nobody else can reach them.
            assert made.wait_for_pool(2).server.relayed_bytes == 0
        joined.interrupt()
        assert joined.process.wait(60) == 0
        assert "cpu:0: goodbye" in joined.log
        assert "cpu:1: goodbye" in joined.log
