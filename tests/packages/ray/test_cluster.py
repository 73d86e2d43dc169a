"""What answers at an address of Ray, and a connection that never comes."""

import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from elasticdl.packages.ray import cluster


class Head(grpc.GenericRpcHandler):
    def service(self, details):
        if details.method == cluster._WHO_IT_IS:
            return grpc.unary_unary_rpc_method_handler(lambda request, context: b"identity")
        return None


@pytest.mark.parametrize("is_head", [True, False])
def test_only_the_head_of_a_cluster_is_connected_to(is_head):
    with ThreadPoolExecutor(1) as pool:
        server = grpc.server(pool, [Head()] if is_head else [])
        place = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        try:
            if is_head:
                cluster._ask_who_it_is(place)
            else:
                with pytest.raises(ConnectionError, match="not answer as the head of a Ray clu"):
                    cluster._ask_who_it_is(place)
        finally:
            server.stop(None).wait()


def test_a_connection_that_does_not_come_is_given_up():
    never = threading.Event()
    with pytest.raises(TimeoutError, match="Ray has not connected in 0 s"):
        cluster._within(0.01, never.wait)
    never.set()
    with pytest.raises(ValueError, match="no address"):
        cluster._within(30.0, lambda: int("no address"))
