"""Decoder models: their description, their weights as operands, their rotation tables."""
