"""As `alert_cases`, for checkpoints."""

from __future__ import annotations

from alert_cases import EVAL, Case, with_
from promtool import Expected, healthy, one, state, without

NO_COMMIT = {
    one("headway_checkpoint_durable_step"): "0+15x20 300x380",
    one("headway_checkpoint_durable_timestamp_seconds"): "0+15x20 300x380",
}
"""No commit after 5 minutes."""

CHECKPOINT_CASES = (
    Case(
        "HeadwayCheckpointStale",
        with_(
            {
                one("headway_checkpoint_durable_step"): "0+15x40 600x39 1200+15x320",
                one("headway_checkpoint_durable_timestamp_seconds"): "0+15x40 600x39 1200+15x320",
            }
        ),
        silent="14m",
        fires="14m15s",
        resolved="26m",
        expected=Expected(
            "warning",
            "The newest durable checkpoint of run demo is 4m 15s old",
            "Run demo should save every 1m 0s and would now lose 255 steps. Saves are missing, slow, or written "
            "and never committed. Look at "
            "the queue, the writer and the storage.",
        ),
        near={
            "an evaluation with little at risk": with_(
                {
                    **EVAL,
                    one("headway_step"): "0+15x43 645x350",
                    one("headway_checkpoint_durable_step"): "0+15x40 600x360",
                    one("headway_checkpoint_durable_timestamp_seconds"): "0+15x40 600x360",
                }
            ),
            "the run finished": with_(
                {
                    **state("finished", values="0x39 1x360", others="1x39 0x360"),
                    one("headway_checkpoint_durable_step"): "0+15x40 600x360",
                    one("headway_checkpoint_durable_timestamp_seconds"): "0+15x40 600x360",
                }
            ),
            "a slow start-up before the first save": without(
                with_(
                    {
                        one("headway_step"): "_x47 0+15x350",
                        one("headway_last_step_timestamp_seconds"): "_x47 720+15x350",
                    }
                ),
                "headway_checkpoint_durable_step",
                "headway_checkpoint_durable_timestamp_seconds",
            ),
        },
    ),
    Case(
        "HeadwayCheckpointFailing",
        with_(
            {
                **NO_COMMIT,
                one("headway_checkpoint_saves_since_commit"): "0x20 1x20 2x40 0x320",
                one("headway_checkpoint_saves_total", outcome="failed"): "0x20 1x20 2x360",
            }
        ),
        silent="10m15s",
        fires="10m30s",
        resolved="26m",
        expected=Expected(
            "critical",
            "2 saves in a row of run demo failed or were aborted",
            "No checkpoint of run demo has become durable since; 330 steps are at risk and every further step "
            "adds to them. Look for full or "
            "failing storage and for a dead writer; free space before the next interval if you can.",
        ),
        near={
            "one restart took two queued saves with it": with_(
                {
                    one("headway_checkpoint_saves_since_commit"): "0x20 2x380",
                    one("headway_checkpoint_saves_total", outcome="aborted"): "0x20 2x380",
                    one("headway_restarts_total", layer="launcher"): "0x20 1x380",
                }
            ),
            "a single save failed": with_(
                {
                    one("headway_checkpoint_saves_since_commit"): "0x20 1x380",
                    one("headway_checkpoint_saves_total", outcome="failed"): "0x20 1x380",
                }
            ),
        },
    ),
    Case(
        "HeadwayAsyncBacklog",
        with_(
            {
                one("headway_async_queue_depth"): "0x20 1x40 0x340",
                one("headway_async_queue_oldest_timestamp_seconds"): "_x20 315x40 stale",
            }
        ),
        silent="8m15s",
        fires="8m30s",
        resolved="21m",
        expected=Expected(
            "warning",
            "Saves of run demo that wait to be written: 1",
            "Run demo asks for a checkpoint every 1m 0s and the writer cannot keep up. The queue holds memory, and what is in it is lost "
            "with the process. Save less often, or find out why writing is slow.",
        ),
        near={
            "each save is written within its interval": with_(
                {
                    one("headway_async_queue_depth"): "0x20 1x380",
                    one("headway_async_queue_oldest_timestamp_seconds"): "_x20 "
                    + " ".join(f"{at}x3" for at in range(315, 5_000, 60)),
                }
            ),
            "a queue that fills and empties": with_({one("headway_async_queue_depth"): "0x20 " + "2x3 0x3 " * 40}),
        },
    ),
    Case(
        "HeadwayAsyncWriterDown",
        with_(
            {
                **NO_COMMIT,
                one("headway_async_queue_depth"): "0x20 2x40 0x340",
                one("headway_async_writer_up"): "1x20 0x40 1x340",
            }
        ),
        silent="6m",
        fires="6m15s",
        resolved="21m",
        expected=Expected(
            "critical",
            "The checkpoint writer of run demo is gone; saves queued: 2",
            "It is gone at least in pod 0. Nothing of run demo is written any more, and training goes on as if it were: 75 steps are at "
            "risk. The queue does not recover by itself. See why the writer died (memory, storage), then restart the rank so that a new "
            "one starts.",
        ),
        near={
            "nothing is queued": with_({one("headway_async_writer_up"): "1x20 0x380"}),
            "queued on another pod, whose writer lives": with_(
                healthy("1"),
                {one("headway_async_writer_up"): "1x20 0x380", one("headway_async_queue_depth", "1"): "0x20 2x380"},
            ),
        },
    ),
    Case(
        "HeadwayCheckpointOverlapIncomplete",
        with_({one("headway_checkpoint_last_write_seconds"): "10x20 51x40 10x340"}),
        silent="10m",
        fires="10m15s",
        resolved="21m",
        expected=Expected(
            "warning",
            "Writing a checkpoint of run demo takes 85% of the interval",
            "The last write of run demo took 51s of 1m 0s. From 100 % on, saves wait for each other and then hold up training. Save less "
            "often, write fewer bytes, or give it faster storage.",
        ),
        near={"just below": with_({one("headway_checkpoint_last_write_seconds"): "10x20 48x380"})},
    ),
)
