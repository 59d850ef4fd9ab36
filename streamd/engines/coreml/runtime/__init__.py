"""Runs a built encoder on a Mac's Neural Engine: in a worker, beside an engine that decodes."""
