"""Grafana dashboards as code (grafanalib).

This version ships no dashboard yet; the package holds the name and its place in the distribution.
"""
