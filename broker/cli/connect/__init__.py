"""How a command reaches a server: options, saved contexts, a small blocking client, the API."""
