"""The other nodes of the cluster: links, calls, interest, and which node leads which group."""
