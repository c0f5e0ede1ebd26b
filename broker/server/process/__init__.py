"""The process around the server: log, tasks, listening sockets, pid and ports files, reload."""
