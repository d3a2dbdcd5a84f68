"""Commands on the nodes of a `Ray <https://docs.ray.io>`_ cluster: one actor a node, which has sessions there.

    import kennel.ray

    with kennel.ray.Fleet(profile="no-network", per_node=8) as fleet:
        for result in fleet.map([["echo", str(number)] for number in range(100)], text=True, timeout=60):
            print(result.index, result.get().stdout)

The page ``docs/fleet.md`` has the details.
"""

from .fleet import Fleet
from .jobs import Result
from .session import Session

__all__ = ["Fleet", "Result", "Session"]
