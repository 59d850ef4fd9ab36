"""Core ML packages without a Mac: an interpreter, rules, and a check of all functions.

`interpreter` evaluates a saved package, exactly or rounded to half precision; `verify` compares
every function of a built encoder with the reference; `lint` knows the Neural Engine's rules.
"""
