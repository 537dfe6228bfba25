"""The table of all requests, in a file for each kind of caller.

public.py      strangers: health, the authority, the pages
providers.py   provider tokens and machines: enrolling, files, results, probes
requesters.py  jobs: files, submitting, steering, results; checking.py: what is refused
viewers.py     everything that can be seen
operators.py   tokens, and providers of others
"""
