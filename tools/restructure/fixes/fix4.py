# ruff: noqa
import pathlib, re, textwrap

R = pathlib.Path("src/ravnest")


def wrapped(text):
    out = []
    paras = text.strip("\n").split("\n\n")
    for k, para in enumerate(paras):
        lines = para.split("\n")
        if any(re.match(r"\s*\S+(\.py|/)\b.*?\s{2,}\S|\s*\S+/\s+\S", l) for l in lines):
            res = []
            for l in lines:
                m = re.match(r"(\s*\S.*?\s{2,})(\S.*)", l)
                if m is None or len(l) <= 100:
                    res.append(l)
                    continue
                w = len(m.group(1))
                if w > 40:
                    m = re.match(r"(\s*(?:\S+ )*?\S+\s+)(\S.*)", l)
                res += textwrap.wrap(
                    m.group(2),
                    100,
                    initial_indent=m.group(1),
                    subsequent_indent=" " * len(m.group(1)),
                )
            out.append("\n".join(res))
        else:
            out.append("\n".join(textwrap.wrap(" ".join(lines), 96 if k == 0 else 100)))
    return "\n\n".join(out)


def doc(path, text):
    p = R / path / "__init__.py"
    s = p.read_text() if p.exists() else ""
    body = re.sub(r'^\s*"""(?:.|\n)*?"""\n?', "", s, count=1)
    text = wrapped(text)
    p.write_text(
        '"""' + text.strip("\n") + ("\n" if "\n" in text.strip("\n") else "") + '"""\n' + body
    )


