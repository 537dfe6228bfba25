"""The intermediary server: keeps the pool and the jobs, has them planned, and lets everybody see.

authority.py   the small certificate authority that is made at the first start
access.py      tokens and credentials: who somebody is, and what they may do
folders.py     what lies where in the server's folder
store/         records that survive: SQLite or PostgreSQL
state/         what follows from what has happened (pure)
planjob/       planning and fusing, in processes of their own
service/       HTTP, WebSockets, server-sent events: the only part that has a clock
"""
