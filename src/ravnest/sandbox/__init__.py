"""Foreign graphs and scripts, kept from the rest of the machine. Server and agent both use it.

bubblewrap.py    what a process sees, as a policy; the command that starts it so; why there is none
confine.py       what is given up inside: system calls, keys, sockets; the first program there
environment.py   the variables that a process which computes is given; no others
memory_limit.py  how much memory such a process may take
"""
