"""One Raft group as a pure state machine: messages and ticks in, Ready out."""
