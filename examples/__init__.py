"""Programs that show what JetRaft is used for. Each has a README and a test that runs it small."""
