"""The listeners: the client port, the WebSocket port, and the server's own clients."""
