"""Alertmanager's configuration as an example: who gets which alert, and what mutes what."""

from __future__ import annotations

from string import Template
from typing import TYPE_CHECKING, Final

from headway_alerts.config import duration

if TYPE_CHECKING:
    from headway_alerts.config import Config


def alertmanager(config: Config) -> str:
    """The configuration, with the receivers' address and the pace of messages put in."""
    return _EXAMPLE.substitute(
        receivers=config.webhook_base_url.rstrip("/"),
        wait=duration(config.notify_wait_seconds),
        interval=duration(config.notify_interval_seconds),
    )


_EXAMPLE: Final = Template(
    """\
# An example to start from: put in your own receivers (here webhooks), keep the routes and the inhibitions.
#
#   severity   what it asks for                    where it goes
#   critical   somebody now                        page
#   warning    somebody in the morning             ticket
#   info       nobody: a recovery worked           channel
#
# Check it with `amtool check-config`, and try a route with `amtool config routes test --config.file=alertmanager.yaml severity=info`.
route:
  receiver: ticket                       # what has no severity that is known here must not vanish
  group_by: [run]                        # one message a run, however much goes wrong in it
  group_wait: $wait
  group_interval: $interval
  repeat_interval: 12h
  routes:
    - receiver: page
      matchers: ['alertname=~"Headway.+"', 'severity="critical"']
      repeat_interval: 1h
    - receiver: ticket
      matchers: ['alertname=~"Headway.+"', 'severity="warning"']
      repeat_interval: 24h
    - receiver: channel
      matchers: ['alertname=~"Headway.+"', 'severity="info"']
      repeat_interval: 24h

inhibit_rules:
  # A run that keeps failing is stuck and stands still now and then: that is the same problem.
  - source_matchers: ['alertname="HeadwayRecurringFailure"']
    target_matchers: ['alertname=~"HeadwayRecoveryStuck|HeadwayTrainingStalled"']
    equal: [run]
  # An attempt without its first step is why training stands still. (Until it is over its budget the rule of HeadwayTrainingStalled
  # itself leaves it alone. An incident that only waits for its next checkpoint has no such attempt, and mutes nothing.)
  - source_matchers: ['alertname="HeadwayRecoveryStuck"']
    target_matchers: ['alertname="HeadwayTrainingStalled"']
    equal: [run]
  # The fast burn of an objective says all that the slow one has to say.
  - source_matchers: ['alertname="HeadwayGoodputBurn"', 'severity="critical"']
    target_matchers: ['alertname="HeadwayGoodputBurn"', 'severity="warning"']
    equal: [run, objective]

receivers:
  - name: page
    webhook_configs:
      - url: $receivers/page
        send_resolved: true
  - name: ticket
    webhook_configs:
      - url: $receivers/ticket
        send_resolved: true
  - name: channel
    webhook_configs:
      - url: $receivers/channel
        send_resolved: false             # the end of a note is no news
"""
)
