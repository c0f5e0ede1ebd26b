"""One client connection and the table of all of them: socket, TLS, CONNECT, operations, buffer."""
