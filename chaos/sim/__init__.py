"""Clusters in one thread on virtual time, each from one seed: real code, simulated computers.

Begin with `broker/` (whole nodes, docs/decisions/0016-simulate-whole-nodes.md). `consensus/` is
Raft alone. `world/` stands for the computers, `clients/` and `consumers/` for the users;
`promises/` judges, and `bugs/` are planted to prove that it would notice."""
