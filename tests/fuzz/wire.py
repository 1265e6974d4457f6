"""A client of a driver that registers, looks up, claims, reports and opens a cursor as it should, and from there sends each
message with extreme, missing, repeated and reordered values. The same seed sends the same messages, if the answers agree.

It follows what was answered, so each message is right in all but what was changed in it.
"""

from __future__ import annotations

import copy
import json
import random
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import Any

import urllib3

from tests.support.processes.service_process import HANG_SECONDS, TOKEN, Service

Tree = Any
PartitionKey = tuple[str, int]

#: around the ends of every number there is, of 31 to 64 bits and of a JSON number, and beyond all
NUMBERS: tuple[Any, ...] = (
    -1, 0, 1 << 31, 1 << 40, 1 << 53, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, 1 << 64, 10**30,
    -(1 << 31) - 1, -(1 << 63), -(1 << 63) - 1, 1.5, 1e308, float("nan"), float("inf"),
)  # fmt: skip
TEXTS: tuple[Any, ...] = (
    "",
    "x" * 100_000,
    "\x00",
    "\ud800",
    "\U0010ffff" * 5_000,
    "../" * 300,
    "a/0[0, 5)",
    "None",
    "-1",
)
ODD: tuple[Any, ...] = (None, True, [], {}, [[]], {"x": 1})
#: what a partition's position stays below, or its offsets are used up
ROOM = 1 << 62
#: an answer's bytes, of a stream of a few dozen partitions
ANSWER_BYTES_MAX = 8_000_000


