"""One provider of the benchmark; the Root prints the batches per second it has seen."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import job
import torch

from ravnest import Node, Trainer
from ravnest.callbacks import Callback, Progress


class Watch(Callback):
    def __init__(self) -> None:
        self.pace = job.Pace()

    def on_step_end(self, progress: Progress) -> None:
        self.pace.batch_done(progress.seconds)


torch.set_num_threads(1)
parts, schedule = int(sys.argv[1]), sys.argv[2]
# More than are counted, so that the pipe is still full when the last counted one comes back.
data = job.batches(job.WARM_UP + job.MEASURED + 4)
watch = Watch()
node = Node(
    optimizer=torch.optim.AdamW,
    optimizer_params={"lr": 3e-4},
    criterion=job.loss_of,
    labels=data,
    micro_batches=parts,
    schedule=schedule,
)
trainer = Trainer(node=node, train_loader=data, epochs=1, callbacks=[watch])
trainer.train()
if node.is_root:
    print("PACE", watch.pace.batches_per_second)
    print("STAGES", node.stages)
