"""A real HDFS with two NameNodes: a name service whose active NameNode a test chooses, and one DataNode.

The NameNodes share their edits in a folder, as over NFS. There is no ZooKeeper: ``activate`` does what a failover controller
does, and a test ends the NameNode that was active before, as fencing would.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence

from typing_extensions import Self

from tests.support.stores.hdfs import DATA_NODE, NAME_NODE, HdfsServer

SERVICE = "pair"
SECOND_NAME_NODE = "namenode2"


class HdfsPair(HdfsServer):
    """As :class:`HdfsServer`; the first NameNode is active after the first start."""

    name_nodes = (NAME_NODE, SECOND_NAME_NODE)

    @property
    def url(self) -> str:
        return f"hdfs://{SERVICE}"

    @property
    def options(self) -> dict[str, str]:
        """``[storage.hdfs]`` of its clients."""
        addresses = {node: f"127.0.0.1:{ports[0]}" for node, ports in self._ports.items()}
        return {
            f"dfs.ha.namenodes.{SERVICE}": ",".join(self.name_nodes),
            **{f"dfs.namenode.rpc-address.{SERVICE}.{node}": address for node, address in addresses.items()},
        }

    def start(self, *nodes: str) -> Self:
        first = not self._ports
        super().start(*nodes)
        if first:
            self.activate(NAME_NODE)
        return self

    def activate(self, node: str) -> None:
        """Makes ``node`` the active one. The caller has ended or paused the other one if it was active."""
        self._run_tool("DFSHAAdmin", "-ns", SERVICE, "-transitionToActive", "--forceactive", node)

    def fail_over(self, away_from: str) -> str:
        """Kills ``away_from``, makes the other NameNode active and starts the killed one again as its standby. Returns the active
        one."""
        (active,) = (node for node in self.name_nodes if node != away_from)
        self.kill9(away_from)
        self.activate(active)
        self.start(away_from)
        return active

    # ---- inner parts -------------------------------------------------------------------------------------------------

    def _program(self, node: str) -> Sequence[str]:
        if node == DATA_NODE:
            return super()._program(node)
        (name,) = super()._program(NAME_NODE)
        return name, "-D", f"dfs.ha.namenode.id={node}"

    def _format(self) -> None:
        super()._format()
        shutil.copytree(self.directory / NAME_NODE, self.directory / SECOND_NAME_NODE)

    def _name_node_properties(self) -> Mapping[str, str]:
        properties = {
            **self.options,
            "dfs.nameservices": SERVICE,
            f"dfs.client.failover.proxy.provider.{SERVICE}": (
                "org.apache.hadoop.hdfs.server.namenode.ha.ConfiguredFailoverProxyProvider"
            ),
            "dfs.ha.fencing.methods": "shell(true)",
            "dfs.ha.tail-edits.period": "1s",
            "dfs.ha.log-roll.period": "1s",  # a standby that starts leaves safe mode when it has read finished edits
            "dfs.namenode.shared.edits.dir": f"file://{self.directory}/edits",
        }
        for node, (_, http) in self._ports.items():
            properties[f"dfs.namenode.http-address.{SERVICE}.{node}"] = f"127.0.0.1:{http}"
            properties[f"dfs.namenode.name.dir.{SERVICE}.{node}"] = f"file://{self.directory}/{node}"
        return properties
