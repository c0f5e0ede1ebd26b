"""What commands print and ask: units, tables, messages, questions. Knows no server."""
