"""Layer 3: requests, time, clients: from an HTTP body or a Python call to packets and text."""
