"""The server as others meet it: HTTPS, WebSockets, server-sent events.

core.py         events in, persisted, then carried out: the one place that changes the state
gate.py         who calls, and how often they may; problems.py: how they are told no
calls.py        one request: who, what, with which limits; routes.py: the table of all of them
connections.py  agents that are connected; control.py: what they say
live.py         what a run looks like at the moment; views.py: everything as others see it
stream.py       changes, to everybody who looks
patience.py     bodies of requests come in time, or are refused
files.py        files by content, in and out; results.py: what providers bring back
work.py         starts the processes that plan and fuse
"""
