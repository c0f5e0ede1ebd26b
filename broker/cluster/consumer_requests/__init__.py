"""Pull requests, acks and flow control replies: forwarded to the stream's leader."""
