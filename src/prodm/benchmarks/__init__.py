"""Slow twins and the races against them.

They live in the package, not beside it, so that ``prodm bench`` runs wherever prodm is installed.
"""
