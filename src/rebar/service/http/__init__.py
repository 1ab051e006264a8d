"""The HTTP side: bytes to packets, deltas to bytes. JSON lives here and nowhere below."""
