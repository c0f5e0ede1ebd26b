"""Large values in append-only files of their own, beside the database that refers to them."""
