"""What JetStream tells about itself: stream info, advisories, /jsz, RAFTZ."""
