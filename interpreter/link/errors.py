"""What can go wrong on a link. Never shown to callers as it is."""

from __future__ import annotations


class LinkError(Exception):
    """The link did not come up, or is not there any more."""


class LinkTimeout(LinkError):
    """The other end did not do its part in time."""


class LinkClosed(LinkError):
    """The connection has ended, by whichever end."""
