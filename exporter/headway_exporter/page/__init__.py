"""The status page and its API: a pod, and as far as it is known its run, as they are at this moment.

    Sidecar ── taking ──▶ Taken ── snapshot ──▶ Status ──▶ /api/v1/…  (JSON)
    (under its lock)      (copies)   (pure)        └─────▶ /          (HTML, the same values)

What is shown is made only when somebody asks, and at most every two seconds however many ask.
"""
