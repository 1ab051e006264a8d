"""Rebar's tests."""
