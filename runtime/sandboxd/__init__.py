"""The program that is there in every sandbox: it runs kernels and stateless code beside hostile neighbours.

Only ``sandboxd.protocol`` is meant for the other side of the link; the service imports nothing else of this package.
"""
