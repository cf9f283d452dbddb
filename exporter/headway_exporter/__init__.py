"""Headway's sidecar: from the journals of a pod to Prometheus metrics.

follow (files -> observations) -> pod (ledger, failures, checkpoints, steps: pure folds) -> collectors -> server
"""
