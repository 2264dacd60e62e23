"""The sockets to one kernel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import zmq
from sandboxd.channels import Channels, Connection


class OneSocketOnly(zmq.Context[Any]):
    """As where there are no descriptors left."""

    made: Any = None

    def socket(self, *arguments: Any, **options: Any) -> Any:
        if self.made is not None:
            raise zmq.ZMQError(24)
        OneSocketOnly.made = super().socket(*arguments, **options)
        return self.made


async def test_channels_that_cannot_be_made_leave_nothing(tmp_path: Path) -> None:
    context = OneSocketOnly()
    connection = Connection(tmp_path, "key")
    with pytest.raises(zmq.ZMQError):
        Channels(context, connection, lambda _: None, lambda _: None, ours=True)
    assert context.made.closed
    context.term()
