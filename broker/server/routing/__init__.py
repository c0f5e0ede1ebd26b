"""From a publish to its subscribers: the router, imports between accounts, fairness."""
