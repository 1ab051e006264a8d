"""Proofs that run: checks, traces, gates. Nothing of it is needed to serve."""