class Player:
    """``topics``: of the stream, of ``partitions`` each.

    One class, because each message is built from what the answers to earlier ones said.
    """

    def __init__(self, service: Service, topics: list[str], partitions: int, seed: object) -> None:
        self._service = service
        self._seed, self._draw = seed, random.Random(str(seed))
        self._http = urllib3.PoolManager(retries=False, timeout=HANG_SECONDS)
        self._all = [(topic, number) for topic in topics for number in range(partitions)]
        self._views: dict[PartitionKey, Tree] = {}  # of claimed partitions
        self._epoch = self._sequence = self._claims = self._instance = 0
        self._cursor_epoch = 0
        self._old: deque[tuple[str, bytes]] = deque(maxlen=50)  # to be sent again, out of order
        #: answers by route and status
        self.answered: Counter[tuple[str, int]] = Counter()

    # ---- what is right -----------------------------------------------------------------------------------------------

    def register(self) -> None:
        self._instance += 1
        answer = self.tell("/v1/receivers/register", self.registration())
        self._epoch, self._sequence, self._claims = answer["epoch"], 0, 0
        self._views.clear()

    def registration(self) -> Tree:
        return {
            "stream": "s", "receiver_id": "r1", "host": "h1", "instance_id": f"{self._seed}-{self._instance}", "release": "1"
        }  # fmt: skip

    def _signed(self, **fields: Any) -> Tree:
        return {"receiver_id": "r1", "epoch": self._epoch, **fields}

    def lookup(self) -> Tree:
        return self._signed(partitions=[{"topic": t, "partition": n} for t, n in self._draw.sample(self._all, 3)])

    def claim(self) -> Tree:
        (key,) = self._draw.sample(self._all, 1)
        return self._claim_of(key)

    def _claim_of(self, key: PartitionKey) -> Tree:
        looked = self.tell("/v1/partitions/look", self._signed(partitions=[{"topic": key[0], "partition": key[1]}]))
        self._claims += 1
        ask = {"topic": key[0], "partition": key[1], "known_token": looked["partitions"][0]["token"]}
        return self._signed(claims=[ask], number=self._claims)

    def _claimed(self) -> Tree:
        """A claimed partition that has room, as it is now."""
        for key in self._draw.sample(self._all, len(self._all)):
            if key not in self._views:
                answer = self.tell("/v1/partitions/claim", self._claim_of(key))
                if not answer["claims"][0]["granted"]:
                    continue
                view = self._views[key] = answer["claims"][0]["view"]
                assert view["position"] < 1 << 63 and -1 <= view["leader_epoch"] < 1 << 31, (
                    view
                )  # a receiver takes no other
            if self._views[key]["position"] < ROOM:
                return self._views[key]
        raise AssertionError("no partition has room for more offsets")

    def release(self) -> Tree:
        view = self._claimed()
        return self._signed(releases=[{"topic": view["topic"], "partition": view["partition"], "token": view["token"]}])

    def report(self) -> Tree:
        view = self._claimed()
        self._sequence += 1
        range_ = {
            "topic": view["topic"], "partition": view["partition"], "life": view["life"], "from": view["position"],
            "until": view["position"] + 10, "records": 0, "leader_epoch": view["leader_epoch"], "digest": "0" * 16,
            "token": view["token"], "bytes": 0, "max_timestamp_ms": -1, "preceding_gap": view.get("preceding_gap"),
        }  # fmt: skip
        meta = {
            "id": f"r1-{self._epoch:x}-{self._sequence}", "stream": "s", "receiver_id": "r1", "epoch": self._epoch,
            "sequence": self._sequence, "ranges": [range_], "records": 0, "created_ms": 1, "host": "h1", "headers": False,
            "key_id": None,
        }  # fmt: skip
        path = f"s/blocks/r1/{self._epoch:016x}/00000001.seg"
        handle = {"path": path, "offset": self._sequence * 1024, "length": 1000, "checksum": 7}
        return self._signed(blocks=[{"meta": meta, "handle": handle, "local": False, "other_hosts": []}])

    def fault(self) -> Tree:
        view = self._claimed()
        kind = self._draw.choice(["out-of-range", "truncated", "recreated", "corrupt"])
        low = view["position"] + 5
        return self._signed(
            topic=view["topic"], partition=view["partition"], token=view["token"], kind=kind, position=view["position"],
            low=low, high=low + 5, topic_id="", leader_epoch=3,
        )  # fmt: skip

    def beat(self) -> Tree:
        view = self._claimed()
        where = {"topic": view["topic"], "partition": view["partition"], "token": view["token"]}
        status = {"state": "active", "position": view["position"], "high_watermark": 5, "detail": "", "rate": 0.0}
        return self._signed(
            state="active", detail="", acknowledged=0, buffered_bytes=0, records=0, counters={"a": 1},
            partitions=[{**where, **status}], claims_done=self._claims, holding=[where],
            errors=[{"words": "w", "count": 1, "seconds_ago": 1.0}], rate=0.0, replica_host="", refusing_hosts=["h2"],
            release="1",
        )  # fmt: skip

    def agent(self) -> Tree:
        process = {
            "receiver_id": "s-r0", "driver_epoch": 1, "version": 1, "running": False, "pid": 0, "exit_code": 1,
            "last_words": "w",
        }  # fmt: skip
        return {
            "state": "active", "host": "h1", "url": "http://127.0.0.1:9", "instance_id": "a", "acknowledged": 0,
            "blocks": 1, "used_bytes": 1, "free_bytes": 10**9, "old_blocks": ["r1-1-1"], "labels": ["k=v"], "capacity": 1,
            "receivers": [process], "load": 1.0, "requests": 0, "short_bytes": 0, "copies": ["r1-1-2"], "release": "1",
            "attempted": 0, "undeleted": ["r1-1-3"], "undeleted_blocks": 1, "undeleted_cause": "c",
        }  # fmt: skip

    def _place(self) -> Tree:
        view = self._claimed()
        return {
            "topic": view["topic"],
            "partition": view["partition"],
            "life": view["life"],
            "offset": view["position"],
        }

    def _left(self) -> Tree:
        return [{"topic": topic, "partition": number} for topic, number in self._draw.sample(self._all, 2)]

    def open_cursor(self) -> Tree:
        return {"cursor": "c", "user": "u", "places": [self._place()], "left": self._left(), "key": "k"}

    def move_cursor(self) -> Tree:
        return {"cursor": "c", "epoch": self._cursor_epoch, "places": [self._place()], "left": self._left(), "key": "k"}

    def close_cursor(self) -> Tree:
        return {"cursor": "c", "epoch": self._cursor_epoch, "forget": False, "key": "k"}

    def _span(self) -> Tree:
        place = self._place()
        incarnation = {"topic": place["topic"], "partition": place["partition"], "life": place["life"]}
        return {**incarnation, "from": max(0, place["offset"] - 20), "until": place["offset"] + 1}

    def span(self) -> Tree:
        return {**{name: value for name, value in self._span().items() if name != "life"}, "topic_id": ""}

    def gap(self) -> Tree:
        place = self._place()
        where = {"topic": place["topic"], "partition": place["partition"]}
        return {**where, "from": place["offset"], "until": place["offset"] + 5, "cause": "c"}

    def fence(self) -> Tree:
        place = self._place()
        return {"topic": place["topic"], "partition": place["partition"], "receiver_id": "r1"}

    def reset(self) -> Tree:
        place = self._place()
        return {
            "topic": place["topic"], "partition": place["partition"], "to": "offset", "value": 0, "apply": False, "cause": "c"
        }  # fmt: skip

    def routes(self) -> dict[str, Callable[[], Tree]]:
        """Every route that takes a body, except the one that would stop the service."""
        return {
            "/v1/blocks/report": self.report,
            "/v1/partitions/claim": self.claim,
            "/v1/partitions/trouble": self.fault,
            "/v1/receivers/heartbeat": self.beat,
            "/v1/receivers/register": self.registration,
            "/v1/partitions/look": self.lookup,
            "/v1/partitions/release": self.release,
            "/v1/agents/heartbeat": self.agent,
            "/v1/cursors/open": self.open_cursor,
            "/v1/cursors/move": self.move_cursor,
            "/v1/cursors/close": self.close_cursor,
            "/v1/cursors/earliest": lambda: {"partitions": self._left()},
            "/v1/cursors/times": lambda: {"wanted": [{"span": self._span(), "time_ms": 0}]},
            "/v1/cursors/blocks": lambda: {"spans": [self._span()]},
            "/v1/cursors/span": self.span,
            "/v1/operator/drop-cursor": lambda: {"cursor": "c", "cause": "c"},
            "/v1/operator/accept-gap": self.gap,
            "/v1/operator/fence": self.fence,
            "/v1/operator/accept-loss": lambda: {"batch_id": 1 << 40 | 1, "ranges": ["t/0[0, 10)"], "cause": "c"},
            "/v1/operator/replay": lambda: {"batch": 0, "time_ms": 0, "cause": "c"},
            "/v1/operator/reset": self.reset,
            "/v1/operator/forget": lambda: {"name": "nobody"},
            "/v1/operator/retry": dict,
        }

    # ---- sending -----------------------------------------------------------------------------------------------------

    def tell(self, path: str, tree: Tree) -> Tree:
        """Send a valid message; return the answer."""
        status, answer = self.send(path, json.dumps(tree).encode())
        assert status == 200, f"{path} {tree}: {status} {answer!r}"
        return answer

    def send(self, path: str, body: bytes | None) -> tuple[int, Tree]:
        """Raise AssertionError for an outcome that no request may cause: no answer, or an internal error of the driver."""
        shown = f"{path} {(body or b'')[:2000]!r}"
        try:
            answer = self._http.request(
                "POST" if body is not None else "GET",
                self._service.url + path,
                body=body,
                headers={"authorization": f"Bearer {TOKEN}", "content-type": "application/json"},
            )
        except urllib3.exceptions.HTTPError as error:
            raise AssertionError(f"{shown}: {error}\n{self._service.log.read_text()[-4000:]}") from error
        self.answered[path, answer.status] += 1
        assert answer.status < 500 and answer.status not in (401, 403), (
            f"{shown}: {answer.status} {answer.data[:2000]!r}\n{self._service.log.read_text()[-4000:]}"
        )
        assert len(answer.data) < ANSWER_BYTES_MAX, f"{shown}: an answer of {len(answer.data)} bytes"
        return answer.status, json.loads(answer.data)

    def check(self) -> None:
        """The driver still runs, and answers its status with a bounded size."""
        for path in ("/v1/status", "/v1/lag", "/v1/cursors/intake"):
            status, answer = self.send(path, None)
            assert status == 200
            if path == "/v1/status":
                assert answer["state"] == "running", answer["detail"]

    # ---- what is wrong -----------------------------------------------------------------------------------------------

    def walk(self, numbers_alone: bool = False) -> Iterator[str]:
        """Each route: its message with each value changed to each extreme, left out, and repeated, one at a time.
        ``numbers_alone``: only those that are numbers, to each extreme number."""
        for path, made in self.routes().items():
            for at, spot in enumerate(list(leaves(self._right(path, made)))):
                if numbers_alone and type(spot[-1]) not in (int, float):
                    continue
                for extreme in NUMBERS if numbers_alone else extremes(spot[-1]):
                    tree = self._right(path, made)
                    change(tree, list(leaves(tree))[at][:-1], extreme)
                    self.send_wrong(path, tree)
                    yield path
                for how in () if numbers_alone else (leave_out, twice):
                    tree = self._right(path, made)
                    how(tree, list(leaves(tree))[at][:-1])
                    self.send_wrong(path, tree)
                    yield path

    def wander(self, seconds: float) -> Iterator[str]:
        """For ``seconds``: messages with up to three changes, some sent again later."""
        routes = self.routes()
        paths = list(routes)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            path = self._draw.choice(paths[:4] if self._draw.random() < 0.5 else paths)
            tree = self._right(path, routes[path])
            for _ in range(self._draw.choice((0, 1, 1, 2, 3))):
                found = list(leaves(tree))
                if not found:
                    break
                spot = self._draw.choice(found)
                how = self._draw.random()
                if how < 0.7:
                    extreme = self._draw.choice(extremes(spot[-1]))
                    change(tree, spot[:-1], extreme)
                elif how < 0.85:
                    leave_out(tree, spot[:-1])
                else:
                    twice(tree, spot[:-1], self._draw.choice((2, 100)))
            self.send_wrong(path, tree)
            if self._old and self._draw.random() < 0.1:
                self._again()
            yield path

    def _right(self, path: str, made: Callable[[], Tree]) -> Tree:
        """A valid message for the current state. A receiver that a wrong message fenced registers again first."""
        if not self._epoch:
            self.register()
        try:
            return made()
        except AssertionError as error:
            if ": 409 " not in str(error):
                raise
            self.register()
            return made()

    def send_right(self) -> None:
        """Send each valid message once."""
        for path, made in self.routes().items():
            self.send_wrong(path, self._right(path, made), changed=False)

    def send_wrong(self, path: str, tree: Tree, changed: bool = True) -> None:
        body = json.dumps(tree).encode()
        if changed and body.startswith(b"{") and len(body) > 2 and self._draw.random() < 0.02:
            body = body[:-1] + b", " + body[1:]  # every key twice
        self._old.append((path, body))
        self._send(path, body)

    def _again(self) -> None:
        self._send(*self._old[self._draw.randrange(len(self._old))])

    def _send(self, path: str, body: bytes) -> None:
        status, answer = self.send(path, body)
        if status != 200:
            return  # a refusal changes nothing
        if path == "/v1/cursors/open":
            self._cursor_epoch = answer["epoch"]
        elif path == "/v1/receivers/register":
            self._epoch = 0  # it may have fenced this one
        elif path in CHANGING:
            self._views.clear()


