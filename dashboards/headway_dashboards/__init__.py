"""Grafana dashboards as code (grafanalib).

Each dashboard is a module of its own; its queries are in `queries`, apart from the panels that show them. `catalogue.dashboards()` has all
of them, `render` writes them as Grafana takes them. Every name in a query is checked against the exporter's schema and the recording
rules: a query that uses one that does not exist is refused when it is rendered.
"""
