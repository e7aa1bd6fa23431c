"""A Ray cluster in a process of its own.

It starts the first node and prints the cluster's address. It then does what it is told, a line each, and
answers with a line: ``add`` a node, which prints its number; ``remove`` a node. It ends with its input,
and all of Ray with it.
"""

from __future__ import annotations

import sys

from ray.cluster_utils import Cluster


def main(cpus: int) -> None:
    def say(words: object) -> None:
        print(f"cluster: {words}", flush=True)

    options = {"num_cpus": cpus, "object_store_memory": 80 << 20}
    cluster = Cluster(initialize_head=True, head_node_args={**options, "include_dashboard": False})
    nodes = [cluster.head_node]
    say(cluster.address)
    for line in sys.stdin:
        match line.split():
            case ["add"]:
                nodes.append(cluster.add_node(**options))
                say(len(nodes) - 1)
            case ["remove", number]:
                cluster.remove_node(nodes[int(number)], allow_graceful=False)
                say("removed")
    cluster.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]))
