"""Checkpoints: do they get finished in time, what do they cost, do they load."""

from __future__ import annotations

from typing import Final

from headway_alerts.config import Config
from headway_dashboards.model import Query
from headway_dashboards.queries.parts import OF_PODS, OF_RUN, quantile

OVERLAP_LIMIT: Final = Config().overlap_ratio

DURABLE_STEP: Final = (Query(f"run:headway_checkpoint_durable_step:max{{{OF_RUN}}}", form="now"),)
AGE: Final = (Query(f"run:headway_checkpoint_age:seconds{{{OF_RUN}}}", form="now"),)
# Not what is recorded, a minute old at times: beside the age it would be the shorter of the two.
EXPOSURE: Final = (
    Query(f"time() - max by (run) (headway_checkpoint_content_timestamp_seconds{{{OF_RUN}}})", form="now"),
)
SINCE_COMMIT: Final = (Query(f"run:headway_checkpoint_saves_since_commit:max{{{OF_RUN}}}", form="now"),)
WRITER: Final = (Query(f"min by (run) (headway_async_writer_up{{{OF_RUN}}})", form="now"),)
COMMITTED: Final = (
    Query(
        f"""\
run:headway_checkpoint_saves_total:max{{{OF_RUN},outcome="committed"}}
/ on (run)
(max by (run) (headway_checkpoint_requests_total{{{OF_RUN}}}) > 0)""",
        form="now",
    ),
)

WRITE_AND_INTERVAL: Final = (
    Query(f"run:headway_checkpoint_interval:seconds{{{OF_RUN}}}", "interval"),
    Query(f"run:headway_checkpoint_last_write_seconds:max{{{OF_RUN}}}", "last write"),
)
OVERLAP: Final = (
    Query(
        f"run:headway_checkpoint_last_write_seconds:max{{{OF_RUN}}}\n/ on (run)\n"
        f"run:headway_checkpoint_interval:seconds{{{OF_RUN}}}",
        "write / interval",
    ),
)
BLOCKING: Final = (
    Query(quantile(0.5, "headway_checkpoint_blocking_seconds", OF_PODS, "1h"), "half of them"),
    Query(quantile(0.9, "headway_checkpoint_blocking_seconds", OF_PODS, "1h"), "nine in ten"),
)
QUEUE: Final = (
    Query(f"run:headway_async_queue_depth:max{{{OF_RUN}}}", "queued saves"),
    Query(f"time() - min by (run) (headway_async_queue_oldest_timestamp_seconds{{{OF_RUN}}})", "age of the oldest"),
)
WRITER_MEMORY: Final = (
    Query(f"max by (pod_index) (headway_async_writer_memory_bytes{{{OF_PODS}}})", "pod {{pod_index}}"),
)
SIZES: Final = (Query(f"max by (pod_index) (headway_checkpoint_bytes{{{OF_PODS}}})", "pod {{pod_index}}"),)
OUTCOMES: Final = (
    Query(f"run:headway_checkpoint_saves_total:max{{{OF_RUN}}}", "{{outcome}}"),
    Query(f"max by (run) (headway_checkpoint_requests_total{{{OF_RUN}}})", "requested"),
)
LOADS: Final = (
    Query(quantile(0.5, "headway_checkpoint_load_seconds", OF_PODS, "1h"), "half of them"),
    Query(quantile(0.9, "headway_checkpoint_load_seconds", OF_PODS, "1h"), "nine in ten"),
)
SAME_LOADS: Final = (Query(f"max by (run) (headway_same_checkpoint_loads{{{OF_RUN}}})", "loads in a row"),)
REPLAY_CHECKS: Final = (Query(f"max by (result) (headway_replay_checks_total{{{OF_RUN}}})", "{{result}}", "now"),)
