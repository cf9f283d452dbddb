"""What the dashboards ask Prometheus, apart from the panels that show it.

A pod that is scraped twice, or replaced, counts once: raw metrics are taken `max by (run, pod_index, …)` before anything is added up.
"""
