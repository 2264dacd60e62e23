"""The service end of the link to a sandbox: accept once, then bounded frames with a peer that is believed in nothing."""
