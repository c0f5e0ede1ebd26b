"""The same scripted exchanges with nats-server and with our server, answers compared by field.

A *scene* is a list of steps for one account of both servers; the tables here generate them.
`differences.py` lists every difference by design; docs/differences.md is written from it."""
