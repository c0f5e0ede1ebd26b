"""The core server: NATS without JetStream, which comes in through `runtime`.

Begin with `run` (the process), `server` (what it holds), `connection` (one client) and `router`
(from a publish to its takers). Around them:

- the socket of a client: listener endpoint tls connect liveness outbound client_sink closing
- whose work goes on when: turns
- clients that come by HTTP: websocket websocket_door; what listeners differ in: entrance
- the server as a client of itself: inside
- what is said of the server: info identity times log record lag files about user_info
- accounts: imports reserved inbox
- a running server changes: reload
- messages that are traced: tracing message_trace traced_storing; protocol lines: trace"""
