"""What a log entry of a stream can say."""
