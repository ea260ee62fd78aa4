"""Has numba compile every kernel, and keep its machine code: the first run of each command is as quick as the others.

``make install`` runs it. Where it is not run, the first process that needs a kernel compiles it.
"""

from importlib import import_module
from pkgutil import iter_modules

from rmq_formats import kernels

OTHERS = ("rmq_core.store.kernels", "rmq_core.cli.json_kernel")


def main() -> None:
    """Import them all: a kernel with a signature is compiled where it is defined."""
    modules = [f"{kernels.__name__}.{module.name}" for module in iter_modules(kernels.__path__)]
    for name in (*modules, *OTHERS):
        import_module(name)


if __name__ == "__main__":
    main()
