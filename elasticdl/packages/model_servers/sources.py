"""The towers of a job's model as a source of rows, for the workers."""

from __future__ import annotations

from collections.abc import Sequence

from elasticdl.backends.base import Trainer
from elasticdl.packages.model_servers.settings import ModelServersSection
from elasticdl.rpc.client import GrpcMasterClient
from elasticdl.runtime.process import ProcessArguments
from elasticdl.worker.row_source import RowSource


def sources_of(
    trainer: Trainer, arguments: ProcessArguments, master: GrpcMasterClient
) -> list[RowSource]:
    """Return the source of what towers compute, if the job has model servers.

    Raises:
        ModelError: The model has no tower that model servers can compute.
    """
    if not arguments.config.of(ModelServersSection).num_model_servers:
        return []
    # The module of the client is imported only where a job has model servers.
    from elasticdl.packages.model_servers.client import ModelServers
    from elasticdl.packages.model_servers.tower_rows import TowerRows, having_towers
    from elasticdl.rpc import elasticdl_pb2 as pb
    from elasticdl.rpc.elasticdl_pb2_grpc import ModelServersStub

    stub = master.connection.stub(ModelServersStub)

    def find() -> Sequence[str]:
        request = pb.GetModelServersRequest()
        return list(master.connection.call(stub.GetModelServers, request).addresses)

    model = having_towers(trainer)
    towers = model.towers()
    servers = ModelServers(towers, find, arguments.token, arguments.tls)
    model.place_towers()
    return [TowerRows(servers, towers)]
