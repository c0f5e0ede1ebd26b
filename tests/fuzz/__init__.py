"""Fuzzing: every parser of untrusted bytes, fed with inputs that nobody wrote."""
