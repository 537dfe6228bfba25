"""The provider's agent: what `ravnest join` runs, one process per machine.

    identity.py    who this machine is to a server: credential, key, certificate
    machine.py     what it is and what of it may be used; workload.py: how fast it computes
    links.py       speed and delay to the server; peers.py: to other providers, and for them
    hours.py       when it may be used (pure)
    control.py     what is heard, what happens ► what is to be done and said (pure)
    channel.py     the connection to the server that control.py speaks through
    fetching.py    files of an assignment ► its folder, checked; folders.py: what lies where
    worker.py      the process that trains: started, steered, listened to, ended
    tunnel.py      neighbours that can be reached through the server only
    agent.py       all of this together

The agent itself never loads torch: what needs it runs in processes of its own. Knows nothing about
models, plans or weights, and does nothing that its owner's caps do not allow.
"""
