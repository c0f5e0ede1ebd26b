"""The meta group: which streams exist, with which configuration, on which nodes."""
