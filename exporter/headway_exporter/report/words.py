"""What the closed sets of labels mean, for people, and the classes of causes that recovery rates are told for."""

from __future__ import annotations

from typing import Final

STATE_WORDS: Final = {
    "productive": "new steps",
    "replay": "steps done before",
    "checkpoint_save": "blocked by a save",
    "checkpoint_load": "reading a checkpoint",
    "data_wait": "waiting for data",
    "eval": "evaluation",
    "init": "start until the first step",
    "detect": "failed, not yet noticed",
    "restart": "noticed, not yet training",
    "down": "no process at all",
    "standby": "held in reserve",
    "other": "anything else",
}

CLASSES: Final = {
    "gpu": "GPU and its links",
    "hang": "Hang",
    "oom_kill": "Killed, out of host memory",
    "killed": "Killed, by whom is not known",
    "node_loss": "Node lost",
    "network": "Network card",
    "software": "Software",
    "storage": "Storage and checkpoints",
    "other": "Other and unknown",
}
"""Classes of causes, each with its own recovery rate. Only the container's own counter tells a kill for want of memory from any other."""

CAUSE_CLASS: Final = {
    "app_exception": "software",
    "numeric_nan": "software",
    "cuda_oom": "software",
    "host_oom": "oom_kill",
    "illegal_access": "software",
    "hang_soft": "hang",
    "hang_hard": "hang",
    "heartbeat_timeout": "hang",
    "collective_timeout": "hang",
    "process_killed": "killed",
    "process_exited": "software",
    "monitor_failure": "software",
    "gpu_memory": "gpu",
    "gpu_fell_off_bus": "gpu",
    "gpu_driver": "gpu",
    "nvlink": "gpu",
    "pcie": "gpu",
    "nic": "network",
    "storage_io": "storage",
    "checkpoint_write": "storage",
    "checkpoint_corrupt": "storage",
    "node_lost": "node_loss",
    "preempted": "other",
    "config_error": "software",
    "peer_failure": "other",
    "unknown": "other",
}
"""The class of each of `labels.CAUSES`."""

CAUSE_WORDS: Final = {
    "app_exception": "exception in the training code",
    "numeric_nan": "loss or gradient was not a number",
    "cuda_oom": "out of GPU memory",
    "host_oom": "out of host memory",
    "illegal_access": "illegal memory access on the GPU",
    "hang_soft": "hang, interrupted in the process",
    "hang_hard": "hang, killed",
    "heartbeat_timeout": "hang: no heartbeat",
    "collective_timeout": "a collective timed out",
    "process_killed": "process killed by a signal",
    "process_exited": "process ended by itself",
    "monitor_failure": "rank monitor failed",
    "gpu_memory": "GPU memory fault",
    "gpu_fell_off_bus": "GPU fell off the bus",
    "gpu_driver": "GPU driver fault",
    "nvlink": "NVLink fault",
    "pcie": "PCIe fault",
    "nic": "network card fault",
    "storage_io": "storage failed",
    "checkpoint_write": "a checkpoint could not be written",
    "checkpoint_corrupt": "a checkpoint did not load",
    "node_lost": "node lost",
    "preempted": "told to stop from outside",
    "config_error": "wrong configuration",
    "peer_failure": "another rank failed",
    "unknown": "unknown cause",
}

REASON_WORDS: Final = {
    "no_progress": "attempt after attempt came no further than before",
    "no_durable_progress": "attempt after attempt left no new durable checkpoint",
    "same_fingerprint": "the same failure on the same rank came again before any progress",
    "same_checkpoint": "the same checkpoint was loaded again and again",
    "same_step": "it failed at the same step again",
    "same_entity": "several incidents began on the same rank, node or GPU",
}

DECISION_WORDS: Final = {
    "verdict": "all pods together",
    "alone": "this pod alone",
    "timeout": "this pod alone, as no word came from the others in time",
}

LAYER_WORDS: Final = {"in_process": "in process", "launcher": "launcher", "orchestrator": "orchestrator"}


def layer_and_cause(layer: str, cause: str) -> str:
    """A kind of recovery in a few words; the layer may be none that is known."""
    return f"{LAYER_WORDS.get(layer, layer)}: {CAUSE_WORDS[cause]}"


FATE_WORDS: Final = {
    "finished": "finished",
    "running": "running",
    "failing": "running, in an incident",
    "silent": "nothing heard lately",
    "stopped": "stopped by its operator",
    "abandoned": "abandoned",
}
