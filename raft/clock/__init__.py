"""One time per cluster: clock offsets between nodes, and what a majority of clocks agrees on."""
