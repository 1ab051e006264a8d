"""Fuzz targets for the parsers of files that come from outside (atheris; see run.py)."""
