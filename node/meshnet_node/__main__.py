"""`meshnet`: the command line. Builds the one settings object of each process, and nothing else."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from meshnet_node import __version__
from meshnet_node.errors import MeshnetError
from meshnet_node.logs import configure
from meshnet_node.settings import HeadSettings, NodeSettings, ShardSettings, load

ENVIRONMENT = "Each option can be given in the environment instead: --start-layer is MESHNET_START_LAYER."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; a mistake of the user ends with exit code 2 and one sentence on standard error."""
    options = _parser().parse_args(arguments)
    try:
        result: int = options.run(options)
        return result
    except MeshnetError as error:
        print(f"meshnet: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="meshnet",
        description="Serve one causal language model from several small processes or GPUs, and survive their loss.",
    )
    parser.add_argument("--version", action="version", version=f"meshnet {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_up(commands.add_parser("up", help="start a whole mesh on this machine and keep it alive"))
    head = commands.add_parser(
        "head", help="run a head: the OpenAI-style API and the drive of the shards", epilog=ENVIRONMENT
    )
    _add_settings(head, HeadSettings, ["model", "revision", "served_name", "host", "port", "routes", "token_file"])
    head.set_defaults(run=_head)
    shard = commands.add_parser("shard", help="run a shard: one layer range of the model", epilog=ENVIRONMENT)
    _add_settings(
        shard,
        ShardSettings,
        ["model", "revision", "start_layer", "end_layer", "dtype", "device", "threads", "host", "port", "token_file"],
    )
    shard.set_defaults(run=_shard)
    bench = commands.add_parser("bench", help="measure against transformers' generate on this machine")
    bench.add_argument("what", choices=["decode", "concurrency", "prefill", "recovery", "memory"])
    bench.add_argument("--model", default="demo", help="demo, a folder, a GGUF file or a hub id (default: %(default)s)")
    bench.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    bench.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    bench.set_defaults(run=_bench)
    return parser


def _add_settings(parser: argparse.ArgumentParser, kind: type[NodeSettings], names: Sequence[str]) -> None:
    """One option per field; values stay text here, the settings object checks them."""
    for name in names:
        field = kind.model_fields[name]
        default = "" if field.is_required() or field.default is None else f" (default: {field.default})"
        parser.add_argument(
            f"--{name.replace('_', '-')}", help=f"{field.description or name.replace('_', ' ')}{default}"
        )


def _add_up(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model", default="demo", help="demo, a folder, a GGUF file or a hub id (default: %(default)s)"
    )
    cut = parser.add_mutually_exclusive_group()
    cut.add_argument("--shards", type=int, default=2, help="cut the model evenly into so many (default: %(default)s)")
    cut.add_argument("--layers", help="cut it so: 0-14,15-29 (both ends inclusive)")
    parser.add_argument("--replicas", type=int, default=1, help="processes per range (default: %(default)s)")
    parser.add_argument("--port", type=int, default=8000, help="the head's port on 127.0.0.1 (default: %(default)s)")
    parser.add_argument("--dtype", default="auto", choices=["auto", "float32", "bfloat16", "float16"])
    parser.add_argument("--state", type=Path, help="where to write the state file (JSON: role, range, pid, url ...)")
    parser.set_defaults(run=_up)


def _given(options: argparse.Namespace) -> dict[str, object]:
    return {name: value for name, value in vars(options).items() if name != "run"}


def _head(options: argparse.Namespace) -> int:
    from meshnet_node.head.serve import serve

    settings = load(HeadSettings, _given(options))
    configure(settings.log_level)
    asyncio.run(serve(settings))
    return 0


def _shard(options: argparse.Namespace) -> int:
    from meshnet_node.shard.app import serve

    settings = load(ShardSettings, _given(options))
    configure(settings.log_level)
    asyncio.run(serve(settings))
    return 0


def _up(options: argparse.Namespace) -> int:
    from meshnet_node.local.up import Wanted, up

    wanted = Wanted(
        options.model, options.shards, options.layers, options.replicas, options.port, options.dtype, options.state
    )
    return asyncio.run(up(wanted))


def _bench(options: argparse.Namespace) -> int:
    from meshnet_node.local.bench import bench

    bench(options.what, model=options.model, dtype=options.dtype, as_json=options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
