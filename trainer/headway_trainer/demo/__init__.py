"""`headway demo`: the same run twice on this machine, once undisturbed and once broken four times, compared at the end.

Modules: `plan` (what is run and broken), `runner` (launcher and sidecar as processes), `view` (the terminal while it
runs), `report` (what was injected beside what was observed). The demo knows the sidecar only by its HTTP answers, as a
dashboard would.
"""
