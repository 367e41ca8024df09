"""The closed kinds of frames on a link, and how a message is laid out in bytes.

A message is `u32 little-endian header length | msgpack header | raw tensors`, each tensor starting at a multiple of 16
bytes, in the order of the rows and of each row's `tensors`. The header is one of the Structs below, told apart by its
`kind`. Nothing here knows torch: tensors stay memoryviews (see tensors.py for their checks).

Invariants: a frame is refused as a whole (BadFrame, TooLarge) before any tensor is touched; a row that is refused never
takes its neighbours with it (results and errors are per row).
"""

from __future__ import annotations

from typing import Literal

import msgspec

WIRE_VERSION = 1
SAMPLER_VERSION = "philox4x32-10/1"
HELLO_LIMIT = 4096
HEADER_LIMIT = 4 * 1024 * 1024
MAX_ROWS = 1024
ALIGN = 16


class _Frame(msgspec.Struct, tag_field="kind", omit_defaults=True, forbid_unknown_fields=False):
    """Base of all frames."""


class TensorSpec(msgspec.Struct, omit_defaults=True):
    """One named tensor of a row: dtype is a name of tensors.DTYPES, shape for hidden states is [1, n, hidden]."""

    name: str
    dtype: str
    shape: list[int]


class Sampling(msgspec.Struct, omit_defaults=True, frozen=True):
    """How the last hop chooses a token; what is absent has no effect. Temperature below 1e-5 is greedy.

    `gen_start` is the position of the first generated token: presence and frequency penalties count tokens from there
    on, repetition_penalty counts all. `banned` tokens get minus infinity, apart from `logit_bias`. `logprobs` is the
    number of alternatives wanted beside the chosen token's own log-probability, -1 = none at all.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    banned: tuple[int, ...] = ()
    seed: int = 0
    choice: int = 0
    gen_start: int = 0
    logprobs: int = -1


class Row(msgspec.Struct, omit_defaults=True):
    """`n` positions of one session, from `past_len` on.

    tokens: int32 little-endian ids of these positions (also on later hops). hash: content hash of tokens[0..past_len).
    want: `last` = the last hop samples after the newest position; `all` = it scores `targets` (int32, -1 = none) at
    each position, and samples after the newest one too where `sampling` is given. mode `none`: run and store nothing
    (past_len is 0). tensors: what the previous hop put out.
    start_layer: for mode `none` the layer to begin at, where it is not the shard's first (a session's open states it).
    """

    session: str
    attempt: int
    step: int
    past_len: int
    n: int
    hash: bytes
    tokens: bytes
    want: Literal["none", "last", "all"] = "none"
    mode: Literal["cached", "none"] = "cached"
    sampling: Sampling | None = None
    targets: bytes = b""
    tensors: list[TensorSpec] = []
    start_layer: int | None = None


class Score(msgspec.Struct, omit_defaults=True):
    """A token with its raw log-probability (log-softmax before processors) and the alternatives asked for."""

    id: int
    logprob: float | None = None
    top: list[tuple[int, float]] = []


class RowError(msgspec.Struct, omit_defaults=True):
    """Why a row (or an open) was refused: a code of errors.WIRE_ERRORS."""

    code: str
    message: str
    have: int | None = None


class RowResult(msgspec.Struct, omit_defaults=True):
    """The answer to one row: output tensors [1, n, hidden], or the sampled token / the scores from the last hop."""

    session: str
    attempt: int
    step: int
    past_len: int = 0
    n: int = 0
    tensors: list[TensorSpec] = []
    token: Score | None = None
    scores: list[Score] = []
    error: RowError | None = None


class Hello(_Frame, tag="hello"):
    """First frame, from the head. `nonce` is 32 random bytes."""

    instance: str
    nonce: bytes
    wire: int = WIRE_VERSION


class Challenge(_Frame, tag="challenge"):
    """The shard's answer: its own nonce, and proof that it holds the token (see handshake.py)."""

    instance: str
    nonce: bytes
    proof: bytes
    wire: int = WIRE_VERSION


class Proof(_Frame, tag="proof"):
    """The head's proof; the shard answers `welcome`."""

    proof: bytes


class Info(msgspec.Struct, omit_defaults=True):
    """What a shard is: the body of GET /v1/info, and of `welcome`.

    schema: tensors that a later hop takes in and an earlier one puts out, shapes with -1 for the positions. strict:
    each row is computed alone, and whoever replays has to use the shapes of the first time.
    """

    instance: str
    pod_uid: str
    model: str
    model_hash: str
    fingerprint: str
    start_layer: int
    end_layer: int
    num_layers: int
    hidden_size: int
    vocab_size: int
    dtype: str
    stateful: bool
    boundaries: list[int]
    schema: list[TensorSpec]
    max_context: int
    max_sessions: int
    max_bytes: int
    max_message_bytes: int
    credits: int
    chunk: int
    device: str
    threads: int
    load_seconds: float
    strict: bool = False
    wire: int = WIRE_VERSION
    sampler: str = SAMPLER_VERSION
    loading: bool = False


class Welcome(_Frame, tag="welcome"):
    """The hello succeeded."""

    info: Info


class Open(_Frame, tag="open"):
    """Reserve state for max_positions of a session, layers start_layer..end of this shard.

    recovery: bound by bytes and not by count. source/at/take: adopt (move) or fork (copy) the state that `source`
    holds, cut to `at`. hops: length of the path, a hint for how many groups should be in flight.
    """

    session: str
    attempt: int
    start_layer: int
    max_positions: int
    recovery: bool = False
    hops: int = 1
    source: str | None = None
    at: int = 0
    take: Literal["adopt", "fork"] = "adopt"


class Opened(_Frame, tag="opened"):
    """`have`: positions that the shard holds of the session, already usable."""

    session: str
    attempt: int
    have: int


class Forward(_Frame, tag="forward"):
    """Rows to run; decode rows of many sessions may share a frame."""

    rows: list[Row]


class Result(_Frame, tag="result"):
    """Answers to rows, in any order; each returns its row's credit."""

    rows: list[RowResult]


class Error(_Frame, tag="error"):
    """A refused open, or a frame that could not be read (session is then empty)."""

    code: str
    message: str
    session: str = ""
    attempt: int = 0
    have: int | None = None


class Close(_Frame, tag="close"):
    """End a session: keep = park it for reuse, cut to `at` positions if given; else free it. Answered by `closed`.

    It speaks of the attempts up to `attempt`: a close that arrives late, after the session was opened again with a
    higher one, changes nothing (and is acknowledged), and its tombstone does not stop such an open.
    """

    session: str
    attempt: int
    keep: bool = False
    at: int | None = None


class Closed(_Frame, tag="closed"):
    """The session is no longer active here (also for an id that was never known)."""

    session: str


class Ping(_Frame, tag="ping"):
    """Heartbeat from the head; renews the leases of all its sessions."""

    seq: int


class Pong(_Frame, tag="pong"):
    """Answer to a ping: what the shard is doing. Times in seconds, `busy` = how long the running batch has been
    running, `expected` = how long such a batch usually takes."""

    seq: int
    steps: int = 0
    busy: float = 0.0
    expected: float = 0.0
    queue: int = 0
    bytes_free: int = 0
    sessions: int = 0
    active: int = 0
    draining: bool = False


Frame = (
    Hello | Challenge | Proof | Welcome | Open | Opened | Forward | Result | Error | Close | Closed | Ping | Pong
)  # fmt: skip
