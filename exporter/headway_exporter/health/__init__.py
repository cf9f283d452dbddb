"""What the sidecar measures itself, beside what the trainer tells: GPUs, host, network cards, storage, orchestrator."""
