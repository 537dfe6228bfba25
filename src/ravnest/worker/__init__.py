"""The process that trains one stage for one assignment: `python -m ravnest.worker FOLDER`.

    order.json  ──►  orders.py      what is to be done, and where on this machine
    data/       ──►  feeding.py     batches for a Root, targets for a Leaf
    stdin       ──►  steering.py    stop, pause, resume; its end is the end of the agent
    training.py      a Node and a Trainer over all of it
    script.py        or somebody's own program: scripted.py in its process reports, hearing.py hears
    saves.py         whether there is a result; blame.py: whose failure it was
    journal.py, reporting.py  ──►  speech.py  ──►  stdout, as lines of JSON

Which run this belongs to, and what becomes of the result, is known to agent and server.
"""
