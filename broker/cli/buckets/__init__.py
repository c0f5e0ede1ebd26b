"""Key-value buckets and object stores from the command line."""
