"""Pull requests and acks on their way to the stream's leader."""
