"""What a stage costs however little it computes: the interpreter, threads, messages, the optimizer.

For a large model these are nothing. For a tiny one they are nearly everything, and they are why two
machines train it more slowly than one: each micro-batch costs every stage so much, whatever its
share of the model.

They are seconds, and the same for every provider: what GFLOP/s measure, the speed of large matrix
products, says next to nothing about the speed of an interpreter. Between a laptop and a server with
a large GPU the first differs by a factor of a thousand, the second hardly by two. All were measured
with one thread per stage on two shared cores and over loopback (`benchmarks/RESULTS.md`, "Small
models"); expect them to be right within a factor of two.
"""

CALL_S = 1.0e-5
"""Torch calls one operator of a forward; a backward takes two such calls."""

BACKWARD_CALLS = 2

UPDATE_S = 3.5e-5
"""The optimizer's step on one tensor, once in a batch: some ten operators, one after the other."""

PART_S = 3.5e-4
"""One micro-batch on one stage: the schedule, handing over between threads, starting the forward
and the backward, callbacks."""

BORDER_S = 6.0e-4
"""One micro-batch over one border of a stage: activations one way and gradients the other, each of
them packed or unpacked and carried between the compute thread and the network's. The two threads
share an interpreter, so it is time that neither computes in."""
