"""The script every provider process runs; its job is the JSON on the command line."""

import json
import os
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import jobs

from ravnest import Node, Trainer, set_seed
from ravnest.wire.peers import Patience

job = json.loads(sys.argv[1])
set_seed(3)
data = jobs.loader(job["model"])
me = os.environ["RAVNEST_NODE"]
if job.get("late") == me:
    time.sleep(3)
if job.get("lies") == me:
    from ravnest.provider.averaging.course import Mean
    from ravnest.provider.averaging.exchange import Exchange

    truly = Exchange._sent

    def lies(self, vector, item, payload):
        """Every mean that this member makes is one of its own."""
        if isinstance(item, Mean) and item.holders == 1:
            payload = payload * 0 + 7.0
        return truly(self, vector, item, payload)

    Exchange._sent = lies
node = Node(
    labels=data,
    patience=Patience(connect_s=30, resume_s=2.0, nobody_s=0.5),
    **jobs.settings(job),
)


class Killing(Trainer):
    """Ends one provider in the middle of training, without a word."""

    def _train_on(self, batch):
        if job.get("slow") == self.node.cluster_id:
            time.sleep(0.1)
        if self.n_forwards == 5 and job.get("kill"):
            Path("at_work").touch()
        super()._train_on(batch)


batches = [] if job.get("idle") == node.cluster_id else data
trainer = Killing(node=node, train_loader=batches, epochs=job.get("epochs", 1), save=True)
if job.get("kill") == me:
    import threading

    def wait_and_die():
        while not Path("at_work").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))

    threading.Thread(target=wait_and_die, daemon=True).start()
trainer.train()
prediction = trainer.pred(next(iter(data))[0])
if prediction is not None:
    print("predicted", tuple(prediction.shape))
print("threads", len([t for t in __import__("threading").enumerate() if not t.daemon]))
