"""Compiles every numba kernel into the cache, so that the first run of each command is as quick as the others.

``make install`` runs it. Where it is not run, the first process that needs a kernel compiles it.
"""

from importlib import import_module
from pkgutil import walk_packages

from rmq_formats import kernels

OTHERS = ("rmq_cli.dump.json_kernel",)


def main() -> None:
    """Import all modules with kernels: a kernel with a signature is compiled where it is defined."""
    modules = [module.name for module in walk_packages(kernels.__path__, f"{kernels.__name__}.")]
    for name in (*modules, *OTHERS):
        import_module(name)


if __name__ == "__main__":
    main()
