"""What kernels of languages other than Python are built on: Jupyter's protocol on pyzmq alone, and output that has an owner.

A kernel is a ``Language``: it runs cells in a child process and says what came of them; ``serve`` does the rest.

``language`` is what a kernel writes to; ``kernel`` serves requests with it; ``sockets`` and ``messages`` speak with clients;
``output`` tells them what cells wrote, in either of two forms; ``pump`` reads a pipe;
``reading`` asks for input when a program waits for it; ``processes`` finds what a cell has started.
"""

from .kernel import Kernel, serve
from .language import Ask, Cell, Ending, Error, Language
from .pump import Pump
from .reading import AskedInput

__all__ = ["Ask", "AskedInput", "Cell", "Ending", "Error", "Kernel", "Language", "Pump", "serve"]
