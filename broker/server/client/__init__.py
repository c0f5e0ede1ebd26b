"""One client connection: listener, socket, TLS, WebSocket, CONNECT, operations, output buffer."""
