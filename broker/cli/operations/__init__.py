"""`server`, `account`, `top`, `graph` and `migrate`: what an operator does."""
