"""Deterministic simulation: clusters in one thread on virtual time, each from one seed.

Start reading with `broker/` (whole nodes, docs/decisions/0016-simulate-whole-nodes.md).
`consensus/` simulates Raft alone. `world/` simulates the machines, `clients/` and `consumers/` the
users; `promises/` checks the results, and `bugs/` are planted to prove that the checks find
them."""
