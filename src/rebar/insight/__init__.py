"""What the engine costs and why: the doctor, measurements."""
