"""Large values in append-only files, next to the database that refers to them."""
