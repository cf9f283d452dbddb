"""Prometheus rules as code: recording rules, alerts and their runbooks.

This version ships no rule yet; the package holds the name and its place in the distribution.
"""
