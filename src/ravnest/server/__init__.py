"""The intermediary server: keeps the pool and the jobs, has them planned, and lets everybody see.

running.py     a server from its folder to its end
authority.py   the small certificate authority that is made at the first start
access.py      tokens and credentials: who somebody is, and what they may do
folders.py     what lies where in the server's folder; room.py: and how much more may
belonging.py   which records and which folder belong together
changes.py     what can be written to a store
store/         records that survive: SQLite or PostgreSQL
state/         what follows from what has happened (pure)
planjob/       planning and fusing, in processes of their own
service/       HTTP, WebSockets, server-sent events: the only part that has a clock
connection_limits.py   how many connections of each caller, how long they may say or read nothing
relay.py       providers that cannot reach each other meet here
metrics.py     figures for Prometheus; openapi.py: the API described for programs
"""
