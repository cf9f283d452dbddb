"""`headway experiment`: one fault schedule over a grid of ways to save and to restart, beside a published benchmark's figures.

Modules: `plan` (the grid, the schedule, the options of each cell), `cell` (runs one: trainer, launcher, pod supervisor and sidecar as
processes), `kept` (results on disk, so that a grid goes on where it was interrupted), `measure` (a cell's row: the sidecar's own account
beside the published formulas on the same run), `published` (the figures to compare with, and what differs), `shapes` (which of their shapes
this grid has), `table` and `page` with `picture` (what people read). As the demo, it knows the sidecar by what that writes, and never
computes our own definitions itself.
"""
