"""`jetraft stream`: streams, their messages and their archives."""