doc(
    "_system",
    """
What every room may ask of the operating system. No room's own words are in here.

files.py        atomic writes, fsync, regular files only, file locks, limits of descriptors
safe_rmtree.py  removal of trees that a stranger's process has made
process.py      the end of the parent process, exit hooks, free ports
ratelimit.py    token buckets, budgets of memory, least speeds of uploads, limits of log lines
format.py       numbers, bytes, seconds and rates as a person reads them
""",
)
doc(
    "sandbox",
    """
Processes that compute with foreign graphs or scripts, kept from the rest of the machine. Server and agent use it.

bubblewrap.py   what a process sees, as a policy; the command that starts it so; why there is no sandbox
seccomp.py      what is given up inside: system calls (seccomp), sockets (Landlock), keys; the first program there
limits.py       how much memory such a process may take; the environment variables that it is given
""",
)
doc(
    "agent",
    """
The provider's agent: what `ravnest join` runs, one process for a machine, one provider for a device.

    main.py             from the command line to agents at work; settings.py: what the owner has said, opening hours
    agent.py            carries out the actions that the state machine decides
    state_machine.py    messages, wishes of the owner, ends of workers ► actions (pure); actions.py: all there are
    assignment.py       one assignment: prepare, run the worker, upload its results
    assignment_files.py download of its files, upload of its results
    file_cache.py       files of jobs by hash, kept for the next run
    workspace.py        folders of assignments, and what an earlier agent has left in them
    results.py          what a worker has saved, read without trust
    worker_process.py   the worker: started in a sandbox, steered, listened to, ended; throttling of its reports
    machine.py          what this machine is and offers: cores, memory, VRAM; benchmark.py: how fast it computes
    measurements.py     all measured figures together
    timers.py           heartbeats, opening hours, measuring, renewal of certificates, pruning of the cache
    background_tasks.py tasks that run beside the event loop
    network/            the connection to the server, and to other providers

The agent itself never loads torch: what needs it runs in processes of its own. It knows nothing about models, plans or
weights, and does nothing that its owner's caps do not allow.
""",
)
doc(
    "agent/network",
    """
How an agent reaches its server and other providers.

channel.py        the WebSocket to the server, opened again with backoff
identity.py       enrolment, credential, key and certificate of this provider
server_link.py    bandwidth and latency to the server
addresses.py      where others may reach this machine, and which of their addresses it dials (no SSRF)
tls_listener.py   a TLS port with limits for callers that have not shown a certificate
peers.py          probing of other providers: answered for them, tried and measured from here
local_peers.py    providers of one machine: file locks by which they find each other, figures that they share
tunnel.py         neighbours that only the server's relay reaches
""",
)
doc(
    "server",
    """
The intermediary server: matches requesters and providers, has jobs planned, and shows what happens.

main.py        from a folder on disk to a server that listens, and to its end
application/   all parts put together (service.py), the routes of the HTTP API
http/          a request: connection limits, authentication, rate limits, dispatch, answers
realtime/      WebSockets of agents, the relay, server-sent events, metrics
core/          the event loop of the state: event ► state ► records on disk ► effects
jobs/          what a job needs done: submission, planning in processes, assignments, reports, retention
views/         the state as people and programs see it, cut to their audience
state/         what follows from what has happened (pure)
store/         records that survive: SQLite or PostgreSQL
files/         the server's folder: blobs, run files, fused weights, quotas
identity/      tokens, the certificate authority, which folder belongs to which records
planjob/       checking, planning and fusing, in sandboxed processes of their own
""",
)
doc(
    "server/state",
    """
What the server knows and decides: providers, jobs, runs. No clock, no network, no files.

    reducer.py            the entrance: an event goes in with the time, its effects come out
    events.py effects.py changes.py   what can happen, what follows, what is written to the store
    records.py state.py   what is kept of each provider, job and run; all records at once
    providers.py pool.py  a provider enrols, connects, leaves; who is free, and who suits a job
    peer_measurements.py  which providers measure the link between them
    jobs.py               a job is submitted, planned, steered
    runs.py               a run begins, trains, is stopped, lost, ended
    assignments.py        what agents say about their assignment: prepared, refused, ended
    recovery.py           what a lost assignment means for the others
    provider_exclusion.py a provider that fails by itself is left out
    retry_policy.py       backoff of refusals and of processes that died
    timeouts.py           what follows from time alone: absence, runs that stand still
    fusing.py             a fusion ends, well or not

Whatever is decided is persisted before anybody is told: the effects say both, `core/` keeps the order. So a server
that dies between two events goes on from its records and from what agents tell.
""",
)
doc(
    "server/core",
    """
The one place where the state changes: events in, records on disk, effects out.

core.py               events one after another, persisted, then carried out
agent_connections.py  which agents are connected: one connection each, the newest
load_records.py       the records that a server begins with
""",
)
doc(
    "server/jobs",
    """
What a job needs done, outside of the state that decides about it.

submissions.py        jobs on their way in; job_checks.py: what a job must be like
subprocess_pool.py    processes that check, plan and fuse: limits, sandbox, a fair queue of owners
assignment_builder.py a plan, taken apart into what each provider is told
shard_cutting.py      rows of each cluster, cut from the shards
effects_runner.py     effects of the state, carried out
worker_reports.py     what workers report, within limits
retention.py          garbage collection of files and of records
""",
)
doc(
    "server/http",
    """
One HTTP request, from the accepted connection to the written answer.

connection_limits.py  connections for each caller and in all, slow readers, silent connections
dispatcher.py         who asks, what for, with which limits; whatever is refused becomes a `Problem`
auth.py               tokens, rights of roles, rate limits
responses.py          answers, large ones in pieces; downloads with ranges
""",
)
doc(
    "server/realtime",
    """
What goes on between requests: WebSockets, server-sent events, figures.

agent_channel.py  the control channel of an agent
relay.py          two providers that cannot reach each other, piped together
event_stream.py   changes of what can be seen, sent to all who look
curves.py         curves of jobs
metrics.py        Prometheus
""",
)
doc("server/views", "The state as people and programs see it, and who may see what of it.")
doc(
    "server/files",
    """
The server's folder: what lies where, and what is written and read there.

layout.py       paths, owners' folders, free space
blob_store.py   files by hash, each owner's own; quotas, shares, the reserve for results
job_specs.py    jobs as they were handed in
run_files.py    what planning has made for a provider, and what it brings back
fused_files.py  around a fusion: laid out before, put in place after
plan_outcome.py what the server and its planning processes hand to each other
""",
)
doc(
    "server/identity",
    "Tokens and roles, the certificate authority, and which records belong to which folder.",
)
doc(
    "server/application",
    """
The server put together: all parts (service.py), the ASGI application, the routes by who asks, OpenAPI.
""",
)
doc(
    "wire/transports",
    (R / "wire/transports/__init__.py").read_text().split('"""')[1]
    if (R / "wire/transports/__init__.py").read_text().startswith('"""')
    else "Transports by name.",
)
doc("provider/config", "What the user, the plan and the environment say about one provider.")
doc(
    "provider/monitoring",
    "What a provider is doing, for those who look on; and whether it still gets on.",
)
doc(
    "provider/data",
    """
Data on its way through a provider: inputs on the first stage, labels and losses on the last one.

input_binding.py      the user's batch, bound to the inputs of the model
micro_batches.py      batches divided into micro-batches, and numbered
data_shards.py        each cluster's own share of a loader
batch_fingerprint.py  Root and Leaf prove to each other that they are on the same batch
labels.py             the Leaf's labels, losses, metrics and their files
criterion.py          the criterion on parts of a batch; copy_check.py: labels that are the inputs
accuracy.py           the share of right classes
""",
)
doc(
    "planning/search",
    """
Which provider gets which part of the model: tables and providers in, a layout out.

    clusters.py                         the whole answer: layout, who is idle and why; options.py: what may be wished
    solve.py exact.py local_search.py   the best grouping of one pool: by looking at all, or by local search
    move_gains.py                       what every single change of a grouping is worth
    grouping.py assignment.py           groupings: cut from a sequence of providers; one that can be changed back
    pricing.py candidate_scoring.py     seconds per batch of a cluster, many thousand times over
    partition.py coarsening.py          the best cuts for a given order (dynamic programme); fewer cut points
    memory_fit.py idle_reasons.py       what comes closest to fitting; why a provider is idle or nothing fits
    ring_order.py                       rings, the order in which they are walked, links between providers

Knows nothing about models, torch or files.
""",
)

doc(
    "worker",
    """
The process that trains one stage for one assignment: `python -m ravnest.worker FOLDER`.

    order.py      order.json, read and checked; which node failed first
    training.py   a stage trained by a recipe: a Node and a Trainer; loaders.py: what it reads
    script.py     or somebody's own program, where the owner of the machine allows that
    reports/      what is said to the agent, and heard from it: lines of JSON on stdout and stdin

Which run this belongs to, and what becomes of the result, is known to agent and server.
""",
)
doc(
    "worker/reports",
    """
What a worker, or a script in its place, tells the agent.

protocol.py        lines on stdout, commands on stdin
reporter.py        a report every second: curves, spans, traffic, warnings
script_reports.py  reports of a script's Trainer, by way of its worker
""",
)
