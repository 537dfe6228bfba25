"""Planning and fusing, each in a process of its own: `python -m ravnest.server.planjob FOLDER`.

A model from outside is looked at here and nowhere else in the server: whatever it does to the
process, it does not do to the server.
"""
