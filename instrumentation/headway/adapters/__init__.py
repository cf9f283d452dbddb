"""Callbacks for training frameworks: `headway.adapters.lightning` and `headway.adapters.huggingface`.

A framework is imported only when its adapter is. What they share: `loop` (steps, waits and phases of a loop that others run) and
`saved` (what can be said of a checkpoint that others have written).
"""
