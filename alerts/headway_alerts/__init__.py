"""Prometheus rules as code: recording rules, alerts and their runbooks.

`catalogue.groups(config)` is the whole set, `render` writes it as rule files or as a PrometheusRule manifest, `routing`
an example for Alertmanager. Names, labels and their closed sets come from the exporter's schema: a rule that uses one that does not
exist is refused when it is rendered.
"""
