"""The session router under random kills, and its figures: `make bench-sessions`.

`storm` kills nodes while they run turns and counts what must never happen; `ledger` is where turns are written down and
judged, `worker` a node. The figures are `benchmarks.subjects.session_*`.
"""
