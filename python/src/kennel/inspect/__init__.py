"""A sandbox provider for `Inspect <https://inspect.aisi.org.uk>`_: ``sandbox="kennel"``.

Inspect finds this module by its entry point and registers the provider under the name ``kennel``. An eval needs no import::

    Task(dataset=..., solver=..., sandbox="kennel")
    Task(dataset=..., solver=..., sandbox=("kennel", "policy.toml"))

Each sample gets a session of its own on a fresh, empty workspace. The page ``docs/inspect.md`` has the details.
"""

from .environment import KennelSandboxEnvironment

__all__ = ["KennelSandboxEnvironment"]
