"""What the server knows and decides: providers, jobs, runs. No clock, no network, no files.

    records.py    what is kept of each of them
    events.py     what can happen
    effects.py    what follows: changes to be kept, instructions to be carried out, words for people
    world.py      all records at once, and what is only known while the server runs
    pool.py       who is free, who may work on what, and what planning is told about them
    introducing.py who is asked to measure the line to whom
    providers.py  a provider comes, is heard of, goes
    parts.py      a provider's part of a run: prepared, ended, refused, lost
    declining.py  who refused for a reason that passes is asked again
    leaving_out.py who fails by itself is done without
    runs.py       a run begins, is stopped, ends
    standstill.py a run whose workers do nothing any more is lost
    recovery.py   what a lost part means for the others
    fusing.py     stages are put together, or cannot be
    retrying.py   what a process has not finished is begun again
    jobs.py       a job is submitted, planned, steered
    deadlines.py  what follows from time alone; clock.py: from a clock that was set
    words.py      numbers in sentences
    machine.py    the entrance: an event goes in, its effects come out

Whatever is decided is persisted before anybody is told: the effects say both, the service keeps the
order. So a server that dies between two events goes on from its records and what agents tell.
"""
