"""The way out: an allowlisting forward proxy, a process of its own with one socket per sandbox."""
