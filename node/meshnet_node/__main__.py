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

MODEL = "demo, a folder, a GGUF file or a Hugging Face id (default: %(default)s)"
METAVARS = {
    "model": "MODEL",
    "start_layer": "START",
    "end_layer": "END",
    "port": "PORT",
    "host": "ADDRESS",
    "threads": "N",
    "routes": "FILE",
    "token_file": "FILE",
}

EXAMPLES = """examples:
  meshnet up                            the demo model in two shards, on http://127.0.0.1:8000
  meshnet up --model DIR --shards 3     a model of your own (config.json, safetensors, tokenizer.json)
  meshnet up --replicas 2               two processes per range: the loss of one is hardly felt
  meshnet bench decode                  tokens a second beside transformers' generate

`meshnet COMMAND --help` tells the options of a command."""

UP = """Cuts the model into layer ranges, starts one process for each of them and a head with the OpenAI-style
API in front, prints how to talk to it, starts again what dies, and ends everything on Ctrl-C."""

HEAD = """The OpenAI-style API, the tokenizer and the drive of the shards. Holds no weights. Finds its shards in the
route table, which it reads again whenever that changes."""

SHARD = """Loads the layers START to END of the model, holds the session state of these layers, and serves them to
heads. The first range embeds the tokens, the last one chooses them."""

BENCH = """Starts a mesh of two shards on this machine, measures it beside transformers' own
generate in the same run, and prints both with their ratio. Progress goes to standard error."""

BENCHES = """what:
  decode       tokens a second of one stream: cached, stateless, generate; does a step get slower with length?
  concurrency  tokens a second of 1, 4, 8 and 16 streams together
  prefill      time to the first token of a 1,000-token prompt
  recovery     longest pause of a reader for each kind of fault, rows computed again, same tokens or not
  memory       peak memory of each shard beside the bytes of its range, state bytes per position"""

ENVIRONMENT = """Each option can be given in the environment instead, as MESHNET_ and its name: --port is MESHNET_PORT.
More settings exist only there (sessions, memory, timeouts): see docs/operations.md. --model {needed}needed."""


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
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"meshnet {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_up(commands.add_parser("up", help="start a whole mesh on this machine and keep it alive", description=UP))
    head = commands.add_parser(
        "head",
        help="run a head: the OpenAI-style API and the drive of the shards",
        description=HEAD,
        epilog=ENVIRONMENT.format(needed="and --routes are "),
    )
    _add_settings(head, HeadSettings, ["model", "revision", "served_name", "host", "port", "routes", "token_file"])
    head.set_defaults(run=_head)
    shard = commands.add_parser(
        "shard",
        help="run a shard: one layer range of the model",
        description=SHARD,
        epilog=ENVIRONMENT.format(needed="is "),
    )
    _add_settings(
        shard,
        ShardSettings,
        ["model", "revision", "start_layer", "end_layer", "dtype", "device", "threads", "host", "port", "token_file"],
    )
    shard.set_defaults(run=_shard)
    _add_bench(
        commands.add_parser(
            "bench",
            help="measure against transformers' generate on this machine",
            description=BENCH,
            epilog=BENCHES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
    )
    return parser


def _add_settings(parser: argparse.ArgumentParser, kind: type[NodeSettings], names: Sequence[str]) -> None:
    """One option per field; values stay text here, the settings object checks them."""
    for name in names:
        field = kind.model_fields[name]
        default = "" if field.is_required() or field.default is None else f" (default: {field.default})"
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            metavar=METAVARS.get(name, "NAME"),
            help=f"{field.description or name.replace('_', ' ')}{default}",
        )


def _add_up(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="demo", metavar="MODEL", help=MODEL)
    cut = parser.add_mutually_exclusive_group()
    cut.add_argument(
        "--shards", type=int, default=2, metavar="N", help="cut the model evenly into N ranges (default: %(default)s)"
    )
    cut.add_argument(
        "--layers", metavar="RANGES", help="cut it so: 0-14,15-29 (both ends included; ranges may overlap)"
    )
    parser.add_argument(
        "--replicas", type=int, default=1, metavar="N", help="processes for each range (default: %(default)s)"
    )
    parser.add_argument(
        "--port", type=int, default=8000, metavar="PORT", help="the API's port on 127.0.0.1 (default: %(default)s)"
    )
    parser.add_argument(
        "--dtype",
        default="auto",
        choices=["auto", "float32", "bfloat16", "float16"],
        help="what to compute in; auto: what the checkpoint is stored in (default: %(default)s)",
    )
    parser.add_argument(
        "--state",
        type=Path,
        metavar="FILE",
        help="where to write role, range, pid, url and log of each process, as JSON (default: a temporary folder)",
    )
    parser.set_defaults(run=_up)


def _add_bench(parser: argparse.ArgumentParser) -> None:
    benches = ["decode", "concurrency", "prefill", "recovery", "memory"]
    parser.add_argument("what", choices=benches, metavar="WHAT", help=", ".join(benches))
    parser.add_argument("--model", default="demo", metavar="MODEL", help=MODEL)
    parser.add_argument(
        "--dtype",
        default="float32",
        choices=["float32", "bfloat16"],
        help="what both compute in; only float32 promises generate's very tokens (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    parser.set_defaults(run=_bench)


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
    from meshnet_node.bench.command import bench

    bench(options.what, model=options.model, dtype=options.dtype, as_json=options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
