"""Settings of the location runtime, and the rules that keep them safe together (LO-004..007).

Invariant: a renewal that starts on its grid and takes as long as it may still ends before the host's own deadline.
That is what ``max(interval, timeout) + timeout < ttl - margin`` says; without it a single slow answer blocks the host.
It holds for hosts that only read descriptors, too, because the same numbers bound how long a
lease read is trusted.

Peer liveness (probe interval, probe timeout) is not here on purpose: a lease says who owns, a probe says who answers,
and neither setting may move the other (LO-007).
"""

from __future__ import annotations

import math

from attrs import fields, frozen

from zlinkpy.errors import ConfigurationError

# A cached route must be gone well before the previous owner stops forwarding for it, or a stale sender meets nobody
# (LO-006).
FOLLOW_SLACK_SECONDS = 5.0

_POSITIVE = (
    "owner_lease_renew_interval",
    "owner_lease_ttl",
    "owner_lease_renew_timeout",
    "owner_lease_fencing_margin",
    "polling_interval",
    "store_failure_grace",
    "session_relocation_seal_timeout",
)
_NOT_NEGATIVE = ("route_cache_max_age", "message_follow_duration")


@frozen(kw_only=True)
class LocationOptions:
    """All times in seconds.

    Args:
        owner_lease_renew_interval: from the start of one renewal to the start of the next.
        owner_lease_ttl: how long the store keeps a lease row that nobody renews; at least 1 ms.
        owner_lease_renew_timeout: the most one claim or renewal may take, read-backs included.
        owner_lease_fencing_margin: how much earlier than the store this host stops trusting its lease.
        polling_interval: from the start of one descriptor list to the start of the next.
        store_failure_grace: how long the last list is used for first dials while the store fails.
        route_cache_max_age: upper bound of a cached route's life; 0 turns the cache off.
        message_follow_duration: how long a previous owner forwards; 0 turns it off.
        session_relocation_seal_timeout: how long a session seal is waited for (SS-11).
    """

    owner_lease_renew_interval: float = 5.0
    owner_lease_ttl: float = 15.0
    owner_lease_renew_timeout: float = 3.0
    owner_lease_fencing_margin: float = 5.0
    polling_interval: float = 1.0
    store_failure_grace: float = 30.0
    route_cache_max_age: float = 15.0
    message_follow_duration: float = 30.0
    session_relocation_seal_timeout: float = 3.0

    @property
    def ttl_ms(self) -> int:
        """The lease's retention as the store counts it, whole milliseconds."""
        return round(self.owner_lease_ttl * 1000)

    @property
    def lease_reuse_age(self) -> float:
        """How old the read of somebody else's lease may be before discovery reads it again (LO-174)."""
        return self.owner_lease_renew_interval / 2

    def validate(self) -> LocationOptions:
        """Return self, or raise ConfigurationError naming the setting and the rule it breaks (LO-004, LO-005,
        LO-006).
        """
        for attribute in fields(LocationOptions):
            value = getattr(self, attribute.name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise ConfigurationError(f"{attribute.name} must be a finite number of seconds, not {value!r}")
        for name in _POSITIVE:
            if (value := getattr(self, name)) <= 0:
                raise ConfigurationError(f"{name} must be above 0 seconds, not {value!r}")
        for name in _NOT_NEGATIVE:
            if (value := getattr(self, name)) < 0:
                raise ConfigurationError(f"{name} must be 0 (off) or more seconds, not {value!r}")
        if self.ttl_ms < 1:
            raise ConfigurationError(f"owner_lease_ttl must be at least 0.001 seconds, not {self.owner_lease_ttl!r}")
        worst = max(self.owner_lease_renew_interval, self.owner_lease_renew_timeout) + self.owner_lease_renew_timeout
        usable = self.owner_lease_ttl - self.owner_lease_fencing_margin
        if not worst < usable:
            raise ConfigurationError(
                "one slow renewal would outlast the lease: "
                "max(owner_lease_renew_interval, owner_lease_renew_timeout) "
                f"+ owner_lease_renew_timeout = {worst:g} s must be below owner_lease_ttl - owner_lease_fencing_margin "
                f"= {usable:g} s"
            )
        age, follow = self.route_cache_max_age, self.message_follow_duration
        if age > 0 and follow > 0 and age > follow - FOLLOW_SLACK_SECONDS:
            raise ConfigurationError(
                f"route_cache_max_age = {age:g} s must be at most message_follow_duration - {FOLLOW_SLACK_SECONDS:g} s "
                f"= {follow - FOLLOW_SLACK_SECONDS:g} s, or either must be 0"
            )
        return self
