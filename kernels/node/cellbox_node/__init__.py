"""The Node kernel's own half: a Node process that runs the cells, and what is told of them.

``kernel`` is the kernel, ``child`` the process with its pipes, ``marks`` what it writes, ``memory`` how much it may use. What
runs in the process is in ``program/`` beside this folder.
"""
