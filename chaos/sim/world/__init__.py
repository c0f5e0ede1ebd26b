"""A simulated computer room: event loops on virtual time, links, disks. Whole nodes run in it."""
