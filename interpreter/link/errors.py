"""What can go wrong on a link. Never shown to callers as it is."""

from __future__ import annotations


class LinkError(Exception):
    """The link did not come up, or is not there any more."""


class LinkTimeout(LinkError):
    """The other end did not do its part in time."""


class LinkClosed(LinkError):
    """The connection has ended, by whichever end."""


class LinkNotSent(LinkClosed):
    """The connection had ended before any byte of this message left us: the other end has provably read nothing of it."""
