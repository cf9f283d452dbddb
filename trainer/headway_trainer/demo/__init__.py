"""`headway demo`: the same run twice on this machine, once undisturbed and once broken four times, compared at the end.

Modules: `plan` (what is run and broken), `runner` (launcher and sidecar as processes), `view` (the terminal while it
runs), `report` (what was injected beside what was observed); and where Prometheus and Alertmanager are installed: `stack` (both as
processes, with our rules), `webhook` (who is told), `alerting` (what the alerts came to). The demo knows the sidecar only by its HTTP
answers, as a dashboard would, and the rules by the command that writes them.
"""
