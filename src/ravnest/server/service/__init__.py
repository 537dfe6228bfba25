"""The server as others meet it: HTTPS, WebSockets, server-sent events.

service.py      all of these, put together, started and ended; reading.py: what it begins with
core.py         events in, persisted, then carried out: the one place that changes the state
gate.py         authentication and rights of a caller; problems.py: how a caller is told no
ratelimit.py    how often, how much memory, how slowly; saying.py: lines of the log, so many
calls.py        one request: who, what, with which limits; app.py: the table of all of them
api/            what is answered, by who asks; static.py: the pages of the dashboard
connections.py  agents that are connected; control.py: what they say
reports.py      what workers say; moderation.py: how much of it
live.py         what a run looks like at the moment; views.py: everything as others see it
audience.py     who sees what of it
stream.py       changes, to everybody who looks; curves.py: of a job, from their beginning
files.py        files by content, as they come in; downloads.py: as they go out
responses.py    answers as they are written, large ones in pieces
runfiles.py     what providers get and bring back; partitions.py: the rows of their own cluster
keeping.py      which files stay; forgetting.py: what does not, looked at every hour
numbers.py      the highest of a provider, beside the records
intake.py       jobs on their way in; specs.py: as they are stored
errands.py      carries out what was decided; work.py: the processes that plan and fuse
fused_files.py  what fusing reads, and how its result gets into place
turns.py        everybody gets a turn, however much others want
"""
