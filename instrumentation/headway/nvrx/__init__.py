"""Hooks for the three layers of NVIDIA's resiliency extension, through its own plug-in points and never by patching.

`headway.nvrx.inprocess` (in-process restarts), `headway.nvrx.checkpointing` (asynchronous saves), `headway.nvrx.heartbeat` (the
launcher's hang detection) and `headway.nvrx.gloo` (waking CPU collectives). NVRx is imported only when one of them is.
They run on NVRx 0.4.1, 0.6.0 and 0.7.0.
"""
