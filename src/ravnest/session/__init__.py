"""The requester's side of a server: hand a model over, follow it, fetch the result.

    from ravnest import Session

    session = Session("https://host:8470", token="rav1_…")
    job = session.submit(model, example_args=(images,), data=(images, labels), epochs=5)

Looking at a server needs no torch: it is loaded when a model is submitted or a result is read.
"""

from ravnest.session.job import Job
from ravnest.session.request import JobRequest
from ravnest.session.session import Session

__all__ = ["Job", "JobRequest", "Session"]