#: after which a view may be another one
CHANGING = {
    "/v1/blocks/report", "/v1/partitions/claim", "/v1/partitions/release", "/v1/partitions/trouble",
    "/v1/operator/accept-gap", "/v1/operator/fence", "/v1/operator/reset",
}  # fmt: skip

Spot = tuple[Any, ...]


def leaves(tree: Tree, at: Spot = ()) -> Iterator[Spot]:
    """The path to each value of ``tree`` that is no map, lists themselves too; the value last."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from leaves(value, (*at, key))
        return
    if isinstance(tree, list):
        for index, value in enumerate(tree[:3]):
            yield from leaves(value, (*at, index))
    if at:
        yield (*at, tree)


def extremes(value: Any) -> tuple[Any, ...]:
    """Of the kind of ``value``; some of another."""
    if isinstance(value, list):
        return (*ODD, value * 1_000, [value])
    if isinstance(value, str):
        return (*TEXTS, *ODD, 5)
    return (*NUMBERS, *ODD, "5")


def change(tree: Tree, spot: Spot, to: Any) -> None:
    for step in spot[:-1]:
        tree = tree[step]
    tree[spot[-1]] = copy.deepcopy(to)  # it may be changed in its turn, or hold what it replaces


def leave_out(tree: Tree, spot: Spot) -> None:
    for step in spot[:-1]:
        tree = tree[step]
    del tree[spot[-1]]


def twice(tree: Tree, spot: Spot, times: int = 2) -> None:
    """The innermost list that holds the spot gets the entry ``times`` times; where there is none, nothing."""
    inner, place = None, tree
    for step in spot:
        if isinstance(place, list):
            inner = (place, step)
        place = place[step]
    if inner is not None:
        entries, index = inner
        entries[index:index] = [copy.deepcopy(entries[index]) for _ in range(times - 1)]
