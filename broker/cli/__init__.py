"""The `jetraft` command: `main` has the groups, each other module one of them."""
