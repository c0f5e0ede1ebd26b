"""The log of all groups as segment files: one writer, frames, recovery, promises."""
