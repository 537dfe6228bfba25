/**
 * Shapes of what the server sends, for editors and type checkers; see `ravnest/api/views.py`.
 *
 * @typedef {object} ProviderView
 * @property {number} id
 * @property {string} name
 * @property {string} state
 * @property {number} since
 * @property {number} seen_at
 * @property {string} hostname
 * @property {string} system
 * @property {string} ravnest
 * @property {string} torch
 * @property {string} device
 * @property {string} device_name
 * @property {number} cores
 * @property {number} memory_bytes
 * @property {number} memory_free_bytes
 * @property {number} worker_memory_bytes
 * @property {number} worker_limit_bytes
 * @property {number} cpu
 * @property {number} gflops
 * @property {Object<string, number>} [rates]
 * @property {number} up_mbps
 * @property {number} down_mbps
 * @property {number} latency_ms
 * @property {boolean} reachable
 * @property {string} scripts
 * @property {string} no_sandbox
 * @property {string|null} hours
 * @property {string|null} job
 * @property {number|null} cluster
 * @property {number|null} stage
 * @property {boolean} measured
 * @property {boolean} [paused]
 *
 * @typedef {object} StageView
 * @property {number} provider
 * @property {string} name
 * @property {string} role
 * @property {number} stage
 * @property {number} parameters
 * @property {number} memory_bytes
 * @property {string} state
 * @property {number} memory_used_bytes
 * @property {number} busy
 * @property {number} in_flight
 * @property {number} updates
 * @property {number} staleness
 * @property {number} compute_s
 *
 * @typedef {object} ClusterView
 * @property {number} id
 * @property {StageView[]} stages
 * @property {number} step
 * @property {number} epoch
 * @property {number} samples_per_second
 * @property {number|null} loss
 *
 * @typedef {object} LinkView
 * @property {number} source
 * @property {number} target
 * @property {"pipeline"|"ring"} kind
 * @property {"direct"|"relay"|"unknown"} path
 * @property {number} forward_bytes_per_s
 * @property {number} backward_bytes_per_s
 * @property {number} measured_mbps
 *
 * @typedef {object} RingView
 * @property {number} id
 * @property {string} first_parameter
 * @property {number} bytes
 * @property {number[]} providers
 *
 * @typedef {object} RoundView
 * @property {number} ring
 * @property {number} number
 * @property {number} began
 * @property {number} ended
 * @property {number} members
 * @property {string} outcome
 *
 * @typedef {object} PlanView
 * @property {number} steps_per_s
 * @property {number} single_machine_steps_per_s
 * @property {number} batch_size
 * @property {number} parameters
 * @property {string} model
 * @property {number} clusters
 * @property {number} providers
 * @property {[number, string][]} idle
 * @property {string[]} warnings
 * @property {string} report
 *
 * @typedef {object} JobView
 * @property {string} id
 * @property {string} name
 * @property {string} owner
 * @property {string} owner_role
 * @property {string} state
 * @property {string} reason
 * @property {number} submitted_at
 * @property {number|null} began_at
 * @property {number|null} ended_at
 * @property {number} run
 * @property {number} epoch
 * @property {number} epochs
 * @property {number} batch_size
 * @property {number} step
 * @property {number} samples_per_second
 * @property {number|null} loss
 * @property {Record<string, number>} metrics
 * @property {number} parameters
 * @property {number} result_bytes
 *
 * @typedef {object} RunView
 * @property {string} job
 * @property {number} run
 * @property {ClusterView[]} clusters
 * @property {LinkView[]} links
 * @property {RingView[]} rings
 * @property {RoundView[]} rounds
 *
 * @typedef {object} EventView
 * @property {number} number
 * @property {number} at
 * @property {"info"|"warning"|"error"} level
 * @property {string} text
 * @property {string|null} job
 * @property {number|null} provider
 *
 * @typedef {object} ServerView
 * @property {string} name
 * @property {string} version
 * @property {number} started_at
 * @property {number} now
 * @property {number} providers
 * @property {number} heard
 * @property {number} memory_bytes
 * @property {number} gflops
 * @property {number} relayed_bytes
 * @property {number} relayed_bytes_per_s
 * @property {string} no_sandbox
 *
 * @typedef {object} Overview
 * @property {ServerView} server
 * @property {ProviderView[]} providers
 * @property {JobView[]} jobs
 * @property {RunView[]} runs
 * @property {EventView[]} events
 *
 * @typedef {[series: string, cluster: number, step: number, epoch: number, at: number, value: number|null]} NewPoint
 *
 * @typedef {object} Changes
 * @property {ServerView} server
 * @property {ProviderView[]} providers
 * @property {number[]} gone_providers
 * @property {JobView[]} jobs
 * @property {string[]} gone_jobs
 * @property {RunView[]} runs
 * @property {string[]} gone_runs
 * @property {EventView[]} events
 * @property {Record<string, NewPoint[]>} points
 *
 * @typedef {object} JobDetail
 * @property {JobView} job
 * @property {PlanView|null} plan
 * @property {RunView|null} run
 * @property {number} files
 * @property {number} bytes
 *
 * @typedef {[step: number, epoch: number, at: number, value: number|null]} CurvePoint
 *
 * @typedef {object} Series
 * @property {Record<string, CurvePoint[]>} points
 *
 * @typedef {[kind: string, batch: number, part: number, start: number, end: number]} Span
 *
 * @typedef {object} TimelineRow
 * @property {number} provider
 * @property {string} node
 * @property {number} cluster
 * @property {number} stage
 * @property {Span[]} spans
 *
 * @typedef {object} Timeline
 * @property {number} began
 * @property {number} ended
 * @property {TimelineRow[]} rows
 *
 * What a page is: built once, told of every change, closed when the reader leaves it.
 * @typedef {object} Page
 * @property {string} title
 * @property {HTMLElement} element
 * @property {(change: import("./store.js").Change) => void} update
 * @property {() => void} close
 *
 * What every page may use.
 * @typedef {object} Context
 * @property {import("./store.js").Store} store
 * @property {import("./api/session.js").Session} session
 * @property {import("./api/http.js").Http} http
 */
export {};
