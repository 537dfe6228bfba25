"""Talking to a server over HTTPS: who it is, what is asked, what its answers mean.

    address.py     what people type ► scheme, host, port
    trust.py       the server's authority, known by the fingerprint in a token
    answers.py     an answer that is no success, or none at all ► an error in plain words
    http.py        requests and answers as data
    transfers.py   files by their hash: sent once, fetched in parts, checked, put in place
    stream.py      server-sent events, taken up again when the line breaks
    known.py       which server and which token, if nothing else was said
    dashboard_proxy.py   the server's pages on loopback, for a browser

Knows nothing about jobs, providers or pools beyond the structures in `api`.
"""
