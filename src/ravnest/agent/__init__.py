"""The provider's agent: what `ravnest join` runs, one process per machine, one provider per device.

    joining.py     from a command line to an agent at work; settings.py: what the owner has said
    identity.py    who this machine is to a server: credential, key, certificate
    machine.py     what it is and what of it may be used; workload.py: how fast it computes
    vram.py        what is free on a GPU; sharing.py: what providers of one machine have in common
    links.py       speed and delay to the server; peers.py: to other providers, and for them
    doorstep.py    strangers on the port for other providers, before they have shown who they are
    measuring.py   all figures together
    addresses.py   where others may reach this machine, and which of their addresses it dials
    control.py     what is heard, what the owner wants ► what is to be done and said (pure)
    instructions.py  all that it may decide; upkeep.py: what is done beside assignments
    errands.py     the life of an assignment, as control.py sees it; standing.py: what is known
    hours.py       when the machine may be used (pure); clockwork.py: what is done by the clock
    channel.py     the connection to the server that control.py speaks through
    errand.py      an assignment on this machine: folders.py, fetching.py; worker.py, in a sandbox
    clearing.py    folders of assignments that are over
    keeping.py     its files, for the next run of the same job; results.py: what its worker saved
    thinning.py    what its worker reports, not too often; reports.py: many as one (pure)
    tunnel.py      neighbours that can be reached through the server only; pacing.py: not too fast
    agent.py       carries out what control.py decides; tasks.py: while it goes on

The agent itself never loads torch: what needs it runs in processes of its own. Knows nothing about
models, plans or weights, and does nothing that its owner's caps do not allow.
"""
