"""The operator's process: settings, the lease, then the lanes and kopf until something ends it.

Exit codes: 0 after a signal, 1 for a setting that is wrong, 2 when the lease is lost or the watch is stalled (the pod
is started again and begins with a fresh view).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import Sequence

from prometheus_client import CollectorRegistry

from meshnet_operator import handlers, health, logs
from meshnet_operator.cluster import Cluster, Configuration, load_configuration
from meshnet_operator.controller import Controller
from meshnet_operator.errors import ConfigError, LeaseLost, OperatorError, Stalled
from meshnet_operator.lease import Lease, LeaseTimes
from meshnet_operator.metrics import Metrics
from meshnet_operator.settings import OperatorSettings, load

log = logging.getLogger("meshnet_operator")

ABOUT = """Makes and keeps what each MeshModel of the cluster describes: head, shards, Services, route table."""
SETTINGS = """It has no options: all settings are environment variables, MESHNET_OPERATOR_NODE_IMAGE is needed.
docs/operations-operator.md lists them. Outside a cluster, name a kubeconfig in MESHNET_OPERATOR_KUBECONFIG."""


class Ended(OperatorError):
    """A signal asked for the end."""


async def serve(settings: OperatorSettings, stop: asyncio.Event | None = None) -> None:
    """Returns after a signal, or when `stop` is set. Raises ConfigError, LeaseLost or Stalled."""
    configuration = await load_configuration(settings.kubeconfig)
    metrics = Metrics(CollectorRegistry())
    cluster = Cluster(configuration, settings.request_timeout, settings.connections, metrics.asked)
    state = health.Health(metrics.registry)
    server = health.serve(state, settings.host, settings.port)
    log.info("listening", extra={"port": server.server_address[1]})
    times = LeaseTimes(settings.lease_seconds, settings.lease_renew_deadline, settings.lease_retry_seconds)
    lease = Lease(cluster, settings.lease_namespace, settings.lease_name, settings.identity, times)
    controller = Controller(cluster, settings, metrics)
    stop = stop or asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(_beat(state))
            group.create_task(_until(stop))
            state.ready = True
            await lease.acquire()
            metrics.leader.set(1)
            state.faults = controller.faults
            group.create_task(lease.hold())
            group.create_task(controller.run())
            group.create_task(controller.guard())
            group.create_task(_kopf(configuration, settings, controller))
    except* Ended:
        log.info("ended by a signal")
    except* (LeaseLost, Stalled) as errors:
        raise errors.exceptions[0] from None
    finally:
        server.shutdown()
        server.server_close()
        if stop.is_set():
            await lease.release()
        await cluster.close()


async def _beat(state: health.Health) -> None:
    while True:
        state.beat()
        await asyncio.sleep(1.0)


async def _until(stop: asyncio.Event) -> None:
    await stop.wait()
    raise Ended


async def _kopf(configuration: Configuration, settings: OperatorSettings, controller: Controller) -> None:
    """kopf ends by itself only for an error of its own, which ends the process."""
    await handlers.run(configuration, settings, controller.deliver)
    raise Stalled("kopf ended")


def main(arguments: Sequence[str] | None = None) -> int:
    argparse.ArgumentParser(prog="meshnet-operator", description=ABOUT, epilog=SETTINGS).parse_args(arguments)
    try:
        settings = load()
        logs.setup(settings.log_level)
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(serve(settings))
        return 0
    except ConfigError as error:
        print(f"meshnet-operator: {error}", file=sys.stderr)
        return 1
    except (LeaseLost, Stalled) as error:
        log.error("ended", extra={"reason": str(error)})
        return 2


if __name__ == "__main__":
    sys.exit(main())
